#include "fake_cuda/memory.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fake_cuda/ipc.h"

namespace fake {
namespace {

constexpr int kGarbage = 0xA5;
constexpr std::size_t kFilled = std::size_t{1} << 16U;  // as much garbage as is worth its time

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void* address_space(std::size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

CUdeviceptr number(void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }  // NOLINT

}  // namespace

CUresult map_pages(int fd, std::size_t bytes, CUdeviceptr& address) {
  const std::size_t pages = whole_pages(bytes);
  void* const space = address_space(2 * whole_pages(1) + pages);  // nothing before, nothing behind
  if (space == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  char* const begin = static_cast<char*>(space) + whole_pages(1);
  const int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  if (::mmap(begin, pages, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  address = number(begin);
  return CUDA_SUCCESS;
}

CUresult allocate(CUcontext context, std::size_t bytes, Kind kind, CUdeviceptr& address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  World& all = world();
  std::size_t& used = all.used[static_cast<std::size_t>(context->device)];
  if (bytes > all.switches.memory - std::min(used, all.switches.memory))
    return CUDA_ERROR_OUT_OF_MEMORY;
  Memory memory;
  memory.context = context;
  memory.bytes = bytes;
  memory.mapped = whole_pages(bytes);
  memory.pooled = kind == Kind::kPooled;
  if (kind == Kind::kShared) {
    memory.token = random_token();
    memory.fd = ::memfd_create(name_of(memory.token).c_str(), MFD_CLOEXEC);
    if (memory.fd < 0 || ::ftruncate(memory.fd, static_cast<off_t>(memory.mapped)) != 0)
      return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const CUresult mapped = map_pages(memory.fd, bytes, address);
  if (mapped != CUDA_SUCCESS) return mapped;
  std::memset(pointer(address), kGarbage, std::min(bytes, kFilled));
  used += bytes;
  all.memory[address] = memory;
  return CUDA_SUCCESS;
}

void discard(std::map<CUdeviceptr, Memory>::iterator of) {
  World& all = world();
  const auto [address, memory] = *of;
  ::mmap(pointer(address), memory.mapped, PROT_NONE,
         MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory.fd >= 0) ::close(memory.fd);
  if (memory.opened == 0)
    all.used[static_cast<std::size_t>(memory.context->device)] -= memory.bytes;
  all.gone[address] = memory.bytes;
  all.memory.erase(of);
}

std::map<CUdeviceptr, Memory>::iterator memory_of(CUdeviceptr address) {
  World& all = world();
  auto after = all.memory.upper_bound(address);
  if (after == all.memory.begin()) return all.memory.end();
  --after;
  return address < after->first + after->second.bytes ? after : all.memory.end();
}

Range range_of(CUdeviceptr address, std::size_t bytes) {
  World& all = world();
  const auto there = memory_of(address);
  if (there != all.memory.end())
    return address + bytes <= there->first + there->second.bytes ? Range::kDevice : Range::kTooLong;
  auto after = all.gone.upper_bound(address);
  if (after == all.gone.begin()) return Range::kHost;
  --after;
  return address < after->first + after->second ? Range::kGone : Range::kHost;
}

}  // namespace fake
