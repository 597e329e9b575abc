// One call of a kernel: the state shared by TensorFlow and the core until the operation has ended.
//
// Names. Ranks match operations by name, so it must be equal on all ranks, and a name may be in
// flight only once.
//   eager: the caller's name, which comes as a tensor of bytes (the ticket): TensorFlow keeps a
//     kernel for every value of an attribute, 35 KB and 400 us each. Without one it is the type of
//     the op, "HvdAllreduce": calls of one thread end before the next one begins, in the same order
//     on all ranks.
//   in a graph: the node's name, as in Horovod: unique in a graph, and by the place of the call
//     ("outer/PartitionedCall_1/HorovodAllreduce_x") where a function is called twice in it. Equal
//     graphs have equal names. Parts like "_12", with which TensorFlow numbers what it unfolds of a
//     cond or a loop, are left out: they count what else is in the graph, such as a summary on rank
//     0. With ignore_name_scope the last part alone.
//   in a loop: several turns may be under way at a time, so the number of the turn is added, modulo
//     kTurns.
//   otherwise (one function in two threads, two outer turns of nested loops): a second call waits
//     until the first has ended: the n-th call of a name on one rank meets the n-th on the others.
//     Where threads begin such calls in another order on each rank, they must be given names.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tf/core.h"
#include "tf/foreign.h"

namespace hvd::tf {

class Collective;

struct Call {
  Call(const Collective* what, TF_OpKernelContext* where, TF_AsyncOpKernelDoneCallback* done);

  const Collective* collective;
  TF_OpKernelContext* context;
  std::function<void()> done;  // copied: TensorFlow's is destroyed when compute returns

  std::string name;
  std::int32_t set = 0;
  std::int64_t step = 0;     // number of the graph's run
  std::vector<Tensor> held;  // kept until the end: inputs that were not forwarded, outputs
  std::vector<DLDataType> types;
  std::vector<std::vector<std::int64_t>> shapes, output_shapes;
  std::vector<void*> data, output_data;
  std::vector<std::int64_t> splits;
};

constexpr std::int64_t kTurns = 32;  // more than run concurrently: TensorFlow's default is 10

// Enqueue the call in the core as soon as no other one of its name is in flight. The call deletes
// itself at its end.
void begin(Call* call);
bool any_under_way();
// The runs of graphs in which calls have begun and not ended.
std::set<std::int64_t> steps_under_way();
// Ends a call that the core has not taken: with a failure, or well.
void end(Call* call, const Status& status);

// What has been counted so far: hvd_tf_counters.
struct Counters {
  std::int64_t calls, forwarded, given, returned, steps, samples;
};
extern Counters counters;
void count(std::int64_t* counter, std::int64_t more = 1);

// Running operations of a graph: those that have begun in its waiting runs. The remaining
// operations of the graph are all that a rank may still request in such a run. Evaluated only by
// the deadlock check (hvd_kernel/tensorflow/blocked.py).

// A node with a kernel. The step is the number of a run.
class Node {
 public:
  explicit Node(const std::string* name);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  void begin(std::int64_t step) const { __atomic_store_n(&step_, step, __ATOMIC_RELAXED); }
  std::int64_t step() const { return __atomic_load_n(&step_, __ATOMIC_RELAXED); }
  const std::string& name() const { return *name_; }

 private:
  const std::string* name_;
  mutable std::int64_t step_ = 0;
};

// The names of the nodes that have begun in steps with calls in flight, one per line.
std::string begun();

}  // namespace hvd::tf
