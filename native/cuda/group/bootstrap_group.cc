#include "cuda/group/bootstrap_group.h"

#include <algorithm>
#include <string>

#include "cuda/group/device_backend.h"

namespace hvd::cuda {
namespace {

// A member's status, as plain bytes.
struct PackedStatus {
  Code code = Code::kOk;
  std::int32_t rank = -1;
  std::array<char, 512> text{};
};

PackedStatus pack_status(const Status& status) {
  PackedStatus packed;
  packed.code = status.code;
  packed.rank = status.rank;
  put(packed.text, status.message);
  return packed;
}

// A peer's number may be unknown here.
Code code_in(const PackedStatus& packed) {
  const auto number = static_cast<int>(packed.code);
  return number > 0 && number < kCodeCount ? packed.code : Code::kInternal;
}

// A member that names itself knows the reason; the other members only noticed a failure or a
// timeout.
bool knows(const PackedStatus& packed, const PeerInfo& member) {
  return packed.rank == member.rank && packed.code != Code::kTimeout;
}

const PackedStatus* worst_of(const std::vector<PackedStatus>& statuses,
                             const std::vector<PeerInfo>& members) {
  const PackedStatus* heard = nullptr;
  for (std::size_t group_rank = 0; group_rank < statuses.size(); ++group_rank) {
    const PackedStatus& packed = statuses[group_rank];
    if (packed.code == Code::kOk) continue;
    if (knows(packed, members[group_rank])) return &packed;
    if (heard == nullptr) heard = &packed;
  }
  return heard;
}

}  // namespace

std::size_t least_arena(const std::vector<PeerInfo>& members) {
  std::uint64_t least = members.front().arena_bytes;
  for (const PeerInfo& member : members) least = std::min(least, member.arena_bytes);
  return static_cast<std::size_t>(least);
}

Status bootstrap_allgather(Backend& cpu, const Group& group, const void* mine, void* all,
                           std::size_t bytes) {
  Gather gather;
  gather.in = static_cast<const std::byte*>(mine);
  auto* to = static_cast<std::byte*>(all);
  for (int group_rank = 0; group_rank < group.size(); ++group_rank, to += bytes) {
    gather.out.push_back(to);
    gather.bytes.push_back(bytes);
  }
  return cpu.allgather(group, {gather});
}

Status all_went_well(const BootstrapGroup& bootstrap, const Status& mine) {
  const Result<std::vector<PackedStatus>> all = bootstrap_allgather(bootstrap, pack_status(mine));
  if (!all) return all.status();
  const PackedStatus* const worst = worst_of(all.value(), bootstrap.members);
  if (worst == nullptr) return Status::ok();
  return Status::make(code_in(*worst), text_in(worst->text), "cuda/bootstrap_group", worst->rank);
}

Status end_together(const BootstrapGroup& bootstrap, const Status& why) {
  const Status met = all_went_well(bootstrap, Status::ok());
  return met ? why : met;
}

Status part_together(DeviceBackend& backend, const BootstrapGroup& bootstrap, const Status& why) {
  backend.part();
  return end_together(bootstrap, why);
}

}  // namespace hvd::cuda
