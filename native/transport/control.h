// The control channel: whole messages between rank 0 and every other rank, for the coordinator thread. The sockets are its own, so
// a message needs no other thread on its way.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "base/abort.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/mesh.h"
#include "transport/watch.h"

namespace hvd {

class Control {
 public:
  struct Line {
    int peer = -1;
    Fd socket;
    std::string received;
  };

  // event: signalled to end a wait(), by wake() and by the watch when it has news
  Control(std::vector<Line> lines, const Fd& event, Watch& watch)
      : lines_(std::move(lines)), event_(event), watch_(watch) {}
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  Status send(int peer, const std::string& bytes);
  ControlMessage wait(std::chrono::nanoseconds longest);
  void wake() { signal_event(event_); }

 private:
  // Waits until something came, the event was signalled (true then), `writable` can be written, or the time is over.
  bool poll_once(const Line* writable, std::chrono::nanoseconds longest);
  void read(Line& line);
  bool take_frames(Line& line);

  std::vector<Line> lines_;
  const Fd& event_;
  Watch& watch_;
  std::deque<ControlMessage> inbox_;
};

}  // namespace hvd
