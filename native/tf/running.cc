#include "tf/running.h"

#include <set>

#include "base/mutex.h"
#include "tf/call.h"

namespace hvd::tf {
namespace {

// Never destroyed: TensorFlow deletes kernels while the process exits.
struct Nodes {
  Mutex lock;
  std::set<const Node*> all GUARDED_BY(lock);
};
Nodes& nodes() {
  static auto* const made = new Nodes;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *made;
}

}  // namespace

Node::Node(const std::string* name) : name_(name) {
  Nodes& there = nodes();
  const MutexLock locked(there.lock);
  there.all.insert(this);
}

Node::~Node() {
  Nodes& there = nodes();
  const MutexLock locked(there.lock);
  there.all.erase(this);
}

std::string begun() {
  const std::set<std::int64_t> steps = steps_under_way();
  Nodes& there = nodes();
  const MutexLock locked(there.lock);
  std::string names;
  for (const Node* node : there.all) {
    if (steps.count(node->step()) > 0) names += node->name() + "\n";
  }
  return names;
}

}  // namespace hvd::tf
