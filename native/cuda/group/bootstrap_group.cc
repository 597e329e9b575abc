#include "cuda/group/bootstrap_group.h"

#include <algorithm>
#include <string>

#include "cuda/group/device_backend.h"

namespace hvd::cuda {
namespace {

// How it went for a member: plain bytes.
struct Verdict {
  Code code = Code::kOk;
  std::int32_t rank = -1;
  std::array<char, 512> text{};
};

Verdict verdict_of(const Status& status) {
  Verdict verdict;
  verdict.code = status.code;
  verdict.rank = status.rank;
  put(verdict.text, status.message);
  return verdict;
}

// A peer's number may be none of ours.
Code code_in(const Verdict& verdict) {
  const auto number = static_cast<int>(verdict.code);
  return number > 0 && number < kCodeCount ? verdict.code : Code::kInternal;
}

// Who names itself knows why; the others have only heard that somebody failed, or waited in vain.
bool knows(const Verdict& verdict, const Facts& member) {
  return verdict.rank == member.rank && verdict.code != Code::kTimeout;
}

const Verdict* worst_of(const std::vector<Verdict>& verdicts, const std::vector<Facts>& members) {
  const Verdict* heard = nullptr;
  for (std::size_t place = 0; place < verdicts.size(); ++place) {
    const Verdict& verdict = verdicts[place];
    if (verdict.code == Code::kOk) continue;
    if (knows(verdict, members[place])) return &verdict;
    if (heard == nullptr) heard = &verdict;
  }
  return heard;
}

}  // namespace

std::size_t least_arena(const std::vector<Facts>& members) {
  std::uint64_t least = members.front().arena_bytes;
  for (const Facts& member : members) least = std::min(least, member.arena_bytes);
  return static_cast<std::size_t>(least);
}

Status tell_all(Backend& cpu, const Team& team, const void* mine, void* all, std::size_t bytes) {
  Gather gather;
  gather.in = static_cast<const std::byte*>(mine);
  auto* to = static_cast<std::byte*>(all);
  for (int place = 0; place < team.size(); ++place, to += bytes) {
    gather.out.push_back(to);
    gather.bytes.push_back(bytes);
  }
  return cpu.allgather(team, {gather});
}

Status all_went_well(const Party& party, const Status& mine) {
  const Result<std::vector<Verdict>> all = tell_all(party, verdict_of(mine));
  if (!all) return all.status();
  const Verdict* const worst = worst_of(all.value(), party.members);
  if (worst == nullptr) return Status::ok();
  return Status::make(code_in(*worst), text_in(worst->text), "cuda/party", worst->rank);
}

Status end_together(const Party& party, const Status& why) {
  const Status met = all_went_well(party, Status::ok());
  return met ? why : met;
}

Status part_together(DeviceBackend& backend, const Party& party, const Status& why) {
  backend.part();
  return end_together(party, why);
}

}  // namespace hvd::cuda
