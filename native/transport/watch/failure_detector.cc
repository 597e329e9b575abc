#include "transport/watch/failure_detector.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/failpoint.h"
#include "base/thread.h"
#include "transport/socket/pack.h"
#include "transport/socket/socket.h"

namespace hvd {
namespace {

constexpr unsigned kIn = POLLIN, kOut = POLLOUT, kGone = POLLHUP | POLLERR | POLLNVAL;
constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, since Linux 6.5

enum class Frame : std::uint8_t { kAbort = 1, kGoodbye = 2 };

constexpr std::uint32_t kMostText = 16384;
constexpr std::uint32_t kMostFrame = 2 * kMostText + 64;
constexpr double kSuspicionSeconds = 0.5;
const char* const kRoom = "transport/failure_detector";

std::string cut(const std::string& text) { return text.substr(0, kMostText); }

std::string abort_frame(const Status& cause) {
  return frame_of(Packer()
                      .number(static_cast<std::uint8_t>(Frame::kAbort))
                      .number(static_cast<std::uint8_t>(cause.code))
                      .number(static_cast<std::int32_t>(cause.rank))
                      .text(cut(cause.message))
                      .text(cut(cause.where))
                      .take());
}

std::string goodbye_frame() {
  return frame_of(Packer().number(static_cast<std::uint8_t>(Frame::kGoodbye)).take());
}

std::string reason_of(int error) {
  if (error == 0 || error == ECONNRESET) return "its connection closed without a goodbye";
  return errno_status("its host does not answer", kRoom, error).message +
         "; HVD_NET_TIMEOUT is how long it may be silent";
}

bool hung_up(const Fd& socket) {
  pollfd item{socket.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) < 0 || (static_cast<unsigned>(item.revents) & kGone) != 0;
}

// A pidfd for the pid that the peer reported and the kernel confirms; none if the peer is in
// another pid namespace. New kernels know the process itself. Older ones return its number, which
// cannot belong to another process while the peer has not hung up.
Fd process_of(const Fd& socket, int pid) {
  const Result<Credentials> who = peer_of(socket);
  if (!who.is_ok() || who.value().pid <= 0 || who.value().pid != pid) return {};
  int exact = -1;
  socklen_t length = sizeof exact;
  if (::getsockopt(socket.get(), SOL_SOCKET, kPeerPidfd, &exact, &length) == 0) return Fd(exact);
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return hung_up(socket) ? Fd() : std::move(process);
}

}  // namespace

FailureDetector::FailureDetector(int size, std::vector<Peer> peers, StopRules stops,
                                 std::function<void()> on_news)
    : states_(static_cast<std::size_t>(size)), on_news_(std::move(on_news)), stops_(stops) {
  for (Peer& peer : peers) lines_.push_back({std::move(peer), {}, FrameParser::plain(kMostFrame)});
  no_memory_ =
      Status::make(Code::kInternal, name_of(own_rank()) + " is out of memory", kRoom, own_rank());
}

Status FailureDetector::prepare() {
  Result<Fd> event = make_event();
  if (event.is_ok()) event_ = event.take();
  return event.status();
}

Status FailureDetector::start() {
  for (Line& line : lines_)
    if (line.peer.same_host && line.peer.pid != ::getpid())
      line.process = process_of(line.peer.socket, line.peer.pid);
  for (const Line& line : lines_)
    if (line.process) stops_.add(line.peer.rank, line.peer.pid, line.process.get());
  return start_thread(
      thread_, [this] { run(); }, [this](const char* what) { raise_failure("hvd-watch", what); });
}

FailureDetector::~FailureDetector() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  signal_event(event_);
  thread_.join();
  // Unread data would turn the close into a reset, which may overtake our goodbye.
  for (const Line& line : lines_) {
    std::array<char, 1024> rest{};
    ::shutdown(line.peer.socket.get(), SHUT_WR);
    while (line.peer.socket &&
           ::recv(line.peer.socket.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0) {
    }
  }
}

void FailureDetector::run() {
  name_thread("hvd-watch");
  block_signals();
  std::vector<pollfd> items;
  while (!stop_.load()) {
    items.assign(1, {event_.get(), POLLIN, 0});
    for (const Line& line : lines_) {  // a closed one is -1, which poll() skips
      items.push_back({line.peer.socket.get(), POLLIN, 0});
      items.push_back({line.process.get(), POLLIN, 0});
    }
    const std::size_t lines_end = items.size();
    allow_descriptors(items.size() + served_.size());
    for (const Served* const served : served_) {
      const unsigned events = (served->reads() ? kIn : 0U) | (served->writes() ? kOut : 0U);
      items.push_back({events == 0 ? -1 : served->fd(), static_cast<short>(events), 0});
    }
    if (::poll(items.data(), items.size(), wait_ms()) < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return blind(errno, items.size());
    }
    if (items[0].revents != 0) drain_event(event_);
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const bool ended = items[2 + 2 * i].revents != 0;
      if (items[1 + 2 * i].revents != 0 || ended) read(lines_[i]);
      if (ended) end_of(lines_[i], "its process has ended");
    }
    serve_sockets(items.data() + lines_end);
    help();
    judge_goodbyes();
    failpoint("watch.judge");
    judge_suspects();
    judge_stops();
  }
}

// Without detection deaths would be missed and waits might never end, so abort.
void FailureDetector::blind(int error, std::size_t descriptors) {
  raise(errno_status(
      "the failure detector cannot wait for " + std::to_string(descriptors) + " descriptors", kRoom,
      error));
}

void FailureDetector::help() {
  working_ = false;
  for (const auto& work : work_) working_ = work() || working_;
}

void FailureDetector::judge_stops() {
  const std::optional<StopDetector::Stopped> stopped = stops_.check(Clock::now());
  if (!stopped || abort_.raised()) return;
  raise(Status::make(Code::kStalled,
                     name_of(stopped->rank) + " (process " + std::to_string(stopped->pid) +
                         ") is stopped (SIGSTOP or a debugger)",
                     kRoom, stopped->rank));
}

void FailureDetector::serve_sockets(const pollfd* items) {
  for (std::size_t i = 0; i < served_.size(); ++i) {
    const auto seen = static_cast<unsigned>(items[i].revents);
    if ((seen & ~kOut) != 0 && served_[i]->reads()) served_[i]->readable();
    if ((seen & ~kIn) != 0 && served_[i]->writes()) served_[i]->writable();
  }
}

// A goodbye may be faster than what was sent before it over another socket.
void FailureDetector::judge_goodbyes() {
  for (const Line& line : lines_) {
    PeerState& mark = states_[static_cast<std::size_t>(line.peer.rank)];
    if (!mark.goodbye || mark.left.load()) continue;
    const bool all = std::all_of(served_.begin(), served_.end(), [&](const Served* served) {
      return served->rank() != line.peer.rank || served->ended();
    });
    if (!all) continue;
    mark.left.store(true, std::memory_order_release);
    news();
  }
}

int FailureDetector::wait_ms() {
  int wait = working_ ? 1 : stops_.sleep_ms();
  const MutexLock lock(mutex_);
  for (const PeerState& mark : states_)
    if (mark.suspected)
      wait = wait < 0 ? mark.suspected->remaining_ms()
                      : std::min(wait, mark.suspected->remaining_ms());
  return wait;
}

void FailureDetector::read(Line& line) {
  while (line.peer.socket) {
    std::array<char, 4096> part{};
    const ssize_t got = ::recv(line.peer.socket.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (got > 0) {
      line.frames.stream().append(part.data(), static_cast<std::size_t>(got));
      if (take_frames(line)) continue;
      raise(Status::make(Code::kInternal,
                         name_of(line.peer.rank) + " sent a message that cannot be read", kRoom,
                         line.peer.rank));
      drop(line);
    } else if (got == 0 || !again(errno)) {
      end_of(line, reason_of(got == 0 ? 0 : errno));
    } else if (errno != EINTR) {
      return;
    }
  }
}

bool FailureDetector::take_frames(Line& line) {
  for (;;) {
    std::string_view frame;
    const FrameParser::Next next = line.frames.next(frame);
    if (next != FrameParser::Next::kFrame) return next == FrameParser::Next::kNothing;
    if (!take(line.peer.rank, frame)) return false;
  }
}

bool FailureDetector::take(int peer, std::string_view frame) {
  Unpacker reader(frame);
  const auto kind = static_cast<Frame>(reader.number<std::uint8_t>());
  if (kind == Frame::kGoodbye && reader.complete()) {
    states_[static_cast<std::size_t>(peer)].goodbye = true;
    return true;
  }
  const auto code = reader.number<std::uint8_t>();
  const auto rank = reader.number<std::int32_t>();
  std::string message = reader.text();
  std::string where = reader.text();
  const bool known = code > 0 && code < kCodeCount;
  if (kind != Frame::kAbort || !known || !reader.complete()) return false;
  raise(Status::make(static_cast<Code>(code), std::move(message), std::move(where), rank));
  return true;
}

void FailureDetector::end_of(Line& line, const std::string& why) {
  if (!line.peer.socket) return;
  const int rank = line.peer.rank;
  if (!states_[static_cast<std::size_t>(rank)].goodbye) died(rank, why);
  drop(line);
}

void FailureDetector::drop(Line& line) {
  stops_.forget(line.peer.rank);
  const MutexLock lock(mutex_);
  line.peer.socket.reset();
  line.process.reset();
  states_[static_cast<std::size_t>(line.peer.rank)].gone = true;
}

void FailureDetector::suspect(int peer, const std::string& why) {
  {
    const MutexLock lock(mutex_);
    PeerState& mark = states_[static_cast<std::size_t>(peer)];
    if (mark.suspected || mark.left.load()) return;
    mark.suspected = Deadline::after_seconds(kSuspicionSeconds);
    mark.why = why;
  }
  signal_event(event_);
}

// Checked once more after the time limit: a goodbye that arrived while the failure detector got no
// core must be read before the broken connection counts.
void FailureDetector::judge_suspects() {
  for (const Line& line : lines_) {
    std::string why;
    {
      const MutexLock lock(mutex_);
      PeerState& mark = states_[static_cast<std::size_t>(line.peer.rank)];
      if (!mark.suspected) continue;
      if (!mark.left.load() && !mark.gone) {
        if (!mark.suspected->expired() || !std::exchange(mark.overdue, true)) continue;
        why = mark.why;
      }
      mark.suspected.reset();
      mark.overdue = false;
    }
    if (!why.empty()) died(line.peer.rank, why);
  }
}

std::string FailureDetector::name_of(int peer) const { return "rank " + std::to_string(peer); }

// This rank is the only one without an entry in lines_.
int FailureDetector::own_rank() const {
  int own = 0;
  for (const Line& line : lines_)
    own += own == line.peer.rank ? 1 : 0;  // lines_ is ordered by rank
  return own;
}

void FailureDetector::died(int peer, const std::string& why) {
  int pid = 0;
  for (const Line& line : lines_)
    if (line.peer.rank == peer) pid = line.peer.pid;
  raise(Status::make(Code::kRankDied,
                     name_of(peer) + " (process " + std::to_string(pid) + ") has died: " + why,
                     kRoom, peer));
}

bool FailureDetector::leaving() {
  const MutexLock lock(mutex_);
  return leaving_;
}

// Raise an event of a peer. A rank that has left waits for no peer, so such events are no errors
// any more.
void FailureDetector::raise(const Status& cause) {
  if (!leaving()) raise_everywhere(cause);
}

// Notify the peers first, also of an abort that a peer reported: a waiting thread may end this
// process as soon as it knows, and peers must not mistake that death for the cause.
void FailureDetector::raise_everywhere(const Status& cause) {
  if (abort_.raised()) return;
  const std::string frame = abort_frame(cause);  // first, because it may fail for lack of memory
  if (!notified_.exchange(true) && !leaving()) notify_peers(frame);
  failpoint("watch.notified");
  if (abort_.raise(cause)) news();
}

// With the actual message, or with the preallocated one if there is no memory.
void FailureDetector::raise_failure(const char* thread, const char* what) noexcept {
  const int own = own_rank();
  tried([&] {
    raise_everywhere(Status::make(Code::kInternal,
                                  name_of(own) + ": its thread " + thread + " has ended: " + what,
                                  kRoom, own));
  });
  if (!abort_.raised() && !no_memory_raised_.exchange(true)) abort_.raise(std::move(no_memory_));
  tried([&] { news(); });
}

void FailureDetector::leave() {
  const std::string goodbye = goodbye_frame();  // first, because it may fail for lack of memory
  {
    const MutexLock lock(mutex_);
    if (leaving_) return;
    leaving_ = true;
  }
  // Peers must receive the abort before the goodbye that it causes, whichever rank raised it.
  if (abort_.raised()) {
    const std::string frame = abort_frame(abort_.cause());
    if (!notified_.exchange(true)) notify_peers(frame);
  }
  notify_peers(goodbye);
}

// At most an abort and a goodbye are sent over a socket in its life: they fit into its buffer, so
// this does not block. A peer that cannot be reached is dead, and its hang-up reports that.
void FailureDetector::notify_peers(const std::string& frame) {
  const MutexLock lock(mutex_);
  for (const Line& line : lines_) {
    failpoint("watch.notify");
    if (line.peer.socket)
      ::send(line.peer.socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void FailureDetector::news() { on_news_(); }

}  // namespace hvd
