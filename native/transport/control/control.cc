#include "transport/control/control.h"

#include <string_view>

#include "base/failpoint.h"

namespace hvd {
namespace {

const char* const kRoom = "transport/control";

}  // namespace

FrameParser::Next take_messages(FrameParser& frames, int from, std::deque<ControlMessage>& into) {
  for (;;) {
    std::string_view message;
    const FrameParser::Next next = frames.next(message);
    if (next != FrameParser::Next::kFrame) return next;
    into.push_back({from, std::string(message)});
  }
}

ControlLine* Control::line_to(int peer) const {
  for (const auto& line : lines_)
    if (line->peer() == peer) return line.get();
  return nullptr;
}

Status Control::send(int peer, const std::string& bytes) {
  const bool left = rules_.left(peer);  // checked first: an abort arrives before the goodbye
  if (rules_.abort->raised()) return rules_.abort->cause();
  if (left)
    return Status::make(Code::kShutdown, "rank " + std::to_string(peer) + " has shut down", kRoom,
                        peer);
  ControlLine* const line = line_to(peer);
  if (line == nullptr)
    return Status::make(Code::kInternal, "no control channel to rank " + std::to_string(peer),
                        kRoom);
  if (bytes.size() > kMaxFrame)
    return Status::make(
        Code::kInternal,
        "a control message of " + std::to_string(bytes.size()) + " bytes is too long", kRoom);
  if (failpoint("control.before_send"))
    return Status::make(Code::kInternal, "failpoint control.before_send", kRoom);
  if (!line->send(bytes)) rules_.broken(peer);
  if (failpoint("control.after_send"))
    return Status::make(Code::kInternal, "failpoint control.after_send", kRoom);
  return Status::ok();
}

ControlMessage Control::poll() {
  if (rules_.abort->raised()) return {};
  if (inbox_.empty()) collect();
  if (inbox_.empty()) return {};
  ControlMessage message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

// Senders ring this rank's doorbell afterwards, and so do readers that have made room: no ring
// since the last poll means that no line has anything new. So an idle poll costs one load, whatever
// the number of lines.
void Control::collect() {
  const std::uint32_t now = rules_.doorbell->heard();
  if (ever_ && now == heard_) return;
  for (const auto& line : lines_) {
    line->flush();
    if (line->collect(inbox_)) continue;
    rules_.unreadable(line->peer());
    return;
  }
  heard_ = now;
  ever_ = true;
}

// Consuming kept data, making room for it, and an abort all ring this rank's doorbell.
void Control::flush(Deadline deadline) {
  Doorbell& doorbell = *rules_.doorbell;
  for (bool pending = true; pending;) {
    const std::uint32_t seen = doorbell.heard();
    doorbell.announce();
    pending = false;
    for (const auto& line : lines_) {
      line->flush();
      pending = line->pending() || pending;
    }
    if (rules_.abort->raised() || deadline.expired()) break;
    if (pending) doorbell.wait(seen, deadline.remaining());
  }
  doorbell.awake();
}

void Control::finish() {
  for (const auto& line : lines_) line->finish();
}

}  // namespace hvd
