#include "jax/call.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/library.h"
#include "base/mutex.h"

namespace hvd::jax {

// The frame of XLA.

namespace {

// XLA's numbers (PrimitiveType).
constexpr std::array<plugin::Type, 23> kTypes{{{1, {kDLBool, 8, 1}},
                                               {2, {kDLInt, 8, 1}},
                                               {3, {kDLInt, 16, 1}},
                                               {4, {kDLInt, 32, 1}},
                                               {5, {kDLInt, 64, 1}},
                                               {6, {kDLUInt, 8, 1}},
                                               {7, {kDLUInt, 16, 1}},
                                               {10, {kDLFloat, 16, 1}},
                                               {11, {kDLFloat, 32, 1}},
                                               {12, {kDLFloat, 64, 1}},
                                               {15, {kDLComplex, 64, 1}},
                                               {16, {kDLBfloat, 16, 1}},
                                               {18, {kDLComplex, 128, 1}},
                                               {19, {kDLFloat8_e5m2, 8, 1}},
                                               {20, {kDLFloat8_e4m3fn, 8, 1}},
                                               {8, {kDLUInt, 32, 1}},
                                               {9, {kDLUInt, 64, 1}},
                                               {23, {kDLFloat8_e4m3b11fnuz, 8, 1}},
                                               {24, {kDLFloat8_e5m2fnuz, 8, 1}},
                                               {25, {kDLFloat8_e4m3fnuz, 8, 1}},
                                               {28, {kDLFloat8_e4m3, 8, 1}},
                                               {29, {kDLFloat8_e3m4, 8, 1}},
                                               {33, {kDLFloat8_e8m0fnu, 8, 1}}}};
constexpr std::int32_t kInt32 = 4, kFloat64 = 12;

struct Numbers {
  const char* name;
  std::int32_t Call::* place;
};
constexpr std::array<Numbers, 8> kNumbers{{{"kind", &Call::kind},
                                           {"set", &Call::set},
                                           {"op", &Call::op},
                                           {"root", &Call::root},
                                           {"size", &Call::traced_size},
                                           {"only", &Call::only},
                                           {"step", &Call::step},
                                           {"samples", &Call::samples}}};

void read_scalar(const std::string& name, const Scalar& scalar, Call* call) {
  if (scalar.type == kFloat64) {
    double* const place = name == "prescale"    ? &call->prescale
                          : name == "postscale" ? &call->postscale
                                                : nullptr;
    if (place != nullptr) std::memcpy(place, scalar.value, sizeof(double));
  }
  if (scalar.type != kInt32) return;
  for (const Numbers& each : kNumbers) {
    if (name == each.name) std::memcpy(&(call->*each.place), scalar.value, sizeof(std::int32_t));
  }
}

void read_attributes(const Attributes& attributes, Call* call) {
  for (std::int64_t i = 0; i < attributes.count; ++i) {
    const std::string name(attributes.names[i]->data, attributes.names[i]->length);
    if (attributes.kinds[i] == kScalarAttribute)
      read_scalar(name, *static_cast<const Scalar*>(attributes.values[i]), call);
    if (attributes.kinds[i] == kTextAttribute && name == "name") {
      const auto* const text = static_cast<const Text*>(attributes.values[i]);
      call->name.assign(text->data, text->length);
    }
  }
}

std::vector<std::int64_t> shape_of(const Buffer& buffer) {
  return {buffer.dims, buffer.dims + buffer.rank};
}

}  // namespace

bool type_of(const Buffer& buffer, DLDataType* type) {
  return plugin::dlpack_type(kTypes, buffer.type, type);
}

std::string read(const Frame& frame, Call* call) {
  read_attributes(frame.attributes, call);
  for (std::int64_t i = 0; i < frame.inputs.count; ++i) {
    const Buffer& buffer = *frame.inputs.all[i];
    if (!type_of(buffer, &call->types.emplace_back()))
      return call->name + ": arrays of XLA's type " + std::to_string(buffer.type) +
             " cannot be sent to other ranks; use astype(...)";
    call->shapes.push_back(shape_of(buffer));
    call->data.push_back(buffer.data);
  }
  // One per operand; hvd_kernel/jax/primitive.py may add one without elements.
  for (std::int64_t i = 0; i < std::min(frame.inputs.count, frame.outputs.count); ++i) {
    const Buffer& buffer = *frame.outputs.all[i];
    call->output_shapes.push_back(shape_of(buffer));
    call->output_data.push_back(buffer.data);
    if (buffer.data == frame.inputs.all[i]->data) count(&counters.aliased);
  }
  return "";
}

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type) {
  std::size_t product = type.bits / 8U;
  for (const std::int64_t extent : shape) product *= static_cast<std::size_t>(extent);
  return product;
}

// The device.

namespace {

constexpr int kOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

std::atomic<PointerAttribute>& replacement() {
  static std::atomic<PointerAttribute> function{nullptr};
  return function;
}

// XLA has loaded the driver by now.
PointerAttribute attribute_of_driver() {
  static const auto function = [] {
    PointerAttribute attribute = nullptr;
    Library::loaded("libcuda.so.1").find("cuPointerGetAttribute", attribute);
    return attribute;
  }();
  return function;
}

}  // namespace

void replace_driver(PointerAttribute attribute) { replacement() = attribute; }

std::string device_of(const Frame& frame, DLDevice* device) {
  *device = {kDLCUDA, 0};
  for (std::int64_t i = 0; i < frame.inputs.count; ++i) {
    const auto pointer = reinterpret_cast<std::uintptr_t>(frame.inputs.all[i]->data);
    if (pointer == 0) continue;  // no elements
    const PointerAttribute replaced = replacement();
    const PointerAttribute attribute = replaced != nullptr ? replaced : attribute_of_driver();
    if (attribute == nullptr || attribute(&device->device_id, kOrdinal, pointer) != 0)
      return "CUDA's driver does not say which GPU an array is on: set HVD_JAX=callback";
    return "";
  }
  return "";
}

// The call.

Counters counters{};

void count(std::int64_t* counter, std::int64_t by) {
  __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

namespace {

using plugin::core;

constexpr std::size_t kMostCompleters = 64;

// Threads that end calls for XLA, which continues its program on them: a pool with an idle thread
// for every ended call, because the program may compute for long before it returns.
class Completers {
 public:
  void add(Call* call) {
    bool is_alone = false;
    {
      const MutexLock locked(lock_);
      waiting_.push_back(call);
      if (waiting_.size() > idle_ && threads_ < kMostCompleters)
        is_alone = !start() && threads_ == 0;
    }
    if (is_alone) return complete(take());  // no thread can be started: complete it here
    added_.notify_one();
  }

 private:
  bool start() REQUIRES(lock_) {
    sigset_t all{}, before{};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // Python's thread handles signals
    bool started = true;
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }
  Call* take() {
    MutexLock locked(lock_);
    ++idle_;
    while (waiting_.empty()) added_.wait(locked);
    --idle_;
    Call* const call = waiting_.front();
    waiting_.pop_front();
    return call;
  }
  [[noreturn]] void work() {
    pthread_setname_np(pthread_self(), "hvd-jax");
    for (;;) complete(take());
  }

  Mutex lock_;
  ConditionVariable added_;
  std::deque<Call*> waiting_ GUARDED_BY(lock_);
  std::size_t idle_ GUARDED_BY(lock_) = 0, threads_ GUARDED_BY(lock_) = 0;
};

void complete_later(Call* call) {
  // Never destroyed: the threads may run while the process exits.
  static auto* const all = new Completers;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  all->add(call);
}

// Never destroyed: calls may end while the process exits.
struct UnderWay {
  Mutex lock;
  std::set<std::pair<std::int32_t, std::string>> names GUARDED_BY(lock);
};
UnderWay& under_way() {
  static auto* const all = new UnderWay;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *all;
}

bool begin(Call* call) {
  UnderWay& all = under_way();
  const MutexLock locked(all.lock);
  call->is_under_way = all.names.insert({call->set, call->name}).second;
  return call->is_under_way;
}

void end(Call* call) {
  count(&counters.ended);
  if (!call->is_under_way) return;
  UnderWay& all = under_way();
  const MutexLock locked(all.lock);
  all.names.erase({call->set, call->name});
  call->is_under_way = false;
}

Code meaning(std::int32_t code) {
  constexpr std::array<Code, 6> kCodes{
      Code::kUnknown, Code::kInvalidArgument, Code::kFailedPrecondition,
      Code::kAborted, Code::kAborted,         Code::kAborted};
  const auto place = static_cast<std::size_t>(code);
  return code >= 0 && place < kCodes.size() ? kCodes.at(place) : Code::kUnknown;
}

// The text ends with the class of hvd_kernel.errors and the rank, "[hvd_kernel.errors.RankDied,
// rank 2]", which hvd_kernel/jax/library.py parses.
Error* failure(const Call& call) {
  const std::string kind = plugin::error_class(call.code);
  const std::string rank = call.failed_rank < 0 ? "" : ", rank " + std::to_string(call.failed_rank);
  const std::string tag = kind.empty() ? "" : " [hvd_kernel.errors." + kind + rank + "]";
  return error(call.api, meaning(call.code), call.text + tag);
}

bool refuse(Call* call, std::int32_t code, std::string text) {
  call->code = code;
  call->text = std::move(text);
  return false;
}

// Copy results from the core's memory to XLA's buffers.
void copy_results(Call* call) {
  for (std::size_t i = 0; i < call->received.size(); ++i) {
    const hvd_output& output = call->received[i];
    const std::size_t room = bytes(call->output_shapes[i], call->types[i]);
    const std::vector<std::int64_t> shape(output.tensor.shape,
                                          output.tensor.shape + output.tensor.ndim);
    if (shape != call->output_shapes[i] && call->code == HVD_OK)
      refuse(call, HVD_MISMATCH,
             call->name + ": " + std::to_string(shape.empty() ? 0 : shape[0]) +
                 " rows came, and the program was compiled for " +
                 std::to_string(call->output_shapes[i].empty() ? 0 : call->output_shapes[i][0]) +
                 ": in jit all ranks have the same number of rows. Call it outside of jit");
    if (call->code == HVD_OK && room > 0)
      std::memcpy(call->output_data[i],
                  static_cast<const char*>(output.tensor.data) + output.tensor.byte_offset, room);
    core()->drop(output.owner);
  }
  call->received.clear();
  if (call->code != HVD_OK || !call->is_zero) return;
  for (std::size_t i = 0; i < call->output_data.size(); ++i) {
    if (const std::size_t room = bytes(call->output_shapes[i], call->types[i]); room > 0)
      std::memset(call->output_data[i], 0, room);
  }
}

// Let the program's stream wait for the result.
void wait_in_stream(Call* call, hvd_event* event) {
  std::array<char, 1024> text{};
  const std::int32_t code = core()->stream_wait(event, call->stream, text.data(), text.size());
  if (code != HVD_OK) refuse(call, code, text.data());
}

// Synchronisation for run_on_device(). One lock for all calls: a rank's program has one operation
// at a time.
struct Waiting {
  Mutex lock;
  ConditionVariable ended;
};
Waiting& waiting() {
  static auto* const all = new Waiting;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *all;
}

void wake(Call* call) {
  Waiting& all = waiting();
  const MutexLock locked(all.lock);
  call->phase = Call::kEnded;  // under the lock: afterwards the call may be destroyed
  all.ended.notify_all();
}

void on_done(void* context, const hvd_outcome* outcome) {
  auto* const call = static_cast<Call*>(context);
  call->code = outcome->code;
  call->failed_rank = outcome->rank;
  if (outcome->code != HVD_OK) call->text = outcome->text;
  for (std::size_t i = 0; i < outcome->outputs_count; ++i) {
    const auto* const output = reinterpret_cast<const hvd_output*>(
        reinterpret_cast<const char*>(outcome->outputs) + i * outcome->outputs->struct_size);
    core()->keep(output->owner);
    call->received.push_back(*output);
  }
  if (outcome->event != nullptr && call->code == HVD_OK) wait_in_stream(call, outcome->event);
  if (call->device.device_type != kDLCPU) return wake(call);
  if (call->phase.exchange(Call::kEnded) == Call::kWaited) complete_later(call);
}

std::vector<DLTensor> views(const Call& call, const std::vector<void*>& data,
                            std::vector<std::vector<std::int64_t>>* shapes) {
  std::vector<DLTensor> all;
  all.reserve(call.types.size());
  for (std::size_t i = 0; i < call.types.size(); ++i)
    all.push_back(plugin::view(data[i], call.types[i], &(*shapes)[i], call.device));
  return all;
}

// True if the core writes directly into XLA's buffers.
bool writes_in_place(const Call& call) {
  return call.kind == HVD_ALLREDUCE || call.kind == HVD_BROADCAST || call.kind == HVD_REDUCESCATTER;
}

// Enqueue the call in the core; false: refused.
bool enqueue(Call* call) {
  const plugin::Engine engine;
  if (!engine) return refuse(call, HVD_SHUTDOWN, plugin::kNotInitialized);
  const std::int32_t size = core()->set_size(engine.get(), call->set);
  if (call->traced_size > 0 && size > 0 && size != call->traced_size)
    return refuse(call, HVD_MISMATCH,
                  call->name + " was compiled for " + std::to_string(call->traced_size) +
                      " ranks, and there are " + std::to_string(size) +
                      " now: call jax.clear_caches() after the number of ranks has changed");
  call->is_zero = call->only >= 0 && core()->rank(engine.get()) != call->only;
  const std::vector<DLTensor> inputs = views(*call, call->data, &call->shapes);
  const std::vector<DLTensor> outputs = writes_in_place(*call)
                                            ? views(*call, call->output_data, &call->output_shapes)
                                            : std::vector<DLTensor>{};
  hvd_request request{};
  request.struct_size = sizeof(request);
  request.kind = call->kind;
  request.set = call->set;
  request.name = call->name.c_str();
  request.count = inputs.size();
  request.inputs = inputs.data();
  request.outputs = outputs.empty() ? nullptr : outputs.data();
  request.op = call->op;
  request.root = call->root;
  request.prescale = call->prescale;
  request.postscale = call->postscale;
  request.stream = call->stream;
  request.done = on_done;
  request.context = call;
  std::array<char, 1024> text{};
  const std::int32_t code = core()->enqueue(engine.get(), &request, text.data(), text.size());
  return code == HVD_OK || refuse(call, code, text.data());
}

// The result of a call that has ended on XLA's own thread.
Error* ended(const std::unique_ptr<Call>& call) {
  copy_results(call.get());
  end(call.get());
  count(&counters.at_once);
  return call->code == HVD_OK ? nullptr : failure(*call);
}

}  // namespace

void complete(Call* call) {
  const std::unique_ptr<Call> owned(call);
  copy_results(call);
  end(call);
  const Futures& functions = *call->functions;
  if (call->code == HVD_OK) return set(functions, call->future);
  fail(functions, call->future, failure(*call));
}

bool any_under_way() {
  UnderWay& all = under_way();
  const MutexLock locked(all.lock);
  return !all.names.empty();
}

namespace {

// True if the call may begin; otherwise it has the error.
bool is_ready(const Frame& frame, Call* call, std::string trouble) {
  if (trouble.empty()) trouble = read(frame, call);
  if (trouble.empty() && !begin(call))
    trouble =
        call->name +
        " is under way twice, so ranks could take the one for the other. A function that is "
        "jitted by itself and called twice in a program, or a scan with unroll, has one name for "
        "both: jit the outer function alone, or give the calls a name= of their own";
  if (!trouble.empty()) return refuse(call, HVD_INVALID_ARGUMENT, std::move(trouble));
  if (call->step != 0) count(&counters.steps);
  count(&counters.samples, call->samples);
  return true;
}

}  // namespace

Error* run(Frame* frame) {
  if (is_query(frame)) return nullptr;
  count(&counters.calls);
  auto call = std::make_unique<Call>();
  call->api = frame->api;
  call->functions = futures(frame->api);
  if (call->functions == nullptr)
    return error(frame->api, Code::kUnimplemented,
                 "this XLA has no futures for handlers: set HVD_JAX=callback");
  if (!is_ready(*frame, call.get(), "") || !enqueue(call.get()) || call->phase == Call::kEnded)
    return ended(call);
  Future* const future = new_future(*call->functions);
  call->future = frame->future = future;
  Call* const waited = call.release();
  if (waited->phase.exchange(Call::kWaited) == Call::kEnded) complete(waited);
  return nullptr;
}

Error* run_on_device(Frame* frame) {
  if (is_query(frame)) return nullptr;
  count(&counters.calls);
  auto call = std::make_unique<Call>();
  call->api = frame->api;
  std::string trouble = stream_of(*frame, &call->stream);
  if (trouble.empty()) trouble = device_of(*frame, &call->device);
  if (!is_ready(*frame, call.get(), std::move(trouble))) return ended(call);
  if ((!writes_in_place(*call) && call->kind != HVD_BARRIER) || call->only >= 0) {
    refuse(call.get(), HVD_INVALID_ARGUMENT, call->name + " has no form for a GPU's stream");
    return ended(call);
  }
  if (!enqueue(call.get())) return ended(call);
  Waiting& all = waiting();
  {
    MutexLock locked(all.lock);
    while (call->phase != Call::kEnded) all.ended.wait(locked);
  }
  return ended(call);
}

Error* together(Frame* frame) {
  if (is_query(frame)) return nullptr;
  for (std::int64_t i = 0; i < std::min(frame->inputs.count, frame->outputs.count); ++i) {
    const Buffer &from = *frame->inputs.all[i], &to = *frame->outputs.all[i];
    if (from.data == to.data) continue;
    DLDataType type{};
    if (!type_of(from, &type))
      return error(frame->api, Code::kInvalidArgument,
                   "gradients of XLA's type " + std::to_string(from.type) + " cannot be reduced");
    const std::vector<std::int64_t> shape(from.dims, from.dims + from.rank);
    if (const std::size_t room = bytes(shape, type); room > 0)
      std::memcpy(to.data, from.data, room);
  }
  return nullptr;
}

}  // namespace hvd::jax
