#include "tf/call.h"

#include <array>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "tf/collectives.h"

namespace hvd::tf {

Counters counters{};

void count(std::int64_t* counter, std::int64_t more) {
  __atomic_fetch_add(counter, more, __ATOMIC_RELAXED);
}

namespace {

// The calls of one name and set.
struct Turns {
  std::int64_t step;  // of the call in the core
  std::deque<Call*> waiting;
};

// The calls in flight. Never destroyed: the core's threads may end calls while the process exits.
struct UnderWay {
  Mutex lock;
  std::map<std::pair<std::int32_t, std::string>, Turns> turns GUARDED_BY(lock);
};
UnderWay& under_way() {
  static auto* const all = new UnderWay;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *all;
}

bool is_first(Call* call) {
  UnderWay& all = under_way();
  const MutexLock locked(all.lock);
  const auto [entry, is_new] =
      all.turns.try_emplace({call->set, call->name}, Turns{call->step, {}});
  if (!is_new) entry->second.waiting.push_back(call);
  return is_new;
}

Call* after(const Call& call) {
  UnderWay& all = under_way();
  const MutexLock locked(all.lock);
  const auto entry = all.turns.find({call.set, call.name});
  Turns& turns = entry->second;
  if (turns.waiting.empty()) {
    all.turns.erase(entry);
    return nullptr;
  }
  Call* const next = turns.waiting.front();
  turns.waiting.pop_front();
  turns.step = next->step;
  return next;
}

void enqueue(Call* call);

void finish(Call* call, const Status& status) {
  if (Call* const next = after(*call)) enqueue(next);
  end(call, status);
}

void on_done(void* context, const hvd_outcome* outcome) {
  auto* const call = static_cast<Call*>(context);
  if (outcome->code != HVD_OK)
    return finish(call, failure(outcome->code, outcome->text, outcome->rank));
  finish(call, call->collective->take(*call, *outcome));
}

std::vector<DLTensor> views(const std::vector<void*>& data, const std::vector<DLDataType>& types,
                            std::vector<std::vector<std::int64_t>>* shapes) {
  std::vector<DLTensor> all;
  all.reserve(data.size());
  for (std::size_t i = 0; i < data.size(); ++i)
    all.push_back(view(data[i], types[i], &(*shapes)[i]));
  return all;
}

void enqueue(Call* call) {
  const Engine engine;
  if (!engine) return finish(call, not_initialized());
  hvd_request request{};
  request.struct_size = sizeof(request);
  call->collective->describe(&request);
  const std::vector<DLTensor> inputs = views(call->data, call->types, &call->shapes);
  const std::vector<DLTensor> outputs = views(call->output_data, call->types, &call->output_shapes);
  request.name = call->name.c_str();
  request.count = inputs.size();
  request.inputs = inputs.data();
  request.outputs = outputs.empty() ? nullptr : outputs.data();
  request.splits_count = call->splits.size();
  request.splits = call->splits.data();
  request.done = on_done;
  request.context = call;
  std::array<char, 1024> text{};
  const std::int32_t code = core()->enqueue(engine.get(), &request, text.data(), text.size());
  if (code != HVD_OK) finish(call, failure(code, text.data()));
}

}  // namespace

Call::Call(const Collective* what, TF_OpKernelContext* where, TF_AsyncOpKernelDoneCallback* ended)
    : collective(what), context(where), done(*reinterpret_cast<std::function<void()>*>(ended)) {
  count(&counters.calls);
}

void begin(Call* call) {
  if (is_first(call)) enqueue(call);
}

bool any_under_way() {
  UnderWay& all = under_way();
  const MutexLock locked(all.lock);
  return !all.turns.empty();
}

std::set<std::int64_t> steps_under_way() {
  UnderWay& all = under_way();
  const MutexLock locked(all.lock);
  std::set<std::int64_t> steps;
  for (const auto& [name, turns] : all.turns) {
    steps.insert(turns.step);
    for (const Call* call : turns.waiting) steps.insert(call->step);
  }
  return steps;
}

void end(Call* call, const Status& status) {
  if (!status) tf()->OpKernelContext_Failure(call->context, status.get());
  const std::function<void()> done = std::move(call->done);
  // First: TensorFlow may reuse the memory of held tensors.
  delete call;  // NOLINT(cppcoreguidelines-owning-memory): it owns itself until its end
  done();
}

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
