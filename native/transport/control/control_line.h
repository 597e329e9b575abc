// Lines of the control channel: through memory within a host, through a socket between hosts.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/mutex.h"
#include "transport/control/control.h"
#include "transport/shm/control_ring.h"
#include "transport/watch/failure_detector.h"

namespace hvd {

// A line between two ranks of one host: two rings of bytes (control_ring.h). A message that does
// not fit into the ring is kept and sent piecewise; the peer notifies this rank when it has read.
class MemoryLine : public ControlLine {
 public:
  struct Calls {
    std::function<void()> sent;       // the peer has data to read
    std::function<void()> made_room;  // the peer waited for room, which it has now
    std::function<void()> kept;       // data wait for room here; may be empty
  };
  MemoryLine(int peer, const ControlMemory& out, const ControlMemory& in, Calls calls);

  bool send(const std::string& message) override;
  bool collect(std::deque<ControlMessage>& inbox) override;
  void flush() override;  // any thread
  bool pending() const override { return keeps_.load(std::memory_order_acquire); }
  void finish() override {}

 private:
  void push_kept() REQUIRES(mutex_);

  ControlWriter
      writer_;  // used by the progress-lock owner while keeps_ is false, else guarded by mutex_
  ControlReader reader_;
  Calls calls_;
  FrameParser frames_ = FrameParser::numbered(kMaxFrame);
  std::uint32_t sent_ = 0;  // frames
  Mutex mutex_;
  std::atomic<bool> keeps_{false};
  std::string kept_ GUARDED_BY(mutex_);
  std::size_t done_ GUARDED_BY(mutex_) = 0;  // bytes of kept_ that are written
};

// Outbox of one control socket. send() never blocks: what the socket does not accept at once is
// kept, and the thread that watches the socket flushes it. So a coordinator can proceed to the
// collective that its peer needs before the peer reads again.
class Outbox {
 public:
  explicit Outbox(const Fd& socket) : socket_(socket) {}

  // False if the connection is broken.
  bool send(std::string_view bytes);
  bool flush();
  bool pending() const;
  const Fd& socket() const { return socket_; }

 private:
  bool push(std::string_view& bytes) REQUIRES(mutex_);

  const Fd& socket_;
  mutable Mutex mutex_;
  std::string kept_ GUARDED_BY(mutex_);
  bool broken_ GUARDED_BY(mutex_) = false;
};

// A line between two hosts: a socket. The progress-lock owner sends. The watch reads, so that
// polling needs no system call, and sends what was kept.
class SocketLine : public ControlLine, public Served {
 public:
  struct Calls {
    std::function<void()> received;  // a message or the end arrived, or all kept data are sent
    std::function<void()> kept;      // data wait for the socket
  };
  SocketLine(int peer, Fd socket, Calls calls)
      : ControlLine(peer), socket_(std::move(socket)), outbox_(socket_), calls_(std::move(calls)) {}
  ~SocketLine() override;

  bool send(const std::string& message) override;
  bool collect(std::deque<ControlMessage>& inbox) override;
  void flush() override {}  // the failure detector does
  bool pending() const override { return outbox_.pending(); }
  void finish() override;

  int rank() const override { return peer(); }
  int fd() const override { return socket_.get(); }
  bool reads() const override { return !ended_.load(std::memory_order_relaxed); }
  bool writes() const override { return outbox_.pending(); }
  void readable() override;
  void writable() override;
  bool ended() const override { return ended_.load(std::memory_order_acquire); }

 private:
  bool take(std::string_view part);

  Fd socket_;
  Outbox outbox_;
  Calls calls_;
  std::atomic<bool> ended_{false};                         // nothing more arrives
  FrameParser frames_ = FrameParser::numbered(kMaxFrame);  // used by the failure detector
  std::uint32_t sent_ = 0;                                 // frames
  Mutex mutex_;
  std::atomic<bool> any_{false};  // the inbox is not empty, or invalid data arrived
  std::deque<ControlMessage> inbox_ GUARDED_BY(mutex_);
  bool rubbish_ GUARDED_BY(mutex_) = false;
};

}  // namespace hvd
