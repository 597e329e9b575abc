#include "jax/call.h"

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "jax/completers.h"
#include "jax/device.h"
#include "jax/read.h"

namespace hvd::jax {

Counters counters{};

void count(std::int64_t* counter, std::int64_t by) {
  __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

namespace {

using plugin::core;

// Never destroyed: calls may end while the process exits.
struct UnderWay {
  Mutex lock;
  std::set<std::pair<std::int32_t, std::string>> names GUARDED_BY(lock);
};
UnderWay& under_way() {
  static auto* const all = new UnderWay;  // NOLINT(cppcoreguidelines-owning-memory): for ever
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
// rank 2]", by which hvd_kernel/jax/library.py finds it again.
Error* failure(const Call& call) {
  const std::string kind = plugin::error_class(call.code);
  const std::string whose =
      call.failed_rank < 0 ? "" : ", rank " + std::to_string(call.failed_rank);
  const std::string tag = kind.empty() ? "" : " [hvd_kernel.errors." + kind + whose + "]";
  return error(call.api, meaning(call.code), call.text + tag);
}

bool refuse(Call* call, std::int32_t code, std::string text) {
  call->code = code;
  call->text = std::move(text);
  return false;
}

// Results that lie in the core's memory go where XLA wants them.
void take(Call* call) {
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

// The program's stream goes on behind the result.
void wait_in_stream(Call* call, hvd_event* event) {
  std::array<char, 1024> text{};
  const std::int32_t code = core()->stream_wait(event, call->stream, text.data(), text.size());
  if (code != HVD_OK) refuse(call, code, text.data());
}

// Who waits in run_on_device(). They share one lock: a rank's program has one operation at a time.
struct Waiting {
  Mutex lock;
  ConditionVariable ended;
};
Waiting& waiting() {
  static auto* const all = new Waiting;  // NOLINT(cppcoreguidelines-owning-memory): for ever
  return *all;
}

void wake(Call* call) {
  Waiting& all = waiting();
  const MutexLock locked(all.lock);
  call->phase = Call::kEnded;  // under the lock: with it the call may be gone
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

// Whether the core writes where XLA wants the results.
bool is_given(const Call& call) {
  return call.kind == HVD_ALLREDUCE || call.kind == HVD_BROADCAST || call.kind == HVD_REDUCESCATTER;
}

// Whether the core has taken it.
bool hand_over(Call* call) {
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
  const std::vector<DLTensor> outputs = is_given(*call)
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

// It has ended on XLA's own thread.
Error* ended(const std::unique_ptr<Call>& call) {
  take(call.get());
  end(call.get());
  count(&counters.at_once);
  return call->code == HVD_OK ? nullptr : failure(*call);
}

}  // namespace

void complete(Call* call) {
  const std::unique_ptr<Call> owned(call);
  take(call);
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

// Whether it may begin; else the call has the reason.
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
  if (is_asked(frame)) return nullptr;
  count(&counters.calls);
  auto call = std::make_unique<Call>();
  call->api = frame->api;
  call->functions = futures(frame->api);
  if (call->functions == nullptr)
    return error(frame->api, Code::kUnimplemented,
                 "this XLA has no futures for handlers: set HVD_JAX=callback");
  if (!is_ready(*frame, call.get(), "") || !hand_over(call.get()) || call->phase == Call::kEnded)
    return ended(call);
  Future* const future = new_future(*call->functions);
  call->future = frame->future = future;
  Call* const theirs = call.release();
  if (theirs->phase.exchange(Call::kWaited) == Call::kEnded) complete(theirs);
  return nullptr;
}

Error* run_on_device(Frame* frame) {
  if (is_asked(frame)) return nullptr;
  count(&counters.calls);
  auto call = std::make_unique<Call>();
  call->api = frame->api;
  std::string trouble = stream_of(*frame, &call->stream);
  if (trouble.empty()) trouble = device_of(*frame, &call->device);
  if (!is_ready(*frame, call.get(), std::move(trouble))) return ended(call);
  if ((!is_given(*call) && call->kind != HVD_BARRIER) || call->only >= 0) {
    refuse(call.get(), HVD_INVALID_ARGUMENT, call->name + " has no form for a GPU's stream");
    return ended(call);
  }
  if (!hand_over(call.get())) return ended(call);
  Waiting& all = waiting();
  {
    MutexLock locked(all.lock);
    while (call->phase != Call::kEnded) all.ended.wait(locked);
  }
  return ended(call);
}

}  // namespace hvd::jax
