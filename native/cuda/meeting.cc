#include "cuda/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/fd.h"
#include "cuda/device/choice.h"
#include "cuda/nccl/nccl_backend.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/meeting";

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
  facts.time_limit = device.attribute(CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT) == 1 ? 1 : 0;
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
      return Status::make(Code::kUnavailable, text_in(member.trouble), kRoom, member.rank);
  return Status::ok();
}

}  // namespace

Result<Agreed> meet(const Guest& guest, Mesh& mesh, Backend& cpu, const Team& team,
                    const AcceleratorOptions& options) {
  Party party{guest.device, &mesh, &cpu, team, {}, options.trial_seconds};
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
