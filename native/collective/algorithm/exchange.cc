#include "collective/algorithm/exchange.h"

#include <algorithm>
#include <functional>

#include "collective/backend/pipeline.h"
#include "tensor/reduce.h"

namespace hvd {
namespace {

Status send(Crew& crew, int peer, const Segment& segment) {
  const std::size_t bytes = elements_of(segment);
  if (bytes == 0) return Status::ok();
  Result<std::byte*> slot = crew.acquire(peer);
  if (!slot) return slot.status();
  pack(segment, plain_bytes(), slot.value(), crew.store(peer));
  if (failpoint("collective.exchange_filled")) return tripped("collective.exchange_filled");
  crew.publish(peer, bytes);
  return Status::ok();
}

Status receive(Crew& crew, int peer, const Segment& segment) {
  const std::size_t bytes = elements_of(segment);
  if (bytes == 0) return Status::ok();
  Result<const std::byte*> slot = crew.expect(peer, bytes);
  if (!slot) return slot.status();
  unpack(segment, 1, slot.value());
  crew.release(peer);
  return Status::ok();
}

// own: the chunk that goes to all; negative: to each its own.
Status run(Crew& crew, const Plan& out, const Plan& in, int own) {
  const auto chunk = [&](int peer) { return static_cast<std::size_t>(own < 0 ? peer : own); };
  const auto send_all = [&](std::size_t batch) {
    Status status = Status::ok();
    for (int step = 1; step < crew.size() && batch < out.segments() && status; ++step) {
      const int peer = crew.place_at(step);
      status = send(crew, peer, out.segment(chunk(peer), batch));
    }
    return status;
  };
  const auto receive_all = [&](std::size_t batch) {
    Status status = Status::ok();
    for (int step = 1; step < crew.size() && batch < in.segments() && status; ++step) {
      const int peer = crew.place_at(-step);
      status = receive(crew, peer, in.segment(static_cast<std::size_t>(peer), batch));
    }
    return status;
  };
  const std::size_t lag = crew.slots() > 1 ? 1 : 0;
  return run_pipeline(std::max(out.segments(), in.segments()),
                      {{0, std::cref(send_all)}, {lag, std::cref(receive_all)}});
}

}  // namespace

Status exchange(Crew& crew, const Plan& out, const Plan& in) { return run(crew, out, in, -1); }

Status exchange_same(Crew& crew, const Plan& plan) { return run(crew, plan, plan, crew.place()); }

}  // namespace hvd
