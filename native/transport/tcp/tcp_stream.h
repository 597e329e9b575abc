// The two ends of a TCP link, without waiting.
//   stream     one socket; a link has one or several, and its slots take them in turn: slot n goes
//              over stream n modulo their number, so that the order needs no numbers on the wire
//   on a wire  a slot is its length (8 bytes, little-endian) and its bytes; of an eager slot
//              (eager_links.h) the length has its highest bit set and counts a tag of 16 bytes
//              before them
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "transport/link/eager_links.h"
#include "transport/link/link.h"

namespace hvd {

// Memory that goes back to the system with its owner: freed heap blocks of this size would stay.
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

// Sends what it is given as far as the sockets take it; the rest goes with later calls of push().
class TcpSender {
 public:
  TcpSender(const std::vector<Fd>& streams, std::size_t slot_bytes, std::size_t slots);

  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t slots() const { return out_.size(); }

  // One thread:
  Slot acquire();  // data is null while all slots wait to be sent
  void publish(std::size_t bytes, bool eager = false);
  // Any thread:
  void push();
  bool pending() const { return pending_.load(std::memory_order_seq_cst); }
  void ask(std::vector<pollfd>& items);  // the streams that have no room at present
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  std::string new_failure();  // empty, or why it broke: once

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
  std::vector<Out> out_;  // so many for ever; what is in them is guarded by mutex_
  std::size_t first_ GUARDED_BY(mutex_) = 0;  // of the slots that wait to be sent
  std::size_t used_ GUARDED_BY(mutex_) = 0;   // so many
  std::size_t next_stream_ GUARDED_BY(mutex_) = 0;
  std::string failure_ GUARDED_BY(mutex_);
  std::atomic<bool> pending_{false}, broken_{false};
};

// Receives one slot at a time; what the peer sent meanwhile waits in the sockets. One thread.
class TcpReceiver {
 public:
  TcpReceiver(const std::vector<Fd>& streams, std::size_t slot_bytes);

  Slot peek();  // data is null while the slot is not there completely
  void release();
  // Of the slot that is there: it is eager, and nobody has accepted it.
  bool unaccepted() const;
  EagerTag tag() const;
  void accept() { in_[turn_].accepted = true; }
  int awaited() const;  // the descriptor to wait on; -1: nothing more comes
  bool ended() const { return ended_; }
  std::string new_failure();

 private:
  struct In {
    Pages memory;
    std::size_t have = 0;   // of this slot, its head included, and perhaps of the following
    std::size_t usual = 0;  // the length of the last slot: the next is read without a look first
    bool accepted = false;  // eager, and peek() gives it
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
  std::size_t turn_ = 0;  // whose stream has the next slot
  bool ended_ = false;
  std::string failure_;
};

}  // namespace hvd
