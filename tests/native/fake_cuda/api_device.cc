// Devices and contexts.
#include <cstdio>
#include <cstring>
#include <iterator>

#include "fake_cuda/current.h"
#include "fake_cuda/memory.h"
#include "fake_cuda/queue.h"

using fake::world;

namespace fake {

std::vector<CUcontext>& current_contexts() {
  static thread_local std::vector<CUcontext> contexts;
  return contexts;
}

CUcontext current_context() {
  return current_contexts().empty() ? nullptr : current_contexts().back();
}

namespace {

bool is_device(CUdevice device) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  return device >= 0 && device < static_cast<int>(world().switches.visible.size());
}

int machine_number(CUdevice device) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  return world().switches.visible[static_cast<std::size_t>(device)];
}

int attribute(CUdevice_attribute which) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 4;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      return world().switches.word_operations ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
      return world().mps ? 1 : 0;
    default:
      return 0;
  }
}

// What was made in a context goes with it. Only where nobody could give it back: a lost device
// takes no call for it. The world's mutex is held.
void bury(CUcontext context) {
  World& all = world();
  for (auto memory = all.memory.begin(); memory != all.memory.end();) {
    const auto next = std::next(memory);
    if (memory->second.context == context) discard(memory);
    memory = next;
  }
  for (const auto& event : all.all_events)
    if (event->context == context) all.events.erase(event.get());
  for (const auto& module : all.all_modules)
    if (module->context == context) all.modules.erase(module.get());
  for (const auto& stream : all.all_streams)
    if (stream->context == context && stream.get() != context->stream)
      all.streams.erase(stream.get());
}

}  // namespace
}  // namespace fake

extern "C" {

CUresult cuInit(unsigned flags) {
  FAKE_CALL("cuInit");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(world().mutex);
  if (world().switches.visible.empty()) return CUDA_ERROR_NO_DEVICE;
  world().initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  *version = world().switches.version;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  FAKE_CALL("cuDeviceGetCount");
  const std::lock_guard<std::mutex> lock(world().mutex);
  *count = static_cast<int>(world().switches.visible.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int number) {
  FAKE_CALL("cuDeviceGet");
  if (!fake::is_device(number)) return CUDA_ERROR_INVALID_DEVICE;
  *device = number;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  FAKE_CALL("cuDeviceGetName");
  if (!fake::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  FAKE_CALL("cuDeviceGetUuid");
  if (!fake::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "FAKE-GPU-NUMBER", 15);
  uuid->bytes[15] = static_cast<char>(fake::machine_number(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  FAKE_CALL("cuDeviceGetAttribute");
  if (!fake::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = fake::attribute(which);
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  FAKE_CALL("cuDeviceCanAccessPeer");
  if (!fake::is_device(device) || !fake::is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard<std::mutex> lock(world().mutex);
  *can = device != peer && world().switches.reachable ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  FAKE_CALL("cuDeviceGetByPCIBusId");
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return CUDA_ERROR_INVALID_VALUE;
  if (!fake::is_device(static_cast<int>(bus))) return CUDA_ERROR_INVALID_DEVICE;
  *device = static_cast<int>(bus);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_CALL("cuDevicePrimaryCtxRetain");
  if (!fake::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext const primary = &world().contexts[static_cast<std::size_t>(device)];
  if (const CUresult error = fake::lost(primary); error != CUDA_SUCCESS) return error;
  static std::mutex turns;  // or two threads would each make the first stream
  const std::lock_guard<std::mutex> turn(turns);
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    ++primary->retained;
    first = primary->stream == nullptr;
  }
  CUstream const stream = first ? fake::make_stream(primary) : nullptr;
  const std::lock_guard<std::mutex> lock(world().mutex);
  if (first) primary->stream = stream;
  *context = primary;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  FAKE_CALL("cuDevicePrimaryCtxRelease");
  if (!fake::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard<std::mutex> lock(world().mutex);
  CUctx_st& context = world().contexts[static_cast<std::size_t>(device)];
  if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --context.retained;
  if (context.retained == 0 && fake::lost(&context) != CUDA_SUCCESS) fake::bury(&context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  FAKE_CALL("cuCtxPushCurrent");
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    if (context == nullptr || context->retained == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  fake::current_contexts().push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (fake::current_contexts().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = fake::current_contexts().back();
  fake::current_contexts().pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  FAKE_CONTEXT_CALL("cuCtxEnablePeerAccess", context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  if (flags != 0 || peer == nullptr || peer == context) return CUDA_ERROR_INVALID_VALUE;
  if (!world().switches.reachable) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const bool is_new = context->peers.insert(peer->device).second;
  return is_new ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CONTEXT_CALL("cuCtxGetStreamPriorityRange", context);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

}  // extern "C"
