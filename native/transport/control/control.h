// The control channel of one rank: whole messages, in order, to and from its neighbours in the tree
// (mesh.h). Used by the progress-lock owner. What cannot be sent at once is kept and sent by later
// calls, or by the thread that serves the line.
//   line    the connection to one neighbour: a pair of rings in shared memory (control_line.h) or a
//           socket (control_line.h)
//   frame   a message on a line, numbered per line and direction (transport/socket/socket.h)
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/abort.h"
#include "base/deadline.h"
#include "base/status.h"
#include "transport/link/doorbell.h"
#include "transport/mesh/mesh.h"
#include "transport/socket/socket.h"

namespace hvd {

// Move complete messages from the front of a stream of frames; return what follows them.
FrameParser::Next take_messages(FrameParser& frames, int from, std::deque<ControlMessage>& into);

class ControlLine {
 public:
  explicit ControlLine(int peer) : peer_(peer) {}
  virtual ~ControlLine() = default;
  int peer() const { return peer_; }

  virtual bool send(const std::string& message) = 0;  // false: the connection is broken
  // Move received messages to the inbox; false: invalid data.
  virtual bool collect(std::deque<ControlMessage>& inbox) = 0;
  virtual void flush() = 0;
  virtual bool pending() const = 0;  // it has kept data
  virtual void finish() = 0;         // sends the end of the stream

 private:
  int peer_;
};

// The channel's environment and callbacks.
struct ControlRules {
  Doorbell* doorbell = nullptr;  // of this rank: rung after every message to it
  const Abort* abort = nullptr;
  std::function<bool(int peer)> left;
  std::function<void(int peer)> broken;      // the line broke; the next poll finds the reason
  std::function<void(int peer)> unreadable;  // the peer sent invalid data
};

class Control {
 public:
  explicit Control(ControlRules rules) : rules_(std::move(rules)) {}

  void add(std::unique_ptr<ControlLine> line) { lines_.push_back(std::move(line)); }
  Status send(int peer, const std::string& bytes);
  ControlMessage poll();
  void flush(Deadline deadline);  // sends what send() kept; returns early on an abort
  void finish();

 private:
  ControlLine* line_to(int peer) const;
  void collect();

  ControlRules rules_;
  std::vector<std::unique_ptr<ControlLine>> lines_;
  std::deque<ControlMessage> inbox_;
  std::uint32_t heard_ = 0;  // the doorbell's count at the last complete collection
  bool ever_ = false;        // ... if there was one
};

}  // namespace hvd
