// The switches that tests turn.
#include "fake_cuda/queue.h"

using fake::world;

namespace {

// Of the driver's own streams too.
void set(void* stream, bool CUstream_st::* what, bool value) {
  auto* const of = static_cast<CUstream>(stream);
  const std::lock_guard<std::mutex> lock(of->mutex);
  of->*what = value;
  of->changed.notify_all();
}

}  // namespace

extern "C" {

void fake_cuda_counts(FakeCounts* counts) {
  fake::drain_ended();
  const std::lock_guard<std::mutex> lock(world().mutex);
  *counts = {};
  for (const auto& [address, memory] : world().memory)
    ++(memory.opened > 0 ? counts->mappings : counts->allocations);
  for (const std::size_t used : world().used) counts->bytes += used;
  counts->pinned = world().pinned.size();
  counts->streams = world().streams.size();
  for (const CUctx_st& context : world().contexts) {
    counts->contexts += static_cast<std::size_t>(context.retained);
    if (context.stream != nullptr) --counts->streams;  // it comes with the context
  }
  counts->events = world().events.size();
  counts->modules = world().modules.size();
}

void fake_cuda_set_devices(int count) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.devices = count;
  world().switches.visible.clear();
  for (int device = 0; device < count; ++device) world().switches.visible.push_back(device);
}

void fake_cuda_set_memory(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.memory = bytes;
}

void fake_cuda_fail(const char* function, int nth, int error) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.failures.push_back({function, nth, static_cast<CUresult>(error)});
}

void fake_cuda_fail_nothing() {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.failures.clear();
}

void fake_cuda_slow(const char* function, int milliseconds) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.slow[function] = std::chrono::milliseconds(milliseconds);
}

void fake_cuda_lose(int device, int error) {
  world().lost[static_cast<std::size_t>(device)].store(error, std::memory_order_release);
}

void fake_cuda_set_version(int version) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.version = version;
}

void fake_cuda_set_reachable(int reachable) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.reachable = reachable != 0;
}

void fake_cuda_set_word_operations(int supported) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.word_operations = supported != 0;
}

void fake_cuda_time_slices(int turn, int of) {
  world().turn = turn;
  world().turns = of;
}

void fake_cuda_set_mps(int on) { world().mps = on != 0; }

void fake_cuda_set_capturing(void* stream, int capturing) {
  set(stream, &CUstream_st::capturing, capturing != 0);
}

void fake_cuda_hold(void* stream) { set(stream, &CUstream_st::held, true); }
void fake_cuda_release(void* stream) { set(stream, &CUstream_st::held, false); }

int fake_cuda_enqueue(void* given, void (*run)(void*), void* argument) {
  FAKE_CONTEXT_CALL("fake_cuda_enqueue", context);
  CUstream stream = nullptr;
  const CUresult found = fake::find_own_stream(static_cast<CUstream>(given), context, stream);
  if (found == CUDA_SUCCESS) fake::submit(stream, [=] { run(argument); });
  return found;
}

int fake_cuda_current_device() {
  CUcontext const context = fake::current_context();
  return context == nullptr ? -1 : context->device;
}

std::size_t fake_cuda_freed_under_others() {
  const std::lock_guard<std::mutex> lock(world().mutex);
  return world().freed_under_others;
}

std::size_t fake_cuda_lost_streams() {
  const std::lock_guard<std::mutex> lock(world().mutex);
  return world().lost_streams;
}

std::size_t fake_cuda_calls(const char* function) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto found = world().calls.find(function);
  return found == world().calls.end() ? 0 : found->second;
}

void fake_cuda_reset() {
  fake::drain_ended();  // while what was lost is lost
  fake_cuda_set_devices(1);
  fake_cuda_time_slices(0, 1);
  fake_cuda_set_mps(0);
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().switches.memory = std::size_t{1} << 30U;
  world().switches.version = CUDA_VERSION;
  world().switches.reachable = true;
  world().switches.word_operations = true;
  world().switches.failures.clear();
  world().switches.slow.clear();
  for (auto& error : world().lost) error.store(CUDA_SUCCESS, std::memory_order_release);
  for (CUctx_st& context : world().contexts) context.peers.clear();
}

}  // extern "C"
