#include "transport/tcp/tcp_stream.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/failpoint.h"

namespace hvd {
namespace {

constexpr std::size_t kMostParts = 16;  // of one system call
constexpr std::size_t kSlotAlign = 64;  // the head is stored before it
constexpr std::uint64_t kEagerBit = std::uint64_t{1} << 63U;

std::string text_of(int error) { return std::generic_category().message(error); }

}  // namespace

Pages::Pages(std::size_t bytes)
    : data_(static_cast<std::byte*>(
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
      bytes_(bytes) {
  if (data_ == MAP_FAILED) throw std::bad_alloc();
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Pages::~Pages() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

TcpSender::TcpSender(const std::vector<Fd>& streams, std::size_t slot_bytes, std::size_t slots)
    : streams_(streams), slot_bytes_(slot_bytes), memory_(slot_bytes * slots), out_(slots) {}

// Once everything is sent, start again with the first slot, which is still in the cache.
Slot TcpSender::acquire() {
  const MutexLock lock(mutex_);
  if (used_ == out_.size()) return {};
  if (used_ == 0) first_ = 0;
  return {memory_.data() + nth(used_) * slot_bytes_, slot_bytes_};
}

void TcpSender::publish(std::size_t bytes, bool eager) {
  const MutexLock lock(mutex_);
  Out& out = out_[nth(used_)];
  const std::uint64_t length = bytes | (eager ? kEagerBit : 0);
  std::memcpy(out.head.data(), &length, sizeof length);
  out.bytes = bytes;
  out.sent = 0;
  out.stream = next_stream_;
  next_stream_ = (next_stream_ + 1) % streams_.size();
  ++used_;
  push_all();
}

void TcpSender::push() {
  const MutexLock lock(mutex_);
  push_all();
}

void TcpSender::push_all() {
  for (std::size_t stream = 0; stream < streams_.size(); ++stream)
    while (!broken() && push_some(stream)) {
    }
  while (used_ > 0 && out_[first_].left() == 0) {
    first_ = nth(1);
    --used_;
  }
  pending_.store(used_ > 0 && !broken(), std::memory_order_seq_cst);
}

// False: this stream has nothing to send, or no room.
bool TcpSender::push_some(std::size_t stream) {
  std::array<iovec, kMostParts> parts{};
  std::size_t count = 0, total = 0;
  const auto add = [&](std::byte* data, std::size_t bytes) {
    if (bytes == 0) return;
    parts[count++] = {data, bytes};
    total += bytes;
  };
  for (std::size_t i = 0; i < used_ && count + 2 <= kMostParts; ++i) {
    Out& out = out_[nth(i)];
    if (out.stream != stream || out.left() == 0) continue;
    const std::size_t head = std::min(out.sent, kSlotHead);
    add(out.head.data() + head, kSlotHead - head);
    add(memory_.data() + nth(i) * slot_bytes_ + (out.sent - head), out.left() - (kSlotHead - head));
  }
  if (total == 0) return false;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  if (failpoint("tcp.one_byte")) {
    message.msg_iovlen = 1;
    parts[0].iov_len = total = 1;
  }
  const ssize_t done = ::sendmsg(streams_[stream].get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (done >= 0) {
    account(stream, static_cast<std::size_t>(done));
    return static_cast<std::size_t>(done) == total;
  }
  if (!again(errno)) fail(errno);
  return errno == EINTR;
}

void TcpSender::account(std::size_t stream, std::size_t bytes) {
  for (std::size_t i = 0; bytes > 0; ++i) {
    Out& out = out_[nth(i)];
    if (out.stream != stream) continue;
    const std::size_t part = std::min(bytes, out.left());
    out.sent += part;
    bytes -= part;
  }
}

void TcpSender::ask(std::vector<pollfd>& items) {
  const MutexLock lock(mutex_);
  if (broken()) return;
  for (std::size_t stream = 0; stream < streams_.size(); ++stream)
    for (std::size_t i = 0; i < used_; ++i) {
      const Out& out = out_[nth(i)];
      if (out.stream != stream || out.left() == 0) continue;
      items.push_back({streams_[stream].get(), POLLOUT, 0});
      break;
    }
}

void TcpSender::fail(int error) {
  failure_ = text_of(error);
  broken_.store(true, std::memory_order_release);
}

std::string TcpSender::new_failure() {
  if (!broken()) return "";
  const MutexLock lock(mutex_);
  return std::exchange(failure_, "");
}

TcpReceiver::TcpReceiver(const std::vector<Fd>& streams, std::size_t slot_bytes)
    : streams_(streams), slot_bytes_(slot_bytes) {
  for (std::size_t i = 0; i < streams.size(); ++i) in_.push_back({Pages(kSlotAlign + slot_bytes)});
}

std::byte* TcpReceiver::head(const In& in) const {
  return in.memory.data() + (kSlotAlign - kSlotHead);
}

std::uint64_t TcpReceiver::word(const In& in) const {
  std::uint64_t word = 0;
  std::memcpy(&word, head(in), sizeof word);
  return word;
}

std::size_t TcpReceiver::length(const In& in) const {
  return static_cast<std::size_t>(word(in) & ~kEagerBit);
}

bool TcpReceiver::is_eager(const In& in) const { return (word(in) & kEagerBit) != 0; }

bool TcpReceiver::unaccepted() const {
  const In& in = in_[turn_];
  return is_eager(in) && !in.accepted;
}

EagerTag TcpReceiver::tag() const {
  EagerTag tag;
  const std::byte* const at = head(in_[turn_]) + kSlotHead;
  std::memcpy(&tag.position, at, sizeof tag.position);
  std::memcpy(&tag.slot, at + sizeof tag.position, sizeof tag.slot);
  return tag;
}

std::size_t TcpReceiver::wanted(const In& in) const {
  const std::size_t all = kSlotHead + (in.have < kSlotHead ? in.usual : length(in));
  return all > in.have ? all - in.have : 0;
}

Slot TcpReceiver::peek() {
  In& in = in_[turn_];
  for (;;) {
    if (in.have >= kSlotHead &&
        (length(in) > slot_bytes_ || (is_eager(in) && length(in) < kEagerTag))) {
      fail("a slot announced " + std::to_string(length(in)) + " bytes");
      return {};
    }
    std::size_t want = wanted(in);
    if (want == 0) {
      const std::size_t tag = in.accepted ? kEagerTag : 0;
      return {head(in) + kSlotHead + tag, length(in) - tag};
    }
    if (ended_) return {};
    if (failpoint("tcp.one_byte")) want = 1;
    const ssize_t got = ::recv(streams_[turn_].get(), head(in) + in.have, want, MSG_DONTWAIT);
    if (got > 0) {
      in.have += static_cast<std::size_t>(got);
    } else if (got < 0 && would_block(errno)) {
      return {};
    } else if (got == 0 || errno != EINTR) {
      fail(got < 0 ? text_of(errno) : in.have == 0 ? "closed" : "closed in the middle of a slot");
      return {};
    }
  }
}

void TcpReceiver::release() {
  In& in = in_[turn_];
  const std::size_t all = kSlotHead + length(in);
  in.usual = all - kSlotHead;
  in.have -= all;
  in.accepted = false;
  if (in.have > 0) std::memmove(head(in), head(in) + all, in.have);
  turn_ = (turn_ + 1) % in_.size();
}

int TcpReceiver::awaited() const { return ended_ ? -1 : streams_[turn_].get(); }

void TcpReceiver::fail(std::string why) {
  if (ended_) return;
  ended_ = true;
  failure_ = std::move(why);
}

std::string TcpReceiver::new_failure() { return std::exchange(failure_, ""); }

}  // namespace hvd
