#include "cuda/ring/ring_algorithm.h"

#include <algorithm>

namespace hvd::cuda {
namespace {

constexpr std::uint32_t kMostBlocks = 32;  // the rest of the device is for who computes

bool take_turns(const Facts& one, const Facts& other) {
  return one.uuid == other.uuid && one.process != other.process &&
         (one.shared_contexts == 0 || other.shared_contexts == 0);
}

// Of one member, when all that share its device have as many: a multiprocessor each.
std::uint32_t room_of(const Facts& member, const std::vector<Facts>& members) {
  const auto sharers = std::count_if(members.begin(), members.end(), [&](const Facts& other) {
    return other.host == member.host && other.uuid == member.uuid;
  });
  return member.multiprocessors / static_cast<std::uint32_t>(sharers);
}

std::uint32_t blocks_of(const std::vector<Facts>& members) {
  std::uint32_t blocks = kMostBlocks;
  for (const Facts& member : members) blocks = std::min(blocks, room_of(member, members));
  return blocks;
}

// "", or why no kernels stay at the same time until all is done.
std::string why_not_persistent(const std::vector<Facts>& members) {
  if (blocks_of(members) == 0) return "a device has too few multiprocessors for all";
  for (const Facts& member : members)
    if (member.time_limit == 1)
      return "the driver ends what runs for seconds on the device of " + rank_of(member) +
             ", as where a display hangs on it";
  return of_pairs(members, [](const Facts& one, const Facts& other) -> std::string {
    if (!take_turns(one, other)) return "";
    return rank_of(one) + " and " + rank_of(other) +
           " are processes that share a device: their kernels take turns";
  });
}

}  // namespace

Result<RingForms> ring_forms(const std::vector<Facts>& members) {
  const std::string wish = text_in(members.front().ring);
  if (wish == "slices" || members.size() < 2) return RingForms{};
  const std::string why_not = why_not_persistent(members);
  if (why_not.empty()) return RingForms{wish != "persistent", blocks_of(members)};
  if (wish != "persistent") return RingForms{};
  return Status::make(Code::kInvalidArgument,
                      "HVD_GPU_RING=persistent is not possible among these ranks: " + why_not +
                          "; use auto or slices",
                      "cuda/ring_form");
}

}  // namespace hvd::cuda
