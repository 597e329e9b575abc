#include "cuda/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "cuda/nccl_backend.h"
#include "cuda/ring_backend.h"
#include "cuda/staged_backend.h"
#include "cuda/trial.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/meeting";

// How it went for a member: plain bytes.
struct Verdict {
  Code code = Code::kOk;
  std::int32_t rank = -1;
  std::array<char, 256> text{};
};

template <std::size_t n>
void put(std::array<char, n>& to, const std::string& text) {
  to.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), n - 1), to.data());
}

std::uint64_t this_process() {
  static const std::uint64_t token = [] {
    std::uint64_t number = 0;
    const Result<std::string> bytes = random_bytes(sizeof number);
    if (bytes.is_ok())
      std::copy_n(bytes.value().data(), sizeof number, reinterpret_cast<char*>(&number));
    return number;
  }();
  return token;
}

void describe(const Device& device, Facts& facts) {
  facts.uuid = device.uuid();
  facts.reachables = static_cast<std::uint32_t>(device.reachable().size());
  std::copy(device.reachable().begin(), device.reachable().end(), facts.reachable.begin());
  facts.word_operations = device.has_word_operations() ? 1 : 0;
  facts.multiprocessors =
      static_cast<std::uint32_t>(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  facts.shared_contexts = device.attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == 1 ? 1 : 0;
}

Facts facts_of(const Guest& guest, const Topology& topology, const AcceleratorOptions& options) {
  Facts facts;
  facts.rank = topology.rank;
  facts.host = topology.host_of[static_cast<std::size_t>(topology.rank)];
  facts.pid = ::getpid();
  facts.process = this_process();
  facts.nccl = options.operations == "ring" || options.operations == "staged" ? 0 : nccl_version();
  facts.arena_bytes = options.arena_bytes;
  put(facts.operations, options.operations);
  put(facts.ring, options.ring);
  if (guest.device != nullptr)
    describe(*guest.device, facts);
  else
    put(facts.trouble, guest.trouble.message);
  return facts;
}

Status trouble_of(const std::vector<Facts>& members) {
  for (const Facts& member : members)
    if (member.trouble.front() != '\0')
      return Status::make(Code::kUnavailable, member.trouble.data(), kRoom, member.rank);
  return Status::ok();
}

Result<std::unique_ptr<DeviceBackend>> make(Way way, const Party& party) {
  switch (way) {
    case Way::kRing:
      return make_ring_backend(party);
    case Way::kNccl:
      return make_nccl_backend(party);
    case Way::kStaged:
      return make_staged_backend(party);
  }
  return Status::make(Code::kInternal, "there is no such way", kRoom);
}

Verdict verdict_of(const Status& status) {
  Verdict verdict;
  verdict.code = status.code;
  verdict.rank = status.rank;
  put(verdict.text, status.message);
  return verdict;
}

// Who names itself knows why; the others have only heard that somebody failed.
const Verdict* worst_of(const std::vector<Verdict>& verdicts, const std::vector<Facts>& members) {
  const Verdict* heard = nullptr;
  for (std::size_t place = 0; place < verdicts.size(); ++place) {
    const Verdict& verdict = verdicts[place];
    if (verdict.code == Code::kOk) continue;
    if (verdict.rank == members[place].rank) return &verdict;
    if (heard == nullptr) heard = &verdict;
  }
  return heard;
}

// Nothing of the staged way is new, and one member alone has nobody to sum with.
Status try_out(Way way, DeviceBackend& backend, const Party& party) {
  if (way == Way::kStaged || party.team.size() == 1) return Status::ok();
  return pass_trial(backend, party);
}

// What came of a way: no backend where it went wrong for a member.
struct Attempt {
  std::unique_ptr<DeviceBackend> backend;
  Status status = Status::ok();
  std::size_t forms = 0;  // that were tried
};

Attempt attempt(Way way, const Party& party) {
  Attempt attempt;
  Result<std::unique_ptr<DeviceBackend>> made = make(way, party);
  if (party.mesh->abort().raised()) {
    attempt.status = party.mesh->abort().cause();
    return attempt;
  }
  attempt.status = all_went_well(party, made.status());
  if (!attempt.status) return attempt;
  attempt.forms = made.value()->forms();
  attempt.status = try_out(way, *made.value(), party);
  if (attempt.status) attempt.backend = made.take();
  return attempt;
}

void want_slices(Party& party) {
  for (Facts& member : party.members) put(member.ring, "slices");
}

void warn(const Party& party, const std::string& what, const Status& why) {
  if (party.team.place == 0)  // once for all
    log(Level::kWarning, kRoom, "device tensors do not go the way " + what + ": " + why.message);
}

Result<Agreed> agree_on(const std::vector<Way>& ways, Party party) {
  Status first = Status::ok();
  for (const Way way : ways) {
    Attempt last = attempt(way, party);
    if (last.forms > 1 && !last.status && !party.mesh->abort().raised()) {
      warn(party, "of a persistent ring", last.status);
      want_slices(party);
      last = attempt(way, party);
    }
    if (last.status) return Agreed{way, std::move(last.backend)};
    if (party.mesh->abort().raised()) return last.status;
    warn(party, std::string("'") + name_of(way) + "'", last.status);
    if (first) first = last.status;
  }
  return first;
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
  return Status::make(worst->code, worst->text.data(), kRoom, worst->rank);
}

Result<Agreed> meet(const Guest& guest, Mesh& mesh, Backend& cpu, const Team& team,
                    const AcceleratorOptions& options) {
  Party party{guest.device, &mesh, &cpu, team, {}};
  Result<std::vector<Facts>> members = tell_all(party, facts_of(guest, mesh.topology(), options));
  if (!members) return members.status();
  party.members = members.take();
  Status status = trouble_of(party.members);
  if (!status) return status;
  Result<std::vector<Way>> ways = choose(party.members);
  if (!ways) return ways.status();
  return agree_on(ways.value(), std::move(party));
}

}  // namespace hvd::cuda
