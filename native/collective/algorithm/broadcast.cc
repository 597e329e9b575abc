#include "collective/algorithm/broadcast.h"

#include "collective/algorithm/ring.h"

namespace hvd {
namespace {

constexpr int kLargestStar = 3;  // members, when there is more than one segment
constexpr int kLargestStarOfOne = 32;

Status send_to_all(CommunicatorContext& context, const Segment& segment) {
  for (int step = 1; step < context.size(); ++step) {
    const int peer = context.group_rank_at(step);
    Result<std::byte*> slot = context.acquire(peer);
    if (!slot) return slot.status();
    const std::byte* const end = pack(segment, plain_bytes(), slot.value(), context.store(peer));
    if (failpoint("collective.star_filled")) return tripped("collective.star_filled");
    context.publish(peer, static_cast<std::size_t>(end - slot.value()));
  }
  return Status::ok();
}

Status receive(CommunicatorContext& context, const Segment& segment, int root) {
  Result<const std::byte*> slot = context.expect(root, elements_of(segment));
  if (!slot) return slot.status();
  unpack(segment, 1, slot.value());
  context.release(root);
  return Status::ok();
}

}  // namespace

Shape broadcast_shape(const CommunicatorContext& context, std::size_t bytes,
                      std::size_t segment_bytes) {
  const int largest = bytes <= segment_bytes ? kLargestStarOfOne : kLargestStar;
  return context.size() <= largest ? Shape::kStar : Shape::kChain;
}

Status broadcast(CommunicatorContext& context, const std::vector<Operand>& operands, int root,
                 Shape shape, std::size_t segment_bytes) {
  const Plan plan = Plan::sliced(operands, 1, 1, segment_bytes);
  if (shape == Shape::kChain) {
    return execute(context, broadcast_schedule(context.group_rank(), context.size(), root), plan,
                   plain_bytes());
  }
  for (std::size_t k = 0; k < plan.segments(); ++k) {
    const Segment segment = plan.segment(0, k);
    Status status = context.group_rank() == root ? send_to_all(context, segment)
                                                 : receive(context, segment, root);
    if (!status) return status;
  }
  return Status::ok();
}

}  // namespace hvd
