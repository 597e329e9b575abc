// What the fake NCCL knows. Never destroyed: the streams' threads may still look at it when the
// process ends.
//   clique    the members of a communicator
//   gate      where the members' streams come together for one collective operation
//   lane      messages from one member to another, in order
//   launch    a group of operations on its way to a stream, and on it
// One mutex guards everything; operations are completed while it is held.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/nccl/nccl.h"

namespace fake_nccl {

using hvd::cuda::NcclOp;
using hvd::cuda::NcclResult;
using hvd::cuda::NcclType;

enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kRecv };

struct Operation {
  Kind kind = Kind::kAllReduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  NcclType type = NcclType::kUint8;
  NcclOp op = NcclOp::kSum;
  int peer = 0;  // or root
  CUstream stream = nullptr;
  std::uint64_t number = 0;  // of the collective operations of its communicator
  bool done = false;
};

struct Collective {
  std::vector<Operation*> members;  // by rank
  int arrived = 0;
};

struct Pair {
  std::deque<Operation*> sent, received;
};

struct Clique {
  std::vector<int> devices;  // by rank; -1: not there yet
  int joined = 0;
  int finalized = 0;
  bool broken = false;
  std::map<std::uint64_t, Collective> collectives;
  std::map<std::pair<int, int>, Pair> pairs;  // from, to
};

struct Launch {
  std::shared_ptr<struct hvd::cuda::ncclComm> comm;
  std::vector<Operation> operations;
};

// A thread's group, while it is open. Not thread-local: the fake is loaded when threads run
// already, and what the loader does with their memory then looks like a race to ThreadSanitizer.
struct Group {
  int depth = 0;
  std::vector<std::pair<hvd::cuda::NcclHandle, Operation>> operations;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int version = 22803;
  bool start_held = false, launch_held = false, abort_held = false;
  std::map<int, NcclResult> refusals;  // by rank
  std::uint64_t ids = 0;
  std::map<std::uint64_t, std::shared_ptr<Clique>> cliques;
  std::map<hvd::cuda::NcclHandle, std::shared_ptr<struct hvd::cuda::ncclComm>> comms;
  std::map<std::string, std::size_t> calls;
  std::map<std::thread::id, Group> groups;
  std::set<std::string> said;  // every error's words, kept: their addresses are given out
  const char* last_error = "";
};

World& world();

}  // namespace fake_nccl

namespace hvd::cuda {

struct ncclComm {
  std::shared_ptr<fake_nccl::Clique> clique;
  int rank = 0, device = 0;
  bool ready = false, aborted = false, finalizing = false;
  NcclResult error = NcclResult::kSuccess;
  std::unique_ptr<fake_nccl::Launch> pending;  // not given to the stream yet
  int looks = 0;                               // at the pending one
  int running = 0;                             // launches on the stream
  std::uint64_t next = 0;
};

}  // namespace hvd::cuda

namespace fake_nccl {

using Comm = hvd::cuda::ncclComm;

// With the world's mutex held.
NcclResult refuse(NcclResult result, const std::string& why);
// Gives the pending launch to its stream.
NcclResult submit(const std::shared_ptr<Comm>& comm);
// All members have come: what the operation does. An error: they do not match.
std::string complete(const std::vector<Operation*>& members);

std::size_t size_of(NcclType type);

}  // namespace fake_nccl
