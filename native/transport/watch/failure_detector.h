// Failure detector: one thread ("hvd-watch") that waits on a socket to every peer and detects
// failures while all other threads compute or are blocked.
//   abort frame           the abort is raised with the status it carries, and passed on
//   goodbye               the hang-up of the peer that follows is intended
//   hang-up, no goodbye   the peer has died: the abort is raised and sent to the other ranks
//   silence               the same for a peer on another host that does not answer (keepalive)
//   suspicion             another connection to the peer broke: a death, unless a goodbye arrives
//                         within half a second (read even if the failure detector was late itself)
// On one host a pidfd complements the socket: a child that was created without the handlers of
// fork() may keep the socket open after the peer's death (base/fd.h: close_on_fork).
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/abort.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "transport/socket/socket.h"
#include "transport/watch/stop_detector.h"

namespace hvd {

// A socket that the failure detector reads and writes on behalf of another object.
class Served {
 public:
  virtual ~Served() = default;
  virtual int rank() const = 0;  // of the peer
  virtual int fd() const = 0;
  virtual bool reads() const = 0;
  virtual bool writes() const = 0;
  virtual void readable() = 0;
  virtual void writable() = 0;
  virtual bool ended() const = 0;  // the stream has ended: only then a goodbye counts
};

class FailureDetector {
 public:
  struct Peer {
    int rank = -1;
    int pid = 0;
    bool same_host = false;
    Fd socket;
  };

  // on_news is called after the abort was raised and after every goodbye, from any thread.
  FailureDetector(int size, std::vector<Peer> peers, StopRules stops,
                  std::function<void()> on_news);
  ~FailureDetector();  // without a prior leave() the peers count it as a death
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  void serve(Served* served) { served_.push_back(served); }  // before start()
  // Called every millisecond after a nudge(), while one of them returns true. Before start().
  void help(std::function<bool()> work) { work_.push_back(std::move(work)); }
  Status prepare();  // before all other calls
  Status start();
  void nudge() { signal_event(event_); }  // data are kept that could not be sent
  Abort& abort() { return abort_; }
  const std::atomic<bool>& left(int peer) const {
    return states_[static_cast<std::size_t>(peer)].left;
  }

  // A thread of this process waits for peers: check whether one of them is stopped.
  void attend(bool waiting) {
    if (stops_.attend(waiting)) nudge();
  }

  void raise_everywhere(const Status& cause);
  // A thread of this rank ended with an exception (no memory): the abort is raised in any case.
  void raise_failure(const char* thread, const char* what) noexcept;
  void leave();
  // Another connection to the peer broke. Any thread.
  void suspect(int peer, const std::string& why);

 private:
  struct PeerState {
    std::atomic<bool> left{false};
    bool goodbye =
        false;  // received, but earlier data may still be in flight; used by the failure detector
    bool gone = false;                  // nothing more arrives from it; guarded by mutex_
    std::optional<Deadline> suspected;  // guarded by mutex_
    bool overdue = false;               // expired at the last check; used by the failure detector
    std::string why;                    // guarded by mutex_
  };
  struct Line {  // one peer as the failure detector thread sees it
    Peer peer;
    Fd process;  // pidfd
    FrameParser frames;
  };

  void run();
  void blind(int error, std::size_t descriptors);
  int wait_ms();
  void read(Line& line);
  bool take_frames(Line& line);
  bool take(int peer, std::string_view frame);
  void end_of(Line& line, const std::string& why);
  void judge_suspects();
  void judge_goodbyes();
  void judge_stops();
  void help();
  void serve_sockets(const pollfd* items);
  void died(int peer, const std::string& why);
  bool leaving();
  void raise(const Status& cause);
  void notify_peers(const std::string& frame);
  void drop(Line& line);
  void news();
  std::string name_of(int peer) const;
  int own_rank() const;

  std::vector<Line> lines_;        // only the failure detector thread closes sockets, under mutex_
  std::vector<PeerState> states_;  // by rank
  std::function<void()> on_news_;
  StopDetector stops_;
  Abort abort_;
  Status no_memory_;  // allocated beforehand
  std::atomic<bool> no_memory_raised_{false};
  Fd event_;
  Mutex mutex_;
  bool leaving_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> notified_{false};  // the abort was sent to the peers, or will be
  std::vector<Served*> served_;
  std::vector<std::function<bool()>> work_;
  bool working_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace hvd
