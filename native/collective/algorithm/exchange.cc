#include "collective/algorithm/exchange.h"

#include <algorithm>
#include <functional>

#include "collective/backend/pipeline.h"
#include "tensor/reduce.h"

namespace hvd {
namespace {

Status send(CommunicatorContext& context, int peer, const Segment& segment) {
  const std::size_t bytes = elements_of(segment);
  if (bytes == 0) return Status::ok();
  Result<std::byte*> slot = context.acquire(peer);
  if (!slot) return slot.status();
  pack(segment, plain_bytes(), slot.value(), context.store(peer));
  if (failpoint("collective.exchange_filled")) return tripped("collective.exchange_filled");
  context.publish(peer, bytes);
  return Status::ok();
}

Status receive(CommunicatorContext& context, int peer, const Segment& segment) {
  const std::size_t bytes = elements_of(segment);
  if (bytes == 0) return Status::ok();
  Result<const std::byte*> slot = context.expect(peer, bytes);
  if (!slot) return slot.status();
  unpack(segment, 1, slot.value());
  context.release(peer);
  return Status::ok();
}

// own: the chunk that is sent to all; negative: each peer receives its own chunk.
Status run(CommunicatorContext& context, const Plan& out, const Plan& in, int own) {
  const auto chunk = [&](int peer) { return static_cast<std::size_t>(own < 0 ? peer : own); };
  const auto send_all = [&](std::size_t batch) {
    Status status = Status::ok();
    for (int step = 1; step < context.size() && batch < out.segments() && status; ++step) {
      const int peer = context.group_rank_at(step);
      status = send(context, peer, out.segment(chunk(peer), batch));
    }
    return status;
  };
  const auto receive_all = [&](std::size_t batch) {
    Status status = Status::ok();
    for (int step = 1; step < context.size() && batch < in.segments() && status; ++step) {
      const int peer = context.group_rank_at(-step);
      status = receive(context, peer, in.segment(static_cast<std::size_t>(peer), batch));
    }
    return status;
  };
  const std::size_t lag = context.slots() > 1 ? 1 : 0;
  return run_pipeline(std::max(out.segments(), in.segments()),
                      {{0, std::cref(send_all)}, {lag, std::cref(receive_all)}});
}

}  // namespace

Status exchange(CommunicatorContext& context, const Plan& out, const Plan& in) {
  return run(context, out, in, -1);
}

Status exchange_same(CommunicatorContext& context, const Plan& plan) {
  return run(context, plan, plan, context.group_rank());
}

}  // namespace hvd
