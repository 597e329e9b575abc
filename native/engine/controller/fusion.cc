#include "engine/controller/fusion.h"

#include <algorithm>
#include <utility>

#include "engine/controller/stall.h"

namespace hvd {
namespace {

// Polling interval: devices do not signal completion.
constexpr std::int64_t kPollIntervalNs = 100'000;
// In turns: factor of the waiting time, because an operation of four ranks takes 10 ms there.
constexpr std::int64_t kInTurns = 5;

bool fuses(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kAllgather ||
         kind == Kind::kReducescatter;
}

// One device and, unless the bytes are only copied, one dtype; a group of mixed tensors is not
// fused.
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
  Held& held = agreed.queues ? devices_ : host_;
  if (held.agreed.empty()) held.oldest_ns = now_ns;
  held.bytes += agreed.bytes;
  held.hurry = held.hurry || !can_fuse(agreed);
  held.agreed.push_back(std::move(agreed));
}

std::vector<FusionManager::FusedResponse> FusionManager::take(std::int64_t now_ns,
                                                              const InFlight& in_flight) {
  std::vector<FusedResponse> all;
  if (due_in(devices_, now_ns, in_flight) == 0) fuse(devices_, all);
  if (due_in(host_, now_ns, {}) == 0) fuse(host_, all);
  return all;
}

std::vector<FusionManager::FusedResponse> FusionManager::take_all() {
  std::vector<FusedResponse> all;
  fuse(devices_, all);
  fuse(host_, all);
  return all;
}

void FusionManager::fuse(Held& held, std::vector<FusedResponse>& all) const {
  struct Open {
    std::size_t at;  // index of the response that the next compatible operation joins
    std::int64_t bytes;
  };
  std::vector<Open> open;
  for (Agreed& one : held.agreed) {
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
  held = {};
}

std::int64_t FusionManager::due_in(const Held& held, std::int64_t now_ns,
                                   const InFlight& in_flight) const {
  if (held.agreed.empty()) return -1;
  const bool in_turns = in_flight.in_turns && cycle_ == 0;
  if (held.hurry || (held.bytes >= threshold_ && !in_turns)) return 0;
  if (cycle_ > 0 || (in_flight.operations == 0 && !in_turns))
    return std::max<std::int64_t>(0, held.oldest_ns + cycle_ - now_ns);
  if (in_flight.awaited) return 0;
  const std::int64_t least = in_turns ? kInTurns * hold_ : hold_;
  const std::int64_t longest = std::max(least, held.oldest_ns - in_flight.since_ns);
  return std::clamp<std::int64_t>(held.oldest_ns + longest - now_ns, 0, kPollIntervalNs);
}

std::int64_t FusionManager::due_in(std::int64_t now_ns, const InFlight& in_flight) const {
  return sooner(due_in(devices_, now_ns, in_flight), due_in(host_, now_ns, {}));
}

}  // namespace hvd
