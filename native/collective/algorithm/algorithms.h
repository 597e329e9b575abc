// The algorithms of the collectives on host memory, which cpu_backend.cc chooses among.
// moves.cc: broadcast, exchange, allgather. slices.cc: allreduce by direct exchange, by slices, in
// shared memory. ring.cc, hierarchical.cc (with the torus between hosts) and adasum.cc: one each.
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"
#include "tensor/reduce.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// Ring: the collectives as schedules. Every member holds two ends: a link to its right
// neighbour (group rank + 1) and one from its left neighbour. A schedule is what one member does
// with every segment, one verb per step:
//   send                    my input -> slot
//   recv_reduce_send        slot + my input -> slot
//   recv_reduce_copy_send   slot + my input, finished (divided, scaled, rounded) -> my output and
//                           slot
//   recv_copy_send          slot -> my output and slot
//   recv_reduce             slot + my input, finished -> my output
//   recv                    slot -> my output
// Allreduce on n members: slice o starts at group rank o + 1, is reduced by o + 2, ..., is finished
// by its owner o and then passed on for all members to copy. Reduce-scatter ends at the owner.
//
// Why no deadlock and no bubble: a member begins with `window` sends and then sends once per
// receive. It never has more than `window` messages more sent than received, and a window is
// one less than the slots of a link; so not every link of the ring can be full at once. Each step
// is executed for `window` segments before the next step, which gives a neighbour that much time.

enum class Verb { kSend, kRecvReduceSend, kRecvReduceCopySend, kRecvCopySend, kRecvReduce, kRecv };

struct Step {
  Verb verb;
  std::size_t chunk;
};

using Schedule = std::vector<Step>;

Schedule allreduce_schedule(int group_rank, int size);
Schedule reduce_scatter_schedule(int group_rank, int size);
Schedule allgather_schedule(int group_rank, int size);
Schedule broadcast_schedule(int group_rank, int size, int root);

// All members execute their schedules over plans of the same shape. Partial sums travel in the wire
// dtype, everything else as it is; a plain copy is one of bytes (kUint8).
Status execute(CommunicatorContext& context, const Schedule& schedule, const Plan& plan,
               const Reduction& reduction);

// Broadcast: the root's bytes to everybody: written to all by the root itself (star), or passed
// from member to member (chain). A star is one exchange, but the root copies for all.

enum class Shape { kStar, kChain };

Shape broadcast_shape(const CommunicatorContext& context, std::size_t bytes,
                      std::size_t segment_bytes);

// Operands in bytes. The root's own outputs are not written.
Status broadcast(CommunicatorContext& context, const std::vector<Operand>& operands, int root,
                 Shape shape, std::size_t segment_bytes);

// Exchange: every member sends to all members: alltoall, and allgather with the same data for all.
// Plans are in bytes; chunk p is sent to group rank p or received from it. Sender and receiver
// split alike, and empty pieces are not sent.

// Chunk p of `out` is sent to group rank p; chunk p of `in` is received from it. Own chunks are
// ignored.
Status exchange(CommunicatorContext& context, const Plan& out, const Plan& in);
// The own chunk is sent to all; chunk p is received from group rank p.
Status exchange_same(CommunicatorContext& context, const Plan& plan);

// Allgather: every member's block to all members. Direct: each sends its block to all. Ring: blocks
// are passed from neighbour to neighbour. By hosts: blocks within the host, whole hosts' blocks
// between one leader per host (its lowest group rank), which distributes them.

enum class GatherAlgorithm { kDirect, kRing, kByHosts };

GatherAlgorithm gather_algorithm(const CommunicatorContext& context,
                                 const std::vector<Gather>& tensors, bool by_hosts);

Status allgather(Mesh& mesh, CommunicatorContext& context, const std::vector<Gather>& tensors,
                 GatherAlgorithm algorithm, std::size_t segment_bytes);

// Direct: every member sends its whole input to all members and folds everything itself: one
// exchange. For operations that fit into one slot.

Status direct(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
              const Reduction& reduction);
// The same for inputs that were sent already: without prescale factors.
Status direct_sent(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                   const Reduction& reduction);
// The same for inputs at the addresses in context.seen().
void direct_fold(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                 const Reduction& reduction);

// Slices: each member owns a slice, receives it from all members, folds it and sends the result to
// all. Every element is copied in once and out once; everything but the fold is plain copying.
//   input    a slot's contents on the way to the owner: a segment of its slice, prescaled
//   result   a slot's contents on the way back
// Slots (plan.h): with lags of 0, 1, 2 a link carries input(b), result(b - 1), input(b + 1),
// ... and up to four of them may be in flight at once; without lags two.

enum class Results { kToAll, kToOwner };  // kToOwner: reducescatter

// Chunk o of the plan belongs to group rank o.
Status slices(CommunicatorContext& context, Order& order, const Plan& plan,
              const Reduction& reduction, Results results);

// Shared memory: tensors are in the shared heap, and the owner of a slice reads it from all
// members' memory and writes the result to all. Nothing is copied; one exchange at the end notifies
// all members that all slices are done. All inputs are known to be ready from the preceding
// agreement.

// The member of group rank p has every operand at out + offsets[p], as this process sees it.
Status shared(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
              const std::vector<std::ptrdiff_t>& offsets, const Reduction& reduction);

// Torus allreduce between hosts: rings along the rows of a grid of hosts reduce and scatter, rings
// along its columns reduce the scattered parts, rows gather (Ying et al., 2018,
// https://arxiv.org/abs/1811.06992). n hosts need 2 (rows - 1) + 2 (columns - 1) steps, 512 hosts
// 92 instead of a ring's 1022, with the same bytes on every link. A single line of hosts is a ring.

// The exchange between hosts: this rank and the workers with the same slices on other hosts.
struct HostParts {
  std::vector<int> workers;                  // group ranks, by host
  std::vector<std::vector<Operand>> chunks;  // by host: the slices whose home it is, in place
};

// The parts, unscaled, become results, in the order of Order::fold_hosts.
Status torus(Mesh& mesh, const CommunicatorContext& context, const HostParts& parts,
             const HostGrid& grid, Reduction reduction, std::size_t segment_bytes);

// Hierarchical allreduce, on a group that spans hosts: within each host, between the hosts, within
// each host.
//   worker   of a slice on a host: the member that works on that slice there. If all hosts have the
//            same number of members it is the one with the owner's number within its host, so that
//            all members work and all connections are used; otherwise the first member of the host
//            works on everything.
//   part     the partial result of a host's members for a slice, folded by its worker
//   home     of a slice: its owner's host, whose worker folds the parts of all hosts
// Five stages: inputs to the workers of the host; parts home; results to the other hosts' workers;
// results of other hosts to the members here; copy out. A slot carries all slices of a
// batch from one member to another. Between many hosts, where that would be many small messages,
// parts and results travel along a torus of workers instead (torus).

// The workers of all slices, the same on all ranks.
class Roles {
 public:
  explicit Roles(const CommunicatorContext& context);
  int worker(int host, int slice) const;
  // The slices that a member works on, ascending.
  const std::vector<int>& work_of(int group_rank) const {
    return work_[static_cast<std::size_t>(group_rank)];
  }
  std::size_t most_work() const;

 private:
  const CommunicatorContext& context_;
  bool even_ = true;
  std::vector<int> number_;             // of a member within its host
  std::vector<std::vector<int>> work_;  // by group rank
};

struct HierarchyRules {
  std::size_t segment_bytes;  // bytes of a slot that are filled at a time
  int torus_hosts;            // minimum number of hosts for a torus
};

// Needs an order by host.
Status hierarchical(Mesh& mesh, CommunicatorContext& context, Order& order,
                    const std::vector<Operand>& operands, const Reduction& reduction,
                    const HierarchyRules& rules);

// Adasum: a sum of two vectors that does not count their common part twice,
//   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
// which is a + b when they are orthogonal and their mean when they are the same. More than two are
// combined pair by pair: group ranks p and p xor 1, then the results of p and p xor 2, and so
// on. Of a group whose size is no power of two the last members first join the first ones, pair by
// pair. Dot products are summed in float64. A vector whose square is below the root of the smallest
// double is used unchanged. Partial results are kept in the wire dtype and rounded once, at the
// end.

// Every operand is a separate vector. dtype: one that can_reduce with Adasum. All ranks get the
// same bytes. Needs memory for one copy of the operands in the wire dtype, and for one more in
// their own dtype if it differs.
Status adasum(Mesh& mesh, const Group& group, const std::vector<Operand>& operands, Dtype dtype,
              const Scaling& scaling);

}  // namespace hvd
