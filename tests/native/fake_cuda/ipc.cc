#include "fake_cuda/ipc.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "fake_cuda/memory.h"
#include "fake_cuda/queue.h"

namespace fake {
namespace {

struct Handle {  // within CUipcMemHandle
  std::uint64_t token;
  std::uint64_t bytes;
  std::int64_t pid;
  std::int32_t fd;
  std::int32_t device;  // of the machine
};
static_assert(sizeof(Handle) <= CU_IPC_HANDLE_SIZE);

// -1: the process is gone, or has freed it.
int open_there(const Handle& handle) {
  const std::string file =
      "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
  std::array<char, 128> target{};
  if (::readlink(file.c_str(), target.data(), target.size() - 1) <= 0) return -1;
  if (std::string(target.data()).find(name_of(handle.token)) == std::string::npos) return -1;
  return ::open(file.c_str(), O_RDWR | O_CLOEXEC);
}

bool sees(int device_of_machine) {
  for (const int device : world().switches.visible)
    if (device == device_of_machine) return true;
  return false;
}

CUresult open_new(CUcontext context, const Handle& handle, CUdeviceptr* address) {
  Memory memory;
  memory.context = context;
  memory.bytes = handle.bytes;
  memory.token = handle.token;
  memory.opened = 1;
  memory.mapped = (handle.bytes + 4095) / 4096 * 4096;
  memory.fd = open_there(handle);
  if (memory.fd < 0) return CUDA_ERROR_MAP_FAILED;
  const CUresult mapped = map_pages(memory.fd, memory.mapped, *address);
  if (mapped == CUDA_SUCCESS) {
    ::flock(memory.fd, LOCK_SH);  // until it is closed
    world().memory[*address] = memory;
  } else {
    ::close(memory.fd);
  }
  return mapped;
}

}  // namespace

bool others_have_open(const Memory& memory) {
  if (memory.fd < 0 || ::flock(memory.fd, LOCK_EX | LOCK_NB) == 0) return false;
  return errno == EWOULDBLOCK;
}

std::uint64_t random_token() {
  std::uint64_t token = 0;
  while (::getrandom(&token, sizeof token, 0) != sizeof token) {
  }
  return token;
}

std::string name_of(std::uint64_t token) { return "fake-cuda-" + std::to_string(token); }

}  // namespace fake

using fake::world;

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  FAKE_CONTEXT_CALL("cuIpcGetMemHandle", context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto memory = fake::memory_of(address);
  if (memory == world().memory.end() || memory->second.pooled || memory->second.opened > 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int device = world().switches.visible[static_cast<std::size_t>(context->device)];
  const fake::Handle handle{memory->second.token, memory->second.bytes, ::getpid(),
                            memory->second.fd, device};
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle given, unsigned flags) {
  FAKE_CONTEXT_CALL("cuIpcOpenMemHandle", context);
  fake::Handle handle{};
  std::memcpy(&handle, &given, sizeof handle);
  const std::lock_guard<std::mutex> lock(world().mutex);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (handle.pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!fake::sees(handle.device)) return CUDA_ERROR_INVALID_DEVICE;
  for (auto& [begin, memory] : world().memory) {
    if (memory.opened == 0 || memory.token != handle.token || memory.context != context) continue;
    ++memory.opened;
    *address = begin;
    return CUDA_SUCCESS;
  }
  return fake::open_new(context, handle, address);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  FAKE_CONTEXT_CALL("cuIpcCloseMemHandle", context);
  fake::drain_device(context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  const auto memory = world().memory.find(address);
  if (memory == world().memory.end() || memory->second.opened == 0) return CUDA_ERROR_INVALID_VALUE;
  if (memory->second.opened == 1)
    fake::discard(memory);
  else
    --memory->second.opened;
  return CUDA_SUCCESS;
}

}  // extern "C"
