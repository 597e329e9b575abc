#include "cuda/device/choice.h"

#include <algorithm>

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/choice";
const char* const kPreferNccl = "prefer-nccl";

std::string wish_of(const PeerInfo& member) { return text_in(member.operations); }

bool reaches(const PeerInfo& from, const PeerInfo& to) {
  const auto* const end =
      from.reachable.data() + std::min<std::size_t>(from.reachables, kMostReachable);
  return std::find(from.reachable.data(), end, to.uuid) != end;
}

std::string why_no_ring(const std::vector<PeerInfo>& members) {
  if (members.size() > kMostFolded)
    return "it has " + std::to_string(members.size()) + " ranks, at most " +
           std::to_string(kMostFolded) + " can share memory";
  for (const PeerInfo& member : members)
    if (member.word_operations == 0)
      return rank_of(member) + "'s driver has no stream memory operations";
  return of_pairs(members, [](const PeerInfo& one, const PeerInfo& other) -> std::string {
    if (one.host != other.host)
      return rank_of(one) + " and " + rank_of(other) + " are on different hosts";
    if (!reaches(one, other))
      return rank_of(one) + "'s device cannot reach " + rank_of(other) +
             "'s directly (nvidia-smi topo -p2p r; a rank must see both in CUDA_VISIBLE_DEVICES)";
    return "";
  });
}

std::string why_no_nccl(const std::vector<PeerInfo>& members) {
  for (const PeerInfo& member : members)
    if (member.nccl == 0)
      return rank_of(member) +
             " has no NCCL (pip install nvidia-nccl-cu13, or a torch that brings it), or one that "
             "blocks (unset NCCL_COMM_BLOCKING)";
  return of_pairs(members, [](const PeerInfo& one, const PeerInfo& other) -> std::string {
    if (one.nccl != other.nccl)
      return rank_of(one) + " has NCCL " + std::to_string(one.nccl) + " and " + rank_of(other) +
             " has " + std::to_string(other.nccl);
    if (one.rank < other.rank && one.uuid == other.uuid)
      return rank_of(one) + " and " + rank_of(other) + " share one device, which NCCL refuses";
    return "";
  });
}

Status different_wishes(const std::vector<PeerInfo>& members) {
  for (const PeerInfo& member : members)
    if (wish_of(member) != wish_of(members.front()))
      return Status::make(Code::kMismatch,
                          "HOROVOD_GPU_OPERATIONS is " + wish_of(members.front()) + " on " +
                              rank_of(members.front()) + " and " + wish_of(member) + " on " +
                              rank_of(member) + ": set it alike on all ranks",
                          kRoom, member.rank);
  return Status::ok();
}

Result<std::vector<BackendKind>> only(BackendKind kind, const std::string& why_not) {
  if (why_not.empty()) return std::vector<BackendKind>{kind};
  return Status::make(Code::kInvalidArgument,
                      std::string("HOROVOD_GPU_OPERATIONS=") + name_of(kind) +
                          " is not possible among these ranks: " + why_not + "; use auto or staged",
                      kRoom);
}

}  // namespace

const char* name_of(BackendKind kind) {
  switch (kind) {
    case BackendKind::kRing:
      return "ring";
    case BackendKind::kNccl:
      return "nccl";
    case BackendKind::kStaged:
      return "staged";
  }
  return "?";
}

Result<std::vector<BackendKind>> choose(const std::vector<PeerInfo>& members) {
  Status status = different_wishes(members);
  if (!status) return status;
  const std::string wish = wish_of(members.front());
  if (wish == "ring") return only(BackendKind::kRing, why_no_ring(members));
  if (wish == "nccl") return only(BackendKind::kNccl, why_no_nccl(members));
  if (wish == "staged") return std::vector<BackendKind>{BackendKind::kStaged};
  if (wish != "auto" && wish != kPreferNccl)
    return Status::make(
        Code::kInvalidArgument,
        "HOROVOD_GPU_OPERATIONS is auto, ring, nccl, prefer-nccl or staged, not '" + wish + "'",
        kRoom);
  std::vector<BackendKind> candidates;
  if (why_no_ring(members).empty()) candidates.push_back(BackendKind::kRing);
  if (why_no_nccl(members).empty())
    candidates.insert(wish == kPreferNccl ? candidates.begin() : candidates.end(),
                      BackendKind::kNccl);
  candidates.push_back(BackendKind::kStaged);
  return candidates;
}

std::vector<std::string> why_staged(const std::vector<PeerInfo>& members) {
  std::vector<std::string> reasons;
  if (wish_of(members.front()) == name_of(BackendKind::kStaged)) return reasons;
  if (const std::string why = why_no_ring(members); !why.empty()) reasons.push_back("ring: " + why);
  if (const std::string why = why_no_nccl(members); !why.empty()) reasons.push_back("NCCL: " + why);
  return reasons;
}

}  // namespace hvd::cuda
