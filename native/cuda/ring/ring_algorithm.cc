#include "cuda/ring/ring_algorithm.h"

#include <algorithm>

namespace hvd::cuda {
namespace {

constexpr std::uint32_t kMostBlocks = 32;  // the rest of the device is for who computes

bool take_turns(const PeerInfo& one, const PeerInfo& other) {
  return one.uuid == other.uuid && one.process != other.process &&
         (one.shared_contexts == 0 || other.shared_contexts == 0);
}

// Of one member, when all that share its device have as many: a multiprocessor each.
std::uint32_t room_of(const PeerInfo& member, const std::vector<PeerInfo>& members) {
  const auto sharers = std::count_if(members.begin(), members.end(), [&](const PeerInfo& other) {
    return other.host == member.host && other.uuid == member.uuid;
  });
  return member.multiprocessors / static_cast<std::uint32_t>(sharers);
}

std::uint32_t blocks_of(const std::vector<PeerInfo>& members) {
  std::uint32_t blocks = kMostBlocks;
  for (const PeerInfo& member : members) blocks = std::min(blocks, room_of(member, members));
  return blocks;
}

// "", or why no kernels stay at the same time until all is done.
std::string why_not_persistent(const std::vector<PeerInfo>& members) {
  if (blocks_of(members) == 0) return "a device has too few multiprocessors for all";
  for (const PeerInfo& member : members)
    if (member.time_limit == 1)
      return "the driver ends what runs for seconds on the device of " + rank_of(member) +
             ", as where a display hangs on it";
  return of_pairs(members, [](const PeerInfo& one, const PeerInfo& other) -> std::string {
    if (!take_turns(one, other)) return "";
    return rank_of(one) + " and " + rank_of(other) +
           " are processes that share a device: their kernels take turns";
  });
}

}  // namespace

Result<RingAlgorithms> ring_algorithms(const std::vector<PeerInfo>& members) {
  const std::string wish = text_in(members.front().ring);
  if (wish == "slices" || members.size() < 2) return RingAlgorithms{};
  const std::string why_not = why_not_persistent(members);
  if (why_not.empty()) return RingAlgorithms{wish != "persistent", blocks_of(members)};
  if (wish != "persistent") return RingAlgorithms{};
  return Status::make(Code::kInvalidArgument,
                      "HVD_GPU_RING=persistent is not possible among these ranks: " + why_not +
                          "; use auto or slices",
                      "cuda/ring_algorithm");
}

}  // namespace hvd::cuda
