// Memory, copies, and words in stream order.
#include <cstring>
#include <new>

#include "fake_cuda/ipc.h"
#include "fake_cuda/memory.h"
#include "fake_cuda/queue.h"

using fake::world;

namespace fake {
namespace {

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }  // NOLINT

// At the time when it is done: what is gone by then is the device's illegal address.
bool there(CUcontext context, CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  const Range range = range_of(address, bytes);
  if (range == Range::kDevice || range == Range::kHost) return true;
  lose(context, CUDA_ERROR_ILLEGAL_ADDRESS);
  return false;
}

Range range_now(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  return range_of(address, bytes);
}

// Null: it is the host's.
CUcontext context_of(CUdeviceptr address) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto memory = memory_of(address);
  return memory == world().memory.end() ? nullptr : memory->second.context;
}

bool is_pooled(CUdeviceptr address) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto memory = memory_of(address);
  return memory != world().memory.end() && memory->second.pooled;
}

// What is allocated in stream order is its own device's alone.
bool out_of_reach(CUdeviceptr to, CUdeviceptr from) {
  CUcontext const one = context_of(to);
  CUcontext const other = context_of(from);
  return one != nullptr && other != nullptr && one != other && (is_pooled(to) || is_pooled(from));
}

CUresult copy(CUcontext context, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
              CUstream given) {
  CUstream stream = nullptr;
  if (const CUresult found = find_own_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  for (const CUdeviceptr address : {to, from}) {
    const Range range = range_now(address, bytes);
    if (bytes > 0 && (address == 0 || range == Range::kGone || range == Range::kTooLong))
      return CUDA_ERROR_INVALID_VALUE;
  }
  submit(stream, [=] {
    if (bytes == 0 || !there(context, to, bytes) || !there(context, from, bytes)) return;
    std::memmove(pointer(to), pointer(from), bytes);
  });
  return CUDA_SUCCESS;
}

template <typename Word>
CUresult set(CUcontext context, CUdeviceptr to, Word value, std::size_t count, CUstream given) {
  CUstream stream = nullptr;
  if (const CUresult found = find_own_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  if (range_now(to, count * sizeof value) != Range::kDevice || to % sizeof value != 0)
    return CUDA_ERROR_INVALID_VALUE;
  submit(stream, [=] {
    if (!there(context, to, count * sizeof value)) return;
    auto* const words = static_cast<Word*>(pointer(to));
    for (std::size_t i = 0; i < count; ++i) __atomic_store_n(words + i, value, __ATOMIC_RELEASE);
  });
  return CUDA_SUCCESS;
}

void wait_for_word(CUcontext context, const std::uint32_t* word, std::uint32_t value,
                   unsigned flags) {
  block(
      context,
      [=] {
        const std::uint32_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if ((flags & 3U) == CU_STREAM_WAIT_VALUE_EQ) return now == value;
        if ((flags & 3U) == CU_STREAM_WAIT_VALUE_AND) return (now & value) != 0;
        return static_cast<std::int32_t>(now - value) >= 0;
      },
      word);
  await_turn(context);
}

void write_word(std::uint32_t* word, std::uint32_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  wake(word);
}

void word_operation(CUcontext context, const CUstreamBatchMemOpParams& given) {
  if (!there(context, given.waitValue.address, sizeof(std::uint32_t))) return;
  auto* const word = static_cast<std::uint32_t*>(pointer(given.waitValue.address));
  if (given.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32)
    wait_for_word(context, word, given.waitValue.value, given.waitValue.flags);
  else
    write_word(word, given.writeValue.value);
}

bool is_word_operation(const CUstreamBatchMemOpParams& given) {
  if (given.operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 &&
      given.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32)
    return false;
  const CUdeviceptr address = given.waitValue.address;  // at the same place in both
  return address % sizeof(std::uint32_t) == 0 &&
         range_now(address, sizeof(std::uint32_t)) == Range::kDevice;
}

CUresult free_in_order(CUcontext context, CUdeviceptr address) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto memory = world().memory.find(address);
  if (memory == world().memory.end()) {
    lose(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  discard(memory);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake

extern "C" {

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  FAKE_CONTEXT_CALL("cuMemAlloc", context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  return fake::allocate(context, bytes, fake::Kind::kShared, *address);
}

// As the driver does, behind everything that the device has been given.
CUresult cuMemFree(CUdeviceptr address) {
  FAKE_CONTEXT_CALL("cuMemFree", context);
  if (address == 0) return CUDA_SUCCESS;
  fake::drain_device(context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto memory = world().memory.find(address);
  if (memory == world().memory.end() || memory->second.opened > 0) return CUDA_ERROR_INVALID_VALUE;
  if (fake::others_have_open(memory->second)) ++world().freed_under_others;
  fake::discard(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream given) {
  FAKE_CONTEXT_CALL("cuMemAllocAsync", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_own_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  const std::lock_guard<std::mutex> lock(world().mutex);
  return fake::allocate(context, bytes, fake::Kind::kPooled, *address);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream given) {
  FAKE_CONTEXT_CALL("cuMemFreeAsync", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_own_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    const auto memory = world().memory.find(address);
    if (memory == world().memory.end() || !memory->second.pooled) return CUDA_ERROR_INVALID_VALUE;
  }
  fake::submit(stream, [=] { fake::free_in_order(context, address); });
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  FAKE_CONTEXT_CALL("cuMemHostAlloc", context);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *memory = ::operator new(bytes, std::align_val_t{4096}, std::nothrow);
  if (*memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().pinned[*memory] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* memory) {
  FAKE_CONTEXT_CALL("cuMemFreeHost", context);
  fake::drain_device(context);
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    if (world().pinned.erase(memory) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  ::operator delete(memory, std::align_val_t{4096});
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  FAKE_CONTEXT_CALL("cuMemGetInfo", context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  *total = world().switches.memory;
  *free = *total - world().used[static_cast<std::size_t>(context->device)];
  return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  FAKE_CONTEXT_CALL("cuMemcpyAsync", context);
  if (fake::out_of_reach(to, from)) return CUDA_ERROR_INVALID_VALUE;
  return fake::copy(context, to, from, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, std::size_t bytes, CUstream stream) {
  FAKE_CONTEXT_CALL("cuMemcpyPeerAsync", context);
  if (fake::context_of(to) != to_context || fake::context_of(from) != from_context)
    return CUDA_ERROR_INVALID_VALUE;
  return fake::copy(context, to, from, bytes, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  FAKE_CONTEXT_CALL("cuMemsetD8Async", context);
  return fake::set(context, to, value, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  FAKE_CONTEXT_CALL("cuMemsetD32Async", context);
  return fake::set(context, to, value, count, stream);
}

CUresult cuStreamBatchMemOp(CUstream given, unsigned count, CUstreamBatchMemOpParams* params,
                            unsigned flags) {
  FAKE_CONTEXT_CALL("cuStreamBatchMemOp", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_own_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    if (!world().switches.word_operations) return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (flags != 0 || count == 0 || count > 256) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<CUstreamBatchMemOpParams> all(params, params + count);
  for (const auto& one : all)
    if (!fake::is_word_operation(one)) return CUDA_ERROR_INVALID_VALUE;
  fake::submit(stream, [=] {
    for (const auto& one : all) fake::word_operation(context, one);
  });
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
  FAKE_CALL("cuPointerGetAttribute");
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto memory = fake::memory_of(address);
  if (memory == world().memory.end()) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = memory->second.context->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(value) = memory->second.context;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // extern "C"
