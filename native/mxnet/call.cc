#include "mxnet/call.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace hvd::mxnet {

Counters counters{};

namespace {

using plugin::core;

void enqueue(Call* call);

// The calls of each name, in the order in which they were pushed, one at a time. Never destroyed:
// the core's threads may end calls while the process exits.
struct Order {
  Mutex lock;
  // By set and name.
  std::map<std::pair<std::int32_t, std::string>, std::deque<Call*>> queues GUARDED_BY(lock);
};
Order& order() {
  static auto* const all = new Order;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *all;
}

// Remove the call from its queue; return the next call if it is ready.
Call* leave(Call* call) {
  Order& all = order();
  const MutexLock locked(all.lock);
  if (!call->queued) return nullptr;
  call->queued = false;
  const auto entry = all.queues.find({call->set, call->name});
  std::deque<Call*>& queue = entry->second;
  const bool was_first = queue.front() == call;
  queue.erase(std::find(queue.begin(), queue.end(), call));
  if (!queue.empty()) return was_first && queue.front()->is_ready ? queue.front() : nullptr;
  all.queues.erase(entry);
  return nullptr;
}

// Called when the call is pushed.
void join_queue(Call* call) {
  Order& all = order();
  const MutexLock locked(all.lock);
  all.queues[{call->set, call->name}].push_back(call);
  call->queued = true;
}

// Called when the call may run: enqueue it now, or after the earlier calls of its name.
void enqueue_in_order(Call* call) {
  Order& all = order();
  {
    const MutexLock locked(all.lock);
    call->is_ready = true;
    if (all.queues.at({call->set, call->name}).front() != call) return;
  }
  enqueue(call);
}

// Called once, when the call has ended or will never run.
void enqueue_next(Call* call) {
  if (Call* const next = leave(call)) enqueue(next);
}

// MXNet's numbers (mshadow::TypeFlag).
constexpr std::array<plugin::Type, 8> kTypes{{{0, {kDLFloat, 32, 1}},
                                              {1, {kDLFloat, 64, 1}},
                                              {2, {kDLFloat, 16, 1}},
                                              {3, {kDLUInt, 8, 1}},
                                              {4, {kDLInt, 32, 1}},
                                              {5, {kDLInt, 8, 1}},
                                              {6, {kDLInt, 64, 1}},
                                              {7, {kDLBool, 8, 1}}}};

void count(std::int64_t* counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

// Python finds the class by the text before the colon, as for MXNet's own errors.
std::string text_of(std::int32_t code, const std::string& text, std::int32_t rank) {
  const std::string error = plugin::error_class(code);
  if (error.empty()) return "ValueError: " + text;
  const std::string whose = rank < 0 ? "" : "[rank " + std::to_string(rank) + "] ";
  return "hvd_kernel.errors." + error + ": " + whose + text;
}

// Ends the call for MXNet, which may drop it at once.
void finish(Call* call, const std::string& failure) {
  const OnComplete ended = call->on_complete;
  enqueue_next(call);
  count(&counters.ended);
  if (failure.empty()) return ended.callback(ended.engine, ended.operation, nullptr);
  const std::runtime_error error(failure);  // MXNet copies it
  ended.callback(ended.engine, ended.operation, &error);
}

void on_done(void* context, const hvd_outcome* outcome) {
  const bool well = outcome->code == HVD_OK;
  finish(static_cast<Call*>(context),
         well ? "" : text_of(outcome->code, outcome->text, outcome->rank));
}

std::vector<DLTensor> views(const std::vector<void*>& data, const std::vector<DLDataType>& types,
                            std::vector<std::vector<std::int64_t>>* shapes) {
  std::vector<DLTensor> all;
  all.reserve(data.size());
  for (std::size_t i = 0; i < data.size(); ++i)
    all.push_back(plugin::view(data[i], types[i], &(*shapes)[i]));
  return all;
}

bool find_memory(const std::vector<Array>& arrays, std::vector<void*>* data) {
  for (const Array array : arrays) {
    if (mxnet()->NDArrayGetData(array, &data->emplace_back()) != 0) return false;
  }
  return true;
}

// Runs on a thread of MXNet's engine and does not block.
void run(void* /*context*/, void* on_complete, void* argument) {
  auto* const call = static_cast<Call*>(argument);
  call->on_complete = *static_cast<OnComplete*>(on_complete);
  count(&counters.run);
  enqueue_in_order(call);
}

void drop(void* argument) {
  const std::unique_ptr<Call> call(static_cast<Call*>(argument));
  enqueue_next(call.get());  // it never ran
  count(&counters.dropped);
}

std::string read_type_and_shape(Call* call, Array array) {
  int number = -1, dimensions = -1;
  const std::int64_t* shape = nullptr;
  if (mxnet()->NDArrayGetDType(array, &number) != 0) return mxnet()->GetLastError();
  if (mxnet()->NDArrayGetShapeEx64(array, &dimensions, &shape) != 0) return mxnet()->GetLastError();
  if (!plugin::dlpack_type(kTypes, number, &call->types.emplace_back()))
    return "MXNet's type " + std::to_string(number) + " of a tensor of " + call->name +
           " is not supported; cast it to another one";
  if (dimensions < 0) return "a tensor of " + call->name + " has no shape yet";
  call->shapes.emplace_back(shape, shape + dimensions);
  return "";
}

std::string read(Call* call, const Request& request) {
  for (int i = 0; i < request.count; ++i) {
    for (const bool output : {false, true}) {
      const Array source = (output ? request.outputs : request.inputs)[i];
      Array* const copy = &(output ? call->outputs : call->inputs).emplace_back();
      if (mxnet()->ShallowCopyNDArray(source, copy) != 0) return mxnet()->GetLastError();
    }
    if (std::string why = read_type_and_shape(call, call->inputs.back()); !why.empty()) return why;
    int dimensions = 0;
    const std::int64_t* shape = nullptr;
    if (mxnet()->NDArrayGetShapeEx64(call->outputs.back(), &dimensions, &shape) != 0)
      return mxnet()->GetLastError();
    call->output_shapes.emplace_back(shape, shape + std::max(dimensions, 0));
  }
  return "";
}

// Arrays with distinct memory: MXNet's engine would deadlock on memory that is named twice.
std::vector<Array> distinct(const std::vector<Array>& arrays, const std::vector<Array>& others) {
  const auto has = [](const std::vector<Array>& in, Array array) {
    return std::any_of(in.begin(), in.end(),
                       [array](Array other) { return memory_of(other) == memory_of(array); });
  };
  std::vector<Array> left;
  for (const Array array : arrays) {
    if (!has(left, array) && !has(others, array)) left.push_back(array);
  }
  return left;
}

void enqueue(Call* call) {
  std::vector<void*> data, output_data;
  if (!find_memory(call->inputs, &data) || !find_memory(call->outputs, &output_data))
    return finish(call, mxnet()->GetLastError());
  const plugin::Engine engine;
  if (!engine) return finish(call, text_of(HVD_SHUTDOWN, plugin::kNotInitialized, -1));
  // Copies, valid until enqueue() returns: the operation may end within it, and MXNet drop the
  // call.
  const std::string name = call->name;
  std::vector<std::vector<std::int64_t>> shapes = std::move(call->shapes);
  std::vector<std::vector<std::int64_t>> output_shapes = std::move(call->output_shapes);
  const std::vector<DLTensor> inputs = views(data, call->types, &shapes);
  const std::vector<DLTensor> outputs = views(output_data, call->types, &output_shapes);
  hvd_request request{};
  request.struct_size = sizeof(request);
  request.kind = call->kind;
  request.set = call->set;
  request.name = name.c_str();
  request.count = inputs.size();
  request.inputs = inputs.data();
  request.outputs = outputs.data();
  request.op = call->op;
  request.root = call->root;
  request.prescale = call->prescale;
  request.postscale = call->postscale;
  request.done = on_done;
  request.context = call;
  std::array<char, 1024> text{};
  const std::int32_t code = core()->enqueue(engine.get(), &request, text.data(), text.size());
  if (code != HVD_OK) finish(call, text_of(code, text.data(), -1));
}

}  // namespace

Call::Call(const Request& request)
    : name(request.name),
      kind(request.kind),
      set(request.set),
      op(request.op),
      root(request.root),
      prescale(request.prescale),
      postscale(request.postscale) {}

Call::~Call() {
  for (const std::vector<Array>* all : {&inputs, &outputs}) {
    for (const Array array : *all) {
      if (array != nullptr) mxnet()->NDArrayFree(array);
    }
  }
}

std::string push(const Request& request) {
  auto call = std::make_unique<Call>(request);
  if (std::string why = read(call.get(), request); !why.empty()) return why;
  for (std::size_t i = 0; i < call->inputs.size(); ++i) {
    // One-dimensional arrays have only one order.
    if (call->shapes[i].size() > 1) mxnet()->reorder(call->inputs[i]);
  }
  std::vector<Array> written = distinct(call->outputs, {});
  std::vector<Array> read_only = distinct(call->inputs, written);
  const Context cpu{kCpu, 0};
  Call* const pushed_call = call.release();  // drop() frees it, also if MXNet refuses it
  join_queue(pushed_call);
  count(&counters.pushed);
  const int pushed = mxnet()->EnginePushAsyncND(run, pushed_call, drop, &cpu, read_only.data(),
                                                static_cast<int>(read_only.size()), written.data(),
                                                static_cast<int>(written.size()), &kCpuPrioritized,
                                                request.priority, pushed_call->name.c_str(), false);
  return pushed == 0 ? "" : mxnet()->GetLastError();
}

}  // namespace hvd::mxnet
