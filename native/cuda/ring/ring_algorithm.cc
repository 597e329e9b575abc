#include "cuda/ring/ring_algorithm.h"

#include <algorithm>

namespace hvd::cuda {
namespace {

constexpr std::uint32_t kMostBlocks = 32;  // the rest of the device is left to computations

// Number of members on its device, itself included.
std::uint32_t sharers_of(const PeerInfo& member, const std::vector<PeerInfo>& members) {
  return static_cast<std::uint32_t>(
      std::count_if(members.begin(), members.end(), [&](const PeerInfo& other) {
        return other.host == member.host && other.uuid == member.uuid;
      }));
}

// Blocks of one member if all members on its device have the same number: one per multiprocessor.
std::uint32_t room_of(const PeerInfo& member, const std::vector<PeerInfo>& members) {
  return member.multiprocessors / sharers_of(member, members);
}

std::uint32_t blocks_of(const std::vector<PeerInfo>& members) {
  std::uint32_t blocks = kMostBlocks;
  for (const PeerInfo& member : members) blocks = std::min(blocks, room_of(member, members));
  return blocks;
}

std::string share_sentence(std::int32_t one, std::int32_t other) {
  return "rank " + std::to_string(one) + " and rank " + std::to_string(other) +
         " are processes that share a device, where kernels that wait for each other may never run "
         "together (give each rank a GPU of its own)";
}

std::string why_not_on_device_of(const PeerInfo& member) {
  if (member.time_limit == 1)
    return "the driver ends what runs for seconds on the device of " + rank_of(member) +
           ", as where a display hangs on it";
  if (member.sharer >= 0) return share_sentence(member.rank, member.sharer);
  if (member.silent < 0) return "";
  return rank_of(member) + " and rank " + std::to_string(member.silent) +
         " may be processes that share a device: rank " + std::to_string(member.silent) +
         " is not among these ranks and has not told its device yet (the first operation of all "
         "ranks on their devices does)";
}

// "" or the reason why the members' kernels cannot run concurrently to the end.
std::string why_not_persistent(const std::vector<PeerInfo>& members) {
  std::string shared = of_pairs(members, [](const PeerInfo& one, const PeerInfo& other) {
    return share_device(one, other) ? share_sentence(one.rank, other.rank) : std::string();
  });
  if (!shared.empty()) return shared;
  for (const PeerInfo& member : members)
    if (std::string why = why_not_on_device_of(member); !why.empty()) return why;
  return blocks_of(members) == 0 ? "a device has too few multiprocessors for all" : "";
}

bool any_shared(const std::vector<PeerInfo>& members) {
  return std::any_of(members.begin(), members.end(),
                     [&](const PeerInfo& member) { return sharers_of(member, members) > 1; });
}

}  // namespace

Result<RingAlgorithms> ring_algorithms(const std::vector<PeerInfo>& members) {
  const std::string wish = text_in(members.front().ring);
  if (wish == "slices" || members.size() < 2) return RingAlgorithms{};
  const std::string why_not = why_not_persistent(members);
  if (wish != "persistent")
    return RingAlgorithms{true, why_not.empty() && !any_shared(members) ? blocks_of(members) : 0};
  if (why_not.empty()) return RingAlgorithms{false, blocks_of(members)};
  return Status::make(Code::kInvalidArgument,
                      "HVD_GPU_RING=persistent is not possible among these ranks: " + why_not +
                          "; use auto or slices",
                      "cuda/ring_algorithm");
}

}  // namespace hvd::cuda
