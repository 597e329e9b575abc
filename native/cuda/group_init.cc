#include "cuda/group_init.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "cuda/device/choice.h"
#include "cuda/device/pinned.h"
#include "cuda/group/self_test.h"
#include "cuda/nccl/nccl_backend.h"
#include "cuda/ring/ring_backend.h"
#include "cuda/staged/staged_backend.h"

namespace hvd::cuda {

namespace {

const char* const kAgreementRoom = "cuda/agreement";
constexpr double kWorth = 0.8;  // maximum share of the ring's time

// The result of a candidate: no backend if it failed on a member.
struct Candidate {
  BackendKind kind = BackendKind::kStaged;
  std::unique_ptr<DeviceBackend> backend;
  Status status = Status::ok();
  std::size_t algorithms = 0;  // tested
  double seconds = 0;          // of a sum; 0: not tested
};

Result<std::unique_ptr<DeviceBackend>> make(BackendKind kind, const BootstrapGroup& bootstrap) {
  switch (kind) {
    case BackendKind::kRing:
      return make_ring_backend(bootstrap);
    case BackendKind::kNccl:
      return make_nccl_backend(bootstrap);
    case BackendKind::kStaged:
      return make_staged_backend(bootstrap);
  }
  return Status::make(Code::kInternal, "there is no such backend", kAgreementRoom);
}

// The staged backend needs no test, and a single member has no peer.
Result<double> try_out(BackendKind kind, DeviceBackend& backend, const BootstrapGroup& bootstrap) {
  if (kind == BackendKind::kStaged || bootstrap.group.size() == 1) return 0.0;
  return run_self_test(backend, bootstrap);
}

Candidate attempt_once(BackendKind kind, const BootstrapGroup& bootstrap) {
  Candidate attempt;
  attempt.kind = kind;
  Result<std::unique_ptr<DeviceBackend>> made = make(kind, bootstrap);
  if (bootstrap.mesh->abort().raised()) {
    attempt.status = bootstrap.mesh->abort().cause();
    return attempt;
  }
  attempt.status = all_went_well(bootstrap, made.status());
  if (!attempt.status) return attempt;
  attempt.algorithms = made.value()->algorithms();
  const Result<double> seconds = try_out(kind, *made.value(), bootstrap);
  if (!seconds) {
    attempt.status = part_together(*made.value(), bootstrap, seconds.status());
    return attempt;
  }
  attempt.seconds = seconds.value();
  attempt.backend = made.take();
  return attempt;
}

void say(Level level, const BootstrapGroup& bootstrap, const std::string& what) {
  if (bootstrap.group.group_rank == 0)
    log(level, kAgreementRoom, "device tensors " + what);  // once for all
}

std::string quoted(BackendKind kind) { return std::string("'") + name_of(kind) + "'"; }

// If the persistent ring fails, the sliced one remains.
Candidate attempt(BackendKind kind, BootstrapGroup& bootstrap) {
  Candidate attempt = attempt_once(kind, bootstrap);
  if (attempt.status || attempt.algorithms < 2 || bootstrap.mesh->abort().raised()) return attempt;
  say(Level::kWarning, bootstrap, "do not use the persistent ring: " + attempt.status.message);
  for (PeerInfo& member : bootstrap.members) put(member.ring, "slices");
  return attempt_once(kind, bootstrap);
}

// A member frees its memory only when no other member has it mapped.
Status part_with(DeviceBackend& loser, const BootstrapGroup& bootstrap) {
  Status status = loser.finalize();
  if (status)
    status =
        wait_for_stream(*bootstrap.device, bootstrap.device->stream(), bootstrap.mesh->abort());
  status = all_went_well(bootstrap, status);
  return status ? part_together(loser, bootstrap, Status::ok()) : status;
}

// True if a later candidate could replace `best`.
bool is_timed_against(const Candidate& best, BackendKind kind) {
  return best.kind == BackendKind::kRing && kind == BackendKind::kNccl && best.seconds > 0;
}

// "" without a failure, or if another member reports it.
std::string notice_of(BackendKind kind, const std::vector<std::string>& failures,
                      const BootstrapGroup& bootstrap) {
  std::vector<std::string> reasons = failures;
  if (kind == BackendKind::kStaged) {
    const std::vector<std::string> facts = why_staged(bootstrap.members);
    reasons.insert(reasons.begin(), facts.begin(), facts.end());
  }
  if (reasons.empty() || bootstrap.group.group_rank != 0) return "";
  std::string text = kind == BackendKind::kStaged
                         ? "tensors on devices are reduced through host memory"
                         : "tensors on devices are reduced by " + quoted(kind);
  for (std::size_t i = 0; i < reasons.size(); ++i) text += (i == 0 ? ": " : "; ") + reasons[i];
  return text;
}

std::string in_ms(const Candidate& attempt) {
  return quoted(attempt.kind) + " took " + std::to_string(attempt.seconds * 1e3) + " ms";
}

}  // namespace

bool is_worth_it(double nccl, double ring) { return nccl < kWorth * ring; }

Result<ChosenBackend> agree_on(const std::vector<BackendKind>& candidates,
                               BootstrapGroup bootstrap) {
  Candidate best;
  Status first = Status::ok();
  std::vector<std::string> failures;
  for (const BackendKind kind : candidates) {
    const bool is_timed = best.backend != nullptr;
    if (is_timed && !is_timed_against(best, kind)) break;
    Candidate next = attempt(kind, bootstrap);
    if (!next.status) {
      if (bootstrap.mesh->abort().raised()) return next.status;
      if (is_timed)
        say(Level::kInfo, bootstrap, "do not use " + quoted(kind) + ": " + next.status.message);
      else
        failures.push_back(quoted(kind) + ": " + next.status.message);
      if (first) first = next.status;
      continue;
    }
    if (is_timed) {
      say(Level::kInfo, bootstrap,
          "were timed: a first sum by " + in_ms(best) + ", by " + in_ms(next));
      if (is_worth_it(next.seconds, best.seconds)) std::swap(best, next);
      if (Status status = part_with(*next.backend, bootstrap); !status) return status;
    } else {
      best = std::move(next);
    }
  }
  if (best.backend == nullptr) return first;
  return ChosenBackend{best.kind, std::move(best.backend),
                       notice_of(best.kind, failures, bootstrap)};
}

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
