// Running operations of a graph: which have begun in the runs of it that wait for others: what is
// left of the graph's is all that a rank may still ask for in such a run. For whoever asks why
// nothing goes on (hvd_kernel/tensorflow/deadlock.py): nothing here is worked out while something
// does.
#pragma once

#include <cstdint>
#include <string>

namespace hvd::tf {

// A node, as TensorFlow makes a kernel of it. The step is the number of a run.
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

// The names of the nodes that have begun in the steps in which calls are under way, one a line.
std::string begun();

}  // namespace hvd::tf
