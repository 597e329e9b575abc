// Running operations of a graph: those that have begun in its waiting runs. The remaining
// operations of the graph are all that a rank may still request in such a run. Evaluated only by
// the deadlock check (hvd_kernel/tensorflow/blocked.py).
#pragma once

#include <cstdint>
#include <string>

namespace hvd::tf {

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
