// The two ends of a TCP link, nonblocking.
//   stream     one socket; a link has one or several, used round-robin: slot n is sent over stream
//              n modulo their number, so the order needs no numbers on the wire
//   on a wire  a slot is its length (8 bytes, little-endian) and its bytes; for an eager slot
//              (link.h) the length has its highest bit set and includes a tag of 16 bytes
//              before the bytes
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "transport/link/link.h"

namespace hvd {

// Memory that is returned to the system with its owner; freed heap blocks of this size would not
// be.
class Pages {
 public:
  explicit Pages(std::size_t bytes);  // throws std::bad_alloc
  Pages(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

constexpr std::size_t kSlotHead = 8;
constexpr std::size_t kEagerTag = 16;

// Sends published slots as far as the sockets accept them; later calls of push() send the rest.
class TcpSender {
 public:
  TcpSender(const std::vector<Fd>& streams, std::size_t slot_bytes, std::size_t slots);

  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t slots() const { return out_.size(); }

  // One thread:
  Slot acquire();  // data is null if all slots wait to be sent
  void publish(std::size_t bytes, bool eager = false);
  // Any thread:
  void push();
  bool pending() const { return pending_.load(std::memory_order_seq_cst); }
  void ask(std::vector<pollfd>& items);  // the streams that have no room at present
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  std::string new_failure();  // empty, or the error, once

 private:
  struct Out {
    std::array<std::byte, kSlotHead> head{};
    std::size_t bytes = 0, sent = 0;  // the head counts as sent, not as bytes
    std::size_t stream = 0;
    std::size_t left() const { return kSlotHead + bytes - sent; }
  };

  std::size_t nth(std::size_t i) const REQUIRES(mutex_) { return (first_ + i) % out_.size(); }
  void push_all() REQUIRES(mutex_);
  bool push_some(std::size_t stream) REQUIRES(mutex_);
  void account(std::size_t stream, std::size_t bytes) REQUIRES(mutex_);
  void fail(int error) REQUIRES(mutex_);

  const std::vector<Fd>& streams_;
  std::size_t slot_bytes_;
  Pages memory_;
  Mutex mutex_;
  std::vector<Out> out_;                      // fixed size; the elements are guarded by mutex_
  std::size_t first_ GUARDED_BY(mutex_) = 0;  // first slot that waits to be sent
  std::size_t used_ GUARDED_BY(mutex_) = 0;   // number of slots that wait
  std::size_t next_stream_ GUARDED_BY(mutex_) = 0;
  std::string failure_ GUARDED_BY(mutex_);
  std::atomic<bool> pending_{false}, broken_{false};
};

// Receives one slot at a time; later data wait in the sockets. One thread.
class TcpReceiver {
 public:
  TcpReceiver(const std::vector<Fd>& streams, std::size_t slot_bytes);

  Slot peek();  // data is null until the slot is complete
  void release();
  // True if the received slot is eager and not accepted.
  bool unaccepted() const;
  EagerTag tag() const;
  void accept() { in_[turn_].accepted = true; }
  int awaited() const;  // the descriptor to wait on; -1: the stream has ended
  bool ended() const { return ended_; }
  std::string new_failure();

 private:
  struct In {
    Pages memory;
    std::size_t have = 0;   // bytes of this slot with its head, perhaps also of later slots
    std::size_t usual = 0;  // length of the last slot, the guess for the next one
    bool accepted = false;  // eager, and returned by peek()
  };

  std::byte* head(const In& in) const;
  std::uint64_t word(const In& in) const;
  std::size_t length(const In& in) const;
  bool is_eager(const In& in) const;
  std::size_t wanted(const In& in) const;
  void fail(std::string why);

  const std::vector<Fd>& streams_;
  std::size_t slot_bytes_;
  std::vector<In> in_;
  std::size_t turn_ = 0;  // index of the stream of the next slot
  bool ended_ = false;
  std::string failure_;
};

}  // namespace hvd
