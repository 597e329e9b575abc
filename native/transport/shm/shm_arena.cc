#include "transport/shm/shm_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "base/failpoint.h"
#include "base/log.h"
#include "transport/shm/shared_heap.h"
#include "transport/socket/socket.h"

namespace hvd {

namespace {

constexpr std::size_t kPage = 4096;
constexpr unsigned kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
const char* const kRoom = "transport/shm_arena";

std::size_t control_index(std::size_t child, Direction direction) {
  return 2 * child + (direction == Direction::kDown ? 1 : 0);
}

}  // namespace

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

bool seal(const Fd& memory) { return ::fcntl(memory.get(), F_ADD_SEALS, kSeals) == 0; }

bool sealed(const Fd& memory) {
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  return seals >= 0 && (static_cast<unsigned>(seals) & kSeals) == kSeals;
}

std::size_t ArenaShape::fast_path_at() const { return ranks * sizeof(DoorbellMemory); }
std::size_t ArenaShape::control_headers_at() const {
  return fast_path_at() + sizeof(FastPathHeader) + ranks * sizeof(FastPathText);
}
std::size_t ArenaShape::ring_headers_at() const {
  return control_headers_at() + 2 * ranks * sizeof(ControlHeader);
}
std::size_t ArenaShape::header_bytes() const {
  return whole_pages(ring_headers_at() + ranks * ranks * sizeof(RingHeader));
}
std::size_t ArenaShape::fast_path_data_at() const {
  return header_bytes() + 2 * ranks * std::size_t{kControlRingBytes};
}
std::size_t ArenaShape::slots_at() const {
  return fast_path_data_at() + whole_pages(2 * ranks * fast_path_data_bytes(ranks));
}
std::size_t ArenaShape::ring_bytes() const { return whole_pages(slot_bytes * slots); }
std::size_t ArenaShape::bytes() const { return slots_at() + ranks * ranks * ring_bytes(); }

Result<std::shared_ptr<ShmArena>> ShmArena::create(const ArenaShape& shape) {
  if (failpoint("arena.create")) return errno_status("cannot make shared memory", kRoom, ENOSPC);
  Fd memory(::memfd_create("hvd-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return errno_status("cannot make shared memory", kRoom, errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(shape.bytes())) != 0 ||
      ::fallocate(memory.get(), 0, 0, static_cast<off_t>(shape.slots_at())) != 0 || !seal(memory))
    return errno_status("cannot make " + std::to_string(shape.bytes()) + " bytes of shared memory",
                        kRoom, errno);
  Result<std::shared_ptr<ShmArena>> arena = map(shape, std::move(memory));
  if (arena.is_ok()) arena.value()->make_headers();
  return arena;
}

void ShmArena::make_headers() const {
  for (std::size_t i = 0; i < shape_.ranks; ++i)
    new (base_ + i * sizeof(DoorbellMemory)) DoorbellMemory();
  new (base_ + shape_.fast_path_at()) FastPathHeader();
  for (std::size_t i = 0; i < shape_.ranks; ++i) new (fast_path().texts + i) FastPathText();
  for (std::size_t i = 0; i < 2 * shape_.ranks; ++i)
    start_counters(
        *new (base_ + shape_.control_headers_at() + i * sizeof(ControlHeader)) ControlHeader(),
        shape_.first_count);
  for (std::size_t i = 0; i < shape_.ranks * shape_.ranks; ++i)
    start_counters(*new (base_ + shape_.ring_headers_at() + i * sizeof(RingHeader)) RingHeader(),
                   shape_.first_count);
}

// The descriptor comes from another process: check its size and seals before using its memory.
Result<std::shared_ptr<ShmArena>> ShmArena::attach(const ArenaShape& shape, Fd memory) {
  struct stat facts{};
  if (::fstat(memory.get(), &facts) != 0 || facts.st_size != static_cast<off_t>(shape.bytes()) ||
      !sealed(memory))
    return Status::make(
        Code::kInternal,
        "the shared memory passed by this host's first rank is not the one agreed on", kRoom);
  return map(shape, std::move(memory));
}

Result<std::shared_ptr<ShmArena>> ShmArena::map(const ArenaShape& shape, Fd memory) {
  void* const base =
      ::mmap(nullptr, shape.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) return errno_status("cannot map the shared memory", kRoom, errno);
  ::madvise(base, shape.bytes(), MADV_DONTDUMP);
  return std::shared_ptr<ShmArena>(
      new ShmArena(shape, std::move(memory), static_cast<std::byte*>(base)));
}

ShmArena::~ShmArena() { ::munmap(base_, shape_.bytes()); }

DoorbellMemory& ShmArena::doorbell(std::size_t rank) const {
  return *std::launder(reinterpret_cast<DoorbellMemory*>(base_ + rank * sizeof(DoorbellMemory)));
}

FastPathMemory ShmArena::fast_path() const {
  std::byte* const at = base_ + shape_.fast_path_at();
  return {std::launder(reinterpret_cast<FastPathHeader*>(at)),
          std::launder(reinterpret_cast<FastPathText*>(at + sizeof(FastPathHeader))),
          static_cast<unsigned>(shape_.ranks)};
}

FastPathData ShmArena::fast_path_data() const {
  const std::size_t bytes = fast_path_data_bytes(shape_.ranks);
  if (bytes == 0) return {};
  return {base_ + shape_.fast_path_data_at(), bytes};
}

ControlMemory ShmArena::control(std::size_t child, Direction direction) const {
  const std::size_t index = control_index(child, direction);
  return {std::launder(reinterpret_cast<ControlHeader*>(base_ + shape_.control_headers_at() +
                                                        index * sizeof(ControlHeader))),
          base_ + shape_.header_bytes() + index * kControlRingBytes, kControlRingBytes};
}

RingMemory ShmArena::ring(std::size_t from, std::size_t to) const {
  const std::size_t index = from * shape_.ranks + to;
  return {std::launder(reinterpret_cast<RingHeader*>(base_ + shape_.ring_headers_at() +
                                                     index * sizeof(RingHeader))),
          base_ + shape_.slots_at() + index * shape_.ring_bytes(), shape_.slot_bytes,
          static_cast<std::uint32_t>(shape_.slots)};
}

Status ShmArena::claim(const RingMemory& ring) const {
  const auto none = [this](int error) {
    return errno_status(
        "no memory for " + std::to_string(shape_.ring_bytes()) + " bytes of shared slots", kRoom,
        error);
  };
  if (failpoint("arena.claim")) return none(ENOSPC);
  while (::fallocate(memory_.get(), 0, ring.slots - base_,
                     static_cast<off_t>(shape_.ring_bytes())) != 0) {
    if (errno != EINTR) return none(errno);
  }
  return Status::ok();
}

Result<Slot> ShmSendLink::acquire(const Abort& abort) {
  if (!claimed_) {
    Status status = arena_->claim(ring_);
    if (!status) return status;
    claimed_ = true;
  }
  return RingSendLink::acquire(abort);
}

namespace {

const char* const kShareRoom = "transport/shm_share";
constexpr char kYes = 'y', kNo = 'n';

bool is_first(const HostSockets& host) { return host.ranks.front() == host.rank; }

Status address_space(std::size_t bytes) {
  void* const probe =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED)
    return errno_status("no address space for " + std::to_string(bytes) + " bytes", kShareRoom,
                        errno);
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
    log(Level::kWarning, kShareRoom, "no shared heap: " + heap.status().message);
  if (!made) return std::shared_ptr<SharedHeap>();
  const Result<bool> all = all_agree(host, heap.is_ok());
  if (!all.is_ok()) return all.status();
  return all.value() ? std::shared_ptr<SharedHeap>(heap.take()) : std::shared_ptr<SharedHeap>();
}

}  // namespace hvd
