#include "engine/fusion.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace hvd {
namespace {

using Key = std::tuple<Kind, ReduceOp, double, double, int, int, int>;

// One device, and for sums one dtype; a group of mixed tensors stays alone.
bool uniform(const Request& request) {
  const TensorMeta& first = request.tensors.front();
  return std::all_of(request.tensors.begin(), request.tensors.end(), [&](const TensorMeta& tensor) {
    return tensor.device == first.device &&
           (request.kind == Kind::kBroadcast || tensor.dtype == first.dtype);
  });
}

bool can_fuse(const Agreed& agreed) {
  const Request& request = agreed.request;
  const bool kind = request.kind == Kind::kAllreduce || request.kind == Kind::kBroadcast;
  return kind && agreed.status.is_ok() && !request.tensors.empty() && uniform(request);
}

Key key_of(const Request& request) {
  const TensorMeta& first = request.tensors.front();
  const int dtype = request.kind == Kind::kBroadcast ? 0 : static_cast<int>(first.dtype);
  return {request.kind, request.op, request.prescale, request.postscale, request.root,
          first.device, dtype};
}

Response alone(Agreed agreed) {
  Response response;
  response.kind = agreed.request.kind;
  response.status = std::move(agreed.status);
  response.names.push_back(std::move(agreed.request.name));
  response.rows = std::move(agreed.rows);
  return response;
}

}  // namespace

void Fuser::add(std::vector<Agreed> agreed, std::int64_t now_ns) {
  if (held_.empty()) oldest_ns_ = now_ns;
  for (Agreed& one : agreed) {
    bytes_ += one.request.bytes();
    held_.push_back(std::move(one));
  }
}

std::vector<Response> Fuser::take(std::int64_t now_ns) {
  return due_in(now_ns) == 0 ? take_all() : std::vector<Response>();
}

std::vector<Response> Fuser::take_all() {
  std::vector<Response> responses;
  struct Open {
    std::size_t response;
    std::int64_t bytes;
  };
  std::map<Key, Open> open;  // where the next one of its kind may join
  for (Agreed& one : held_) {
    if (!can_fuse(one)) {
      responses.push_back(alone(std::move(one)));
      continue;
    }
    const std::int64_t bytes = one.request.bytes();
    const Key key = key_of(one.request);
    const auto found = open.find(key);
    if (found != open.end() && found->second.bytes + bytes <= threshold_) {
      found->second.bytes += bytes;
      responses[found->second.response].names.push_back(std::move(one.request.name));
    } else {
      open.insert_or_assign(key, Open{responses.size(), bytes});
      responses.push_back(alone(std::move(one)));
    }
  }
  held_.clear();
  bytes_ = 0;
  return responses;
}

std::int64_t Fuser::due_in(std::int64_t now_ns) const {
  if (held_.empty()) return -1;
  const bool small = std::all_of(held_.begin(), held_.end(), can_fuse);
  if (!small || bytes_ >= threshold_) return 0;
  return std::max<std::int64_t>(0, oldest_ns_ + cycle_ - now_ns);
}

}  // namespace hvd
