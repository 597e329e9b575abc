#include "transport/shm/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/failpoint.h"
#include "transport/shm/shm_arena.h"

namespace hvd {

namespace {

const char* const kRoom = "transport/shared_heap";

// The heap may use one part in kPartOfLimit of a limit of the address space (RLIMIT_AS).
constexpr std::size_t kPartOfLimit = 4;

std::string sized(std::size_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

std::size_t heap_bytes_or_all(std::size_t wanted) {
  if (wanted != 0) return whole_pages(wanted);
  const std::size_t all = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  struct rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return all;
  return std::min(all, whole_pages(static_cast<std::size_t>(space.rlim_cur) / kPartOfLimit));
}

Result<std::shared_ptr<MemfdHeap>> MemfdHeap::create(std::size_t bytes) {
  if (failpoint("heap.create")) return errno_status("cannot make a shared heap", kRoom, ENOSPC);
  Fd memory(::memfd_create("hvd-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return errno_status("cannot make a shared heap", kRoom, errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 || !seal(memory))
    return errno_status("cannot make a shared heap of " + sized(bytes), kRoom, errno);
  return map(std::move(memory), bytes);
}

Result<std::shared_ptr<MemfdHeap>> MemfdHeap::attach(Fd memory) {
  struct stat facts{};
  if (::fstat(memory.get(), &facts) != 0 || facts.st_size <= 0 || !sealed(memory))
    return Status::make(Code::kInternal,
                        "the shared heap passed by this host's first rank is not sealed", kRoom);
  return map(std::move(memory), static_cast<std::size_t>(facts.st_size));
}

Result<std::shared_ptr<MemfdHeap>> MemfdHeap::map(Fd memory, std::size_t bytes) {
  void* const base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (base == MAP_FAILED) return errno_status("cannot map " + sized(bytes), kRoom, errno);
  ::madvise(base, bytes, MADV_DONTDUMP);
  return std::shared_ptr<MemfdHeap>(
      new MemfdHeap(std::move(memory), static_cast<std::byte*>(base), bytes));
}

MemfdHeap::~MemfdHeap() { ::munmap(base_, bytes_); }

Status MemfdHeap::claim(std::size_t offset, std::size_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset)
    return Status::make(
        Code::kUnavailable,
        "the shared heap of " + sized(bytes_) + " has no place for " + sized(bytes) + " more",
        kRoom);
  if (bytes == 0) return Status::ok();
  if (failpoint("heap.claim"))
    return errno_status("no memory for " + sized(bytes) + " of the shared heap", kRoom, ENOSPC);
  while (::fallocate(memory_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) !=
         0) {
    const int error = errno;
    if (error == EINTR) continue;
    release(offset, bytes);  // frees what was claimed before the failure
    return errno_status("no memory for " + sized(bytes) + " of the shared heap", kRoom, error);
  }
  return Status::ok();
}

void MemfdHeap::release(std::size_t offset, std::size_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset || bytes == 0) return;
  while (::fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0 &&
         errno == EINTR) {
  }
}

}  // namespace hvd
