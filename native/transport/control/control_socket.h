// A line of the control channel between two hosts: a socket. Sending is the progress-lock owner's;
// the watch reads, so that whoever sleeps on the doorbell makes no system call to look, and sends
// what was kept.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/fd.h"
#include "base/mutex.h"
#include "transport/control/control.h"
#include "transport/socket/outbox.h"
#include "transport/watch/failure_detector.h"

namespace hvd {

class SocketLine : public ControlLine, public Served {
 public:
  struct Calls {
    std::function<void()> came;  // a message, the end, or room for all that was kept
    std::function<void()> kept;  // something waits for the socket
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
  std::atomic<bool> ended_{false};                         // nothing more comes
  FrameParser frames_ = FrameParser::numbered(kMaxFrame);  // the failure detector's
  std::uint32_t sent_ = 0;                                 // frames
  Mutex mutex_;
  std::atomic<bool> any_{false};  // the inbox is not empty, or rubbish came
  std::deque<ControlMessage> inbox_ GUARDED_BY(mutex_);
  bool rubbish_ GUARDED_BY(mutex_) = false;
};

}  // namespace hvd
