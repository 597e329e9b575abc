#include "transport/shm/shm_share.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/log.h"
#include "transport/shm/shared_heap_memfd.h"
#include "transport/socket/socket.h"

namespace hvd {
namespace {

const char* const kRoom = "transport/shm_share";
constexpr char kYes = 'y', kNo = 'n';

bool is_first(const HostSockets& host) { return host.ranks.front() == host.rank; }

Status address_space(std::size_t bytes) {
  void* const probe =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED)
    return errno_status("no address space for " + std::to_string(bytes) + " bytes", kRoom, errno);
  ::munmap(probe, bytes);
  return Status::ok();
}

Result<bool> receive_flag(const Fd& socket, Deadline deadline) {
  const Result<std::string> answer = receive_all(socket, 1, deadline);
  if (!answer.is_ok()) return answer.status();
  return answer.value()[0] == kYes;
}

Status send_flag(const Fd& socket, bool yes, Deadline deadline) {
  return send_all(socket, {yes ? &kYes : &kNo, 1}, deadline);
}

template <typename Body>
Status with_others(const HostSockets& host, const Body& body) {
  Status status;
  for (const Fd* const socket : host.sockets)
    if (status && socket != nullptr) status = body(*socket);
  return status;
}

// True on all ranks of the host if all of them pass true.
Result<bool> all_agree(const HostSockets& host, bool yes) {
  if (!is_first(host)) {
    Status status = send_flag(*host.sockets.front(), yes, host.deadline);
    if (!status) return status;
    return receive_flag(*host.sockets.front(), host.deadline);
  }
  Status status = with_others(host, [&](const Fd& socket) {
    const Result<bool> answer = receive_flag(socket, host.deadline);
    yes = yes && answer.is_ok() && answer.value();
    return answer.status();
  });
  if (status)
    status =
        with_others(host, [&](const Fd& socket) { return send_flag(socket, yes, host.deadline); });
  if (!status) return status;
  return yes;
}

Result<std::shared_ptr<MemfdHeap>> receive_heap(const HostSockets& host) {
  const Fd& socket = *host.sockets.front();
  Result<Fd> memory = receive_fd(socket, host.deadline);
  if (!memory.is_ok()) return memory.status();
  return MemfdHeap::attach(memory.take());
}

}  // namespace

ArenaPlan plan_arena(const ArenaShape& shape, bool first) {
  ArenaPlan plan;
  if (!first) {
    plan.missing = address_space(shape.bytes()).message;
    return plan;
  }
  Result<std::shared_ptr<ShmArena>> arena = ShmArena::create(shape);
  if (arena.is_ok()) plan.made = arena.take();
  plan.missing = arena.status().message;
  return plan;
}

Result<std::shared_ptr<ShmArena>> share_arena(const HostSockets& host, const ArenaShape& shape,
                                              std::shared_ptr<ShmArena> made) {
  if (!is_first(host)) {
    Result<Fd> memory = receive_fd(*host.sockets.front(), host.deadline);
    if (!memory.is_ok()) return memory.status();
    return ShmArena::attach(shape, memory.take());
  }
  const Status status = with_others(
      host, [&](const Fd& socket) { return send_fd(socket, made->fd(), host.deadline); });
  if (!status) return status;
  return made;
}

Result<std::shared_ptr<SharedHeap>> share_heap(const HostSockets& host, std::size_t bytes) {
  Result<std::shared_ptr<MemfdHeap>> heap = Status::ok();
  bool made = true;
  if (is_first(host)) {
    heap = MemfdHeap::create(bytes);
    made = heap.is_ok();
    Status status = with_others(host, [&](const Fd& socket) {
      Status sent = send_flag(socket, made, host.deadline);
      return sent && made ? send_fd(socket, heap.value()->fd(), host.deadline) : sent;
    });
    if (!status) return status;
  } else {
    const Result<bool> sent = receive_flag(*host.sockets.front(), host.deadline);
    if (!sent.is_ok()) return sent.status();
    made = sent.value();
    if (made) heap = receive_heap(host);
  }
  if (!heap.is_ok() && !heap.status().is_ok())
    log(Level::kWarning, kRoom, "no shared heap: " + heap.status().message);
  if (!made) return std::shared_ptr<SharedHeap>();
  const Result<bool> all = all_agree(host, heap.is_ok());
  if (!all.is_ok()) return all.status();
  return all.value() ? std::shared_ptr<SharedHeap>(heap.take()) : std::shared_ptr<SharedHeap>();
}

}  // namespace hvd
