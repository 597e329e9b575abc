// NCCL's functions, under NCCL's names.
#include <cstring>

#include "fake_cuda/fake_cuda.h"
#include "fake_nccl/fake_nccl.h"
#include "fake_nccl/world.h"

namespace fake_nccl {

World& world() {
  static World& all = *new World;  // NOLINT(cppcoreguidelines-owning-memory): never destroyed
  return all;
}

NcclResult refuse(NcclResult result, const std::string& why) {
  world().last_error = world().said.insert(why).first->c_str();
  return result;
}

namespace {

Group& this_group() { return world().groups[std::this_thread::get_id()]; }

std::unique_lock<std::mutex> entered(const char* name) {
  std::unique_lock<std::mutex> lock(world().mutex);
  ++world().calls[name];
  return lock;
}

std::shared_ptr<Comm> find(hvd::cuda::NcclHandle handle) {
  const auto found = world().comms.find(handle);
  return found == world().comms.end() ? nullptr : found->second;
}

NcclResult gone() { return refuse(NcclResult::kInvalidArgument, "the communicator is gone"); }

bool on_device(const void* memory, int device) {
  int ordinal = -1;
  return cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                               reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS &&
         ordinal == device;
}

bool reads(const Comm& comm, const Operation& operation) {
  if (operation.kind == Kind::kBroadcast) return operation.peer == comm.rank;
  return operation.kind != Kind::kRecv;
}

bool writes(const Comm& comm, const Operation& operation) {
  if (operation.kind == Kind::kReduce) return operation.peer == comm.rank;
  return operation.kind != Kind::kSend;
}

NcclResult check(const Comm& comm, const Operation& operation) {
  if (!comm.ready || comm.pending != nullptr || comm.finalizing)
    return refuse(NcclResult::kInvalidUsage, "the last call has not gone through");
  if (comm.error != NcclResult::kSuccess) return comm.error;
  if (fake_cuda_current_device() != comm.device)
    return refuse(NcclResult::kInvalidUsage, "another device is current");
  const auto n = static_cast<int>(comm.clique->devices.size());
  if (operation.peer < 0 || operation.peer >= n)
    return refuse(NcclResult::kInvalidArgument, "there is no such rank");
  if (operation.count == 0) return NcclResult::kSuccess;
  if ((reads(comm, operation) && !on_device(operation.in, comm.device)) ||
      (writes(comm, operation) && !on_device(operation.out, comm.device)))
    return refuse(NcclResult::kInvalidArgument, "not the device's memory");
  return NcclResult::kSuccess;
}

NcclResult add(const char* name, hvd::cuda::NcclHandle handle, const Operation& operation) {
  const auto lock = entered(name);
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return gone();
  Group& group = this_group();
  if (group.depth == 0)
    return refuse(NcclResult::kInvalidUsage, "the fake takes operations in groups only");
  const NcclResult result = check(*comm, operation);
  if (result == NcclResult::kSuccess) group.operations.emplace_back(handle, operation);
  return result;
}

NcclResult end_group(const Group& group) {
  if (group.operations.empty()) return NcclResult::kSuccess;
  const hvd::cuda::NcclHandle handle = group.operations.front().first;
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return gone();
  comm->pending = std::make_unique<Launch>();
  comm->looks = 0;
  for (const auto& [of, operation] : group.operations) {
    if (of != handle || operation.stream != group.operations.front().second.stream)
      return refuse(NcclResult::kInvalidUsage, "the fake takes one communicator, one stream");
    comm->pending->operations.push_back(operation);
  }
  return NcclResult::kInProgress;
}

bool two_on_one_device(const Clique& clique) {
  const std::set<int> different(clique.devices.begin(), clique.devices.end());
  return different.size() < clique.devices.size();
}

NcclResult state_of(const std::shared_ptr<Comm>& comm) {
  Clique& clique = *comm->clique;
  if (comm->error != NcclResult::kSuccess) return comm->error;
  if (!comm->ready) {
    if (world().start_held || clique.joined < static_cast<int>(clique.devices.size()))
      return NcclResult::kInProgress;
    if (two_on_one_device(clique)) {
      comm->error = refuse(NcclResult::kInvalidUsage, "Duplicate GPU detected");
      return comm->error;
    }
    comm->ready = true;
  }
  if (comm->pending != nullptr) {
    // The second look finds it on the stream.
    return world().launch_held || ++comm->looks < 2 ? NcclResult::kInProgress : submit(comm);
  }
  const bool all = clique.finalized == static_cast<int>(clique.devices.size());
  return comm->finalizing && (comm->running > 0 || !all) ? NcclResult::kInProgress
                                                         : NcclResult::kSuccess;
}

}  // namespace
}  // namespace fake_nccl

using fake_nccl::add;
using fake_nccl::Comm;
using fake_nccl::entered;
using fake_nccl::find;
using fake_nccl::gone;
using fake_nccl::Kind;
using fake_nccl::Operation;
using fake_nccl::refuse;
using fake_nccl::world;
using hvd::cuda::NcclConfig;
using hvd::cuda::NcclHandle;
using hvd::cuda::NcclId;
using hvd::cuda::NcclOp;
using hvd::cuda::NcclResult;
using hvd::cuda::NcclType;

extern "C" {

NcclResult ncclGetVersion(int* version) {
  const auto lock = entered("ncclGetVersion");
  *version = world().version;
  return NcclResult::kSuccess;
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "no error";
    case NcclResult::kUnhandledCudaError:
      return "unhandled cuda error";
    case NcclResult::kSystemError:
      return "unhandled system error";
    case NcclResult::kInternalError:
      return "internal error";
    case NcclResult::kInvalidArgument:
      return "invalid argument";
    case NcclResult::kInvalidUsage:
      return "invalid usage";
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(NcclHandle /*comm*/) {
  const auto lock = entered("ncclGetLastError");
  return world().last_error;
}

NcclResult ncclGetUniqueId(NcclId* id) {
  const auto lock = entered("ncclGetUniqueId");
  const std::uint64_t number = ++world().ids;
  *id = {};
  std::memcpy(id->bytes, &number, sizeof number);
  return NcclResult::kSuccess;
}

NcclResult ncclCommInitRankConfig(NcclHandle* handle, int ranks, NcclId id, int rank,
                                  NcclConfig* config) {
  const auto lock = entered("ncclCommInitRankConfig");
  const auto refusal = world().refusals.find(rank);
  if (refusal != world().refusals.end()) {
    const NcclResult result = refusal->second;
    world().refusals.erase(refusal);
    return refuse(result, "refused by the test");
  }
  if (config == nullptr || config->size != sizeof(NcclConfig) || config->magic != 0xcafebeefU ||
      config->blocking != 0)
    return refuse(NcclResult::kInvalidArgument, "not the configuration of a non-blocking one");
  if (rank < 0 || rank >= ranks) return refuse(NcclResult::kInvalidArgument, "no such rank");
  std::uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  if (number == 0 || number > world().ids)
    return refuse(NcclResult::kInvalidArgument, "nobody made this id");
  std::shared_ptr<fake_nccl::Clique>& clique = world().cliques[number];
  if (clique == nullptr) clique = std::make_shared<fake_nccl::Clique>();
  clique->devices.resize(static_cast<std::size_t>(ranks), -1);
  const auto comm = std::make_shared<Comm>();
  comm->clique = clique;
  comm->rank = rank;
  comm->device = fake_cuda_current_device();
  clique->devices[static_cast<std::size_t>(rank)] = comm->device;
  ++clique->joined;
  *handle = comm.get();
  world().comms[comm.get()] = comm;
  return NcclResult::kInProgress;
}

NcclResult ncclCommGetAsyncError(NcclHandle handle, NcclResult* error) {
  const auto lock = entered("ncclCommGetAsyncError");
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return gone();
  *error = fake_nccl::state_of(comm);
  return NcclResult::kSuccess;
}

NcclResult ncclCommFinalize(NcclHandle handle) {
  const auto lock = entered("ncclCommFinalize");
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return gone();
  if (comm->finalizing || comm->pending != nullptr)
    return refuse(NcclResult::kInvalidUsage, "the last call has not gone through");
  comm->finalizing = true;
  ++comm->clique->finalized;
  return NcclResult::kInProgress;
}

NcclResult ncclCommDestroy(NcclHandle handle) {
  const auto lock = entered("ncclCommDestroy");
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return gone();
  if (!comm->finalizing || fake_nccl::state_of(comm) != NcclResult::kSuccess)
    return refuse(NcclResult::kInvalidUsage, "destroyed before it was finalized");
  world().comms.erase(handle);
  return NcclResult::kSuccess;
}

NcclResult ncclCommAbort(NcclHandle handle) {
  auto lock = entered("ncclCommAbort");
  const std::shared_ptr<Comm> comm = find(handle);
  if (comm == nullptr) return gone();
  world().changed.wait(lock, [] { return !world().abort_held; });
  comm->aborted = true;
  world().changed.notify_all();
  world().comms.erase(handle);
  return NcclResult::kSuccess;
}

NcclResult ncclGroupStart() {
  const auto lock = entered("ncclGroupStart");
  ++fake_nccl::this_group().depth;
  return NcclResult::kSuccess;
}

NcclResult ncclGroupEnd() {
  const auto lock = entered("ncclGroupEnd");
  fake_nccl::Group& group = fake_nccl::this_group();
  if (group.depth == 0) return refuse(NcclResult::kInvalidUsage, "there is no group to end");
  if (--group.depth > 0) return NcclResult::kSuccess;
  const NcclResult result = fake_nccl::end_group(group);
  world().groups.erase(std::this_thread::get_id());
  return result;
}

NcclResult ncclAllReduce(const void* in, void* out, std::size_t count, NcclType type, NcclOp op,
                         NcclHandle comm, CUstream stream) {
  return add("ncclAllReduce", comm,
             {Kind::kAllReduce, in, out, count, type, op, 0, stream, 0, false});
}

NcclResult ncclReduce(const void* in, void* out, std::size_t count, NcclType type, NcclOp op,
                      int root, NcclHandle comm, CUstream stream) {
  return add("ncclReduce", comm, {Kind::kReduce, in, out, count, type, op, root, stream, 0, false});
}

NcclResult ncclReduceScatter(const void* in, void* out, std::size_t count, NcclType type, NcclOp op,
                             NcclHandle comm, CUstream stream) {
  return add("ncclReduceScatter", comm,
             {Kind::kReduceScatter, in, out, count, type, op, 0, stream, 0, false});
}

NcclResult ncclBroadcast(const void* in, void* out, std::size_t count, NcclType type, int root,
                         NcclHandle comm, CUstream stream) {
  return add("ncclBroadcast", comm,
             {Kind::kBroadcast, in, out, count, type, NcclOp::kSum, root, stream, 0, false});
}

NcclResult ncclAllGather(const void* in, void* out, std::size_t count, NcclType type,
                         NcclHandle comm, CUstream stream) {
  return add("ncclAllGather", comm,
             {Kind::kAllGather, in, out, count, type, NcclOp::kSum, 0, stream, 0, false});
}

NcclResult ncclSend(const void* in, std::size_t count, NcclType type, int peer, NcclHandle comm,
                    CUstream stream) {
  return add("ncclSend", comm,
             {Kind::kSend, in, nullptr, count, type, NcclOp::kSum, peer, stream, 0, false});
}

NcclResult ncclRecv(void* out, std::size_t count, NcclType type, int peer, NcclHandle comm,
                    CUstream stream) {
  return add("ncclRecv", comm,
             {Kind::kRecv, nullptr, out, count, type, NcclOp::kSum, peer, stream, 0, false});
}

void fake_nccl_set_version(int version) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().version = version;
}

void fake_nccl_hold_start(int held) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().start_held = held != 0;
}

void fake_nccl_hold_launch(int held) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().launch_held = held != 0;
}

void fake_nccl_refuse_start(int rank, int result) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().refusals[rank] = static_cast<NcclResult>(result);
}

void fake_nccl_break(int rank, int result) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  for (const auto& [handle, comm] : world().comms) {
    comm->clique->broken = true;
    if (comm->rank == rank)
      comm->error = refuse(static_cast<NcclResult>(result), "broken by the test");
  }
}

void fake_nccl_hold_abort(int held) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().abort_held = held != 0;
  world().changed.notify_all();
}

std::size_t fake_nccl_communicators() {
  const std::lock_guard<std::mutex> lock(world().mutex);
  return world().comms.size();
}

std::size_t fake_nccl_calls(const char* function) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto found = world().calls.find(function);
  return found == world().calls.end() ? 0 : found->second;
}

void fake_nccl_reset() {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().version = 22803;
  world().start_held = world().launch_held = world().abort_held = false;
  world().refusals.clear();
  world().changed.notify_all();
}

}  // extern "C"
