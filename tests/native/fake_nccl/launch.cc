// A group of operations on the thread of a stream.
#include <cstring>

#include "fake_cuda/fake_cuda.h"
#include "fake_nccl/world.h"

namespace fake_nccl {
namespace {

void mark_broken(Clique& clique, const std::string& why) {
  clique.broken = true;
  for (const auto& [handle, comm] : world().comms) {
    if (comm->clique.get() == &clique && comm->error == NcclResult::kSuccess)
      comm->error = refuse(NcclResult::kInvalidUsage, "operations do not match: " + why);
  }
}

void come_to_collective(Clique& clique, int rank, Operation& operation) {
  Collective& collective = clique.collectives[operation.number];
  collective.members.resize(clique.devices.size());
  collective.members[static_cast<std::size_t>(rank)] = &operation;
  if (++collective.arrived < static_cast<int>(collective.members.size())) return;
  const std::string difference = complete(collective.members);
  if (!difference.empty()) return mark_broken(clique, difference);
  for (Operation* member : collective.members) member->done = true;
  clique.collectives.erase(operation.number);
}

void come_to_pair(Clique& clique, int rank, Operation& operation) {
  const bool sends = operation.kind == Kind::kSend;
  const auto way =
      sends ? std::make_pair(rank, operation.peer) : std::make_pair(operation.peer, rank);
  Pair& pair = clique.pairs[way];
  (sends ? pair.sent : pair.received).push_back(&operation);
  while (!pair.sent.empty() && !pair.received.empty()) {
    Operation& sent = *pair.sent.front();
    Operation& received = *pair.received.front();
    if (sent.count != received.count || sent.type != received.type)
      return mark_broken(clique, std::to_string(sent.count) + " elements sent, " +
                                     std::to_string(received.count) + " expected");
    std::memcpy(received.out, sent.in, sent.count * size_of(sent.type));
    sent.done = received.done = true;
    pair.sent.pop_front();
    pair.received.pop_front();
  }
}

// Whoever leaves without the others must not be waited for with memory that is gone.
void withdraw(Clique& clique, Launch& launch) {
  clique.broken = true;
  for (const Operation& operation : launch.operations) clique.collectives.erase(operation.number);
  clique.pairs.clear();
}

bool all_done(const Launch& launch) {
  for (const Operation& operation : launch.operations)
    if (!operation.done) return false;
  return true;
}

void run(void* argument) {
  const std::unique_ptr<Launch> launch(static_cast<Launch*>(argument));
  Comm& comm = *launch->comm;
  Clique& clique = *comm.clique;
  std::unique_lock<std::mutex> lock(world().mutex);
  for (Operation& operation : launch->operations) {
    if (comm.aborted || clique.broken) break;
    if (operation.kind == Kind::kSend || operation.kind == Kind::kRecv)
      come_to_pair(clique, comm.rank, operation);
    else
      come_to_collective(clique, comm.rank, operation);
  }
  world().changed.notify_all();
  world().changed.wait(lock, [&] { return comm.aborted || all_done(*launch); });
  if (!all_done(*launch)) withdraw(clique, *launch);
  --comm.running;
  world().changed.notify_all();
}

}  // namespace

NcclResult submit(const std::shared_ptr<Comm>& comm) {
  std::unique_ptr<Launch> launch = std::move(comm->pending);
  launch->comm = comm;
  for (Operation& operation : launch->operations) {
    const bool collective = operation.kind != Kind::kSend && operation.kind != Kind::kRecv;
    if (collective) operation.number = comm->next++;
  }
  ++comm->running;
  CUstream const stream = launch->operations.front().stream;
  if (fake_cuda_enqueue(stream, run, launch.get()) != 0) {
    --comm->running;
    return refuse(NcclResult::kUnhandledCudaError, "the stream does not take it");
  }
  static_cast<void>(launch.release());  // run() has it
  return NcclResult::kSuccess;
}

}  // namespace fake_nccl
