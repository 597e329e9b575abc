// The control channel of one rank: whole messages, in order, to and from its neighbours in the tree
// (tree.h). Used by the progress-lock owner; what could not go out at once is kept and goes out
// with later calls, or by whoever serves the line meanwhile.
//   line    the way to one neighbour: a pair of rings in shared memory (control_line.h) or a socket
//           (control_socket.h)
//   frame   a message on a line: numbered, on each line and way (transport/socket/frame.h)
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
#include "transport/socket/frame.h"

namespace hvd {

// Takes whole messages off the front of a stream of frames, and says what stands there then.
FrameParser::Next take_messages(FrameParser& frames, int from, std::deque<ControlMessage>& into);

class ControlLine {
 public:
  explicit ControlLine(int peer) : peer_(peer) {}
  virtual ~ControlLine() = default;
  int peer() const { return peer_; }

  virtual bool send(const std::string& message) = 0;  // false: the connection is broken
  // What has come so far goes into the inbox; false: rubbish.
  virtual bool collect(std::deque<ControlMessage>& inbox) = 0;
  virtual void flush() = 0;
  virtual bool pending() const = 0;  // it keeps something
  virtual void finish() = 0;         // nothing more will be sent

 private:
  int peer_;
};

// What the channel needs to know and to say outside.
struct ControlRules {
  Doorbell* doorbell = nullptr;  // of this rank: rung after every message to it
  const Abort* abort = nullptr;
  std::function<bool(int peer)> left;
  std::function<void(int peer)> broken;      // the line broke: the next look learns what it means
  std::function<void(int peer)> unreadable;  // it sent rubbish
};

class Control {
 public:
  explicit Control(ControlRules rules) : rules_(std::move(rules)) {}

  void add(std::unique_ptr<ControlLine> line) { lines_.push_back(std::move(line)); }
  Status send(int peer, const std::string& bytes);
  ControlMessage poll();
  void flush(Deadline deadline);  // what send() kept; ends early on an abort
  void finish();

 private:
  ControlLine* line_to(int peer) const;
  void collect();

  ControlRules rules_;
  std::vector<std::unique_ptr<ControlLine>> lines_;
  std::deque<ControlMessage> inbox_;
  std::uint32_t heard_ = 0;  // the doorbell when everything that had come was collected
  bool ever_ = false;        // ... and whether that was ever
};

}  // namespace hvd
