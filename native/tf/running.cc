#include "tf/running.h"

#include <mutex>
#include <set>

#include "tf/call.h"

namespace hvd::tf {
namespace {

// Never destroyed: TensorFlow deletes kernels while the process exits.
struct Nodes {
  std::mutex lock;
  std::set<const Node*> all;
};
Nodes& nodes() {
  static auto* const made = new Nodes;  // NOLINT(cppcoreguidelines-owning-memory): for ever
  return *made;
}

}  // namespace

Node::Node(const std::string* name) : name_(name) {
  const std::lock_guard<std::mutex> locked(nodes().lock);
  nodes().all.insert(this);
}

Node::~Node() {
  const std::lock_guard<std::mutex> locked(nodes().lock);
  nodes().all.erase(this);
}

std::string begun() {
  const std::set<std::int64_t> steps = steps_under_way();
  const std::lock_guard<std::mutex> locked(nodes().lock);
  std::string names;
  for (const Node* node : nodes().all) {
    if (steps.count(node->step()) > 0) names += node->name() + "\n";
  }
  return names;
}

}  // namespace hvd::tf
