#include "collective/algorithm/broadcast.h"

#include "collective/algorithm/ring.h"

namespace hvd {
namespace {

constexpr int kLargestStar = 3;  // members, when there is more than one segment
constexpr int kLargestStarOfOne = 32;

Status send_to_all(Crew& crew, const Segment& segment) {
  for (int step = 1; step < crew.size(); ++step) {
    const int peer = crew.place_at(step);
    Result<std::byte*> slot = crew.acquire(peer);
    if (!slot) return slot.status();
    const std::byte* const end = pack(segment, plain_bytes(), slot.value(), crew.store(peer));
    if (failpoint("collective.star_filled")) return tripped("collective.star_filled");
    crew.publish(peer, static_cast<std::size_t>(end - slot.value()));
  }
  return Status::ok();
}

Status receive(Crew& crew, const Segment& segment, int root) {
  Result<const std::byte*> slot = crew.expect(root, elements_of(segment));
  if (!slot) return slot.status();
  unpack(segment, 1, slot.value());
  crew.release(root);
  return Status::ok();
}

}  // namespace

Shape broadcast_shape(const Crew& crew, std::size_t bytes, std::size_t segment_bytes) {
  const int largest = bytes <= segment_bytes ? kLargestStarOfOne : kLargestStar;
  return crew.size() <= largest ? Shape::kStar : Shape::kChain;
}

Status broadcast(Crew& crew, const std::vector<Operand>& operands, int root, Shape shape,
                 std::size_t segment_bytes) {
  const Plan plan = Plan::sliced(operands, 1, 1, segment_bytes);
  if (shape == Shape::kChain) {
    return speak(crew, broadcast_sentence(crew.place(), crew.size(), root), plan, plain_bytes());
  }
  for (std::size_t k = 0; k < plan.segments(); ++k) {
    const Segment segment = plan.segment(0, k);
    Status status =
        crew.place() == root ? send_to_all(crew, segment) : receive(crew, segment, root);
    if (!status) return status;
  }
  return Status::ok();
}

}  // namespace hvd
