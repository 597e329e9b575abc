// A line of the control channel between two hosts: a socket. The progress-lock owner sends. The
// watch reads, so that polling needs no system call, and sends what was kept.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/mutex.h"
#include "transport/control/control.h"
#include "transport/watch/failure_detector.h"

namespace hvd {

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
