#include "cuda/group_init.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/fd.h"
#include "cuda/device/choice.h"
#include "cuda/nccl/nccl_backend.h"
#include "cuda/ring/ring_algorithm.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/group_init";

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

void describe(const Device& device, PeerInfo& info) {
  info.uuid = device.uuid();
  info.reachables = static_cast<std::uint32_t>(device.reachable().size());
  std::copy(device.reachable().begin(), device.reachable().end(), info.reachable.begin());
  info.word_operations = device.has_word_operations() ? 1 : 0;
  info.multiprocessors =
      static_cast<std::uint32_t>(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  info.time_limit = device.attribute(CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT) == 1 ? 1 : 0;
}

PeerInfo info_of(const LocalDevice& local, const Topology& topology,
                 const AcceleratorOptions& options) {
  PeerInfo info;
  info.rank = topology.rank;
  info.host = topology.host_of[static_cast<std::size_t>(topology.rank)];
  info.pid = ::getpid();
  info.process = this_process();
  info.nccl = options.operations == "ring" || options.operations == "staged" ? 0 : nccl_version();
  info.arena_bytes = options.arena_bytes;
  put(info.operations, options.operations);
  put(info.ring, options.ring);
  if (local.device != nullptr)
    describe(*local.device, info);
  else
    put(info.trouble, local.trouble.message);
  return info;
}

// A ring that was requested but is impossible is an error, not a reason to use host memory.
Status check_ring(const std::vector<BackendKind>& candidates,
                  const std::vector<PeerInfo>& members) {
  if (std::find(candidates.begin(), candidates.end(), BackendKind::kRing) == candidates.end())
    return Status::ok();
  return ring_algorithms(members).status();
}

Status trouble_of(const std::vector<PeerInfo>& members) {
  for (const PeerInfo& member : members)
    if (member.trouble.front() != '\0')
      return Status::make(Code::kUnavailable, text_in(member.trouble), kRoom, member.rank);
  return Status::ok();
}

}  // namespace

Result<ChosenBackend> init_backend(const LocalDevice& local, Mesh& mesh, Backend& cpu,
                                   const Group& group, const AcceleratorOptions& options,
                                   KnownDevices& known) {
  BootstrapGroup bootstrap{local.device, &mesh, &cpu, group, {}, options.self_test_seconds};
  PeerInfo mine = info_of(local, mesh.topology(), options);
  known.describe(mine, mesh.topology(), group);
  Result<std::vector<PeerInfo>> members = bootstrap_allgather(bootstrap, mine);
  if (!members) return members.status();
  bootstrap.members = members.take();
  Status status = trouble_of(bootstrap.members);
  if (!status) return status;
  known.record(bootstrap.members);
  Result<std::vector<BackendKind>> candidates = choose(bootstrap.members);
  if (!candidates) return candidates.status();
  status = check_ring(candidates.value(), bootstrap.members);
  if (!status) return status;
  return agree_on(candidates.value(), std::move(bootstrap));
}

}  // namespace hvd::cuda
