// The control channel: whole messages between rank 0 and every other rank, for the coordinator
// thread. The sockets are its own, so a message needs no other thread on its way.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/mesh.h"
#include "transport/outbox.h"
#include "transport/watch.h"

namespace hvd {

class Control {
 public:
  // event: signalled to end a wait(), by wake() and by the watch when it has news
  Control(const Fd& event, Watch& watch) : event_(event), watch_(watch) {}
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void add(int peer, Fd socket);    // before the first use
  std::vector<Outbox*> outboxes();  // for the watch to serve

  Status send(int peer, const std::string& bytes);  // never waits
  ControlMessage wait(std::chrono::nanoseconds longest);
  void wake() { signal_event(event_); }
  void flush(Deadline deadline);  // what send() kept; ends early on an abort

 private:
  struct Line {
    Line(int rank, Fd fd) : peer(rank), socket(std::move(fd)), outbox(socket) {}
    int peer;
    Fd socket;
    bool ended = false;
    std::string received;
    Outbox outbox;
  };

  // Reads what comes until something came, the event was signalled (true then) or the time is over.
  bool poll_once(std::chrono::nanoseconds longest);
  void read(Line& line);
  bool take_frames(Line& line);

  std::vector<std::unique_ptr<Line>> lines_;
  const Fd& event_;
  Watch& watch_;
  std::deque<ControlMessage> inbox_;
};

}  // namespace hvd
