#include "engine/controller/fusion.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

bool fuses(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kAllgather ||
         kind == Kind::kReducescatter;
}

// One device, and unless its bytes are only passed on one dtype; a group of mixed tensors stays
// alone.
bool uniform(const Request& request) {
  const TensorMeta& first = request.tensors.front();
  return std::all_of(request.tensors.begin(), request.tensors.end(), [&](const TensorMeta& tensor) {
    return tensor.device == first.device &&
           (request.kind == Kind::kBroadcast || tensor.dtype == first.dtype);
  });
}

bool alike(const Agreed& a, const Agreed& b) {
  const Request& x = *a.request;
  const Request& y = *b.request;
  const TensorMeta& p = x.tensors.front();
  const TensorMeta& q = y.tensors.front();
  return x.kind == y.kind && x.set == y.set && x.op == y.op && x.prescale == y.prescale &&
         x.postscale == y.postscale && x.root == y.root && p.device == q.device &&
         (x.kind == Kind::kBroadcast || p.dtype == q.dtype) && a.shared == b.shared &&
         a.absent == b.absent && same(a.devices, b.devices);
}

}  // namespace

bool FusionManager::can_fuse(const Agreed& agreed) const {
  const Request& request = *agreed.request;
  return agreed.status && fuses(request.kind) && !request.tensors.empty() &&
         (groups_ || request.tensors.size() == 1) && uniform(request);
}

void FusionManager::add(Agreed agreed, std::int64_t now_ns) {
  if (held_.empty()) oldest_ns_ = now_ns;
  bytes_ += agreed.bytes;
  hurry_ = hurry_ || !can_fuse(agreed);
  held_.push_back(std::move(agreed));
}

std::vector<FusionManager::FusedResponse> FusionManager::take(std::int64_t now_ns) {
  return due_in(now_ns) == 0 ? take_all() : std::vector<FusedResponse>();
}

std::vector<FusionManager::FusedResponse> FusionManager::take_all() {
  struct Open {
    std::size_t at;  // where the next one of its kind may join
    std::int64_t bytes;
  };
  std::vector<FusedResponse> all;
  std::vector<Open> open;
  for (Agreed& one : held_) {
    if (!can_fuse(one)) {
      all.emplace_back().push_back(std::move(one));
      continue;
    }
    const std::int64_t bytes = one.bytes;
    const auto found = std::find_if(open.begin(), open.end(), [&](const Open& candidate) {
      return alike(all[candidate.at].front(), one);
    });
    if (found != open.end() && found->bytes + bytes <= threshold_) {
      found->bytes += bytes;
      all[found->at].push_back(std::move(one));
      continue;
    }
    if (found != open.end()) {
      *found = {all.size(), bytes};
    } else {
      open.push_back({all.size(), bytes});
    }
    all.emplace_back().push_back(std::move(one));
  }
  held_.clear();
  bytes_ = 0;
  hurry_ = false;
  return all;
}

std::int64_t FusionManager::due_in(std::int64_t now_ns) const {
  if (held_.empty()) return -1;
  if (hurry_ || bytes_ >= threshold_) return 0;
  return std::max<std::int64_t>(0, oldest_ns_ + cycle_ - now_ns);
}

}  // namespace hvd
