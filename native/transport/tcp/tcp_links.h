// TCP data links. The thread that uses a link does its own I/O: published data go into the socket
// at once, and while it waits for a slot it sends pending data to any peer, so that no order of
// sends and receives can deadlock. The thread "hvd-io" sleeps unless data are pending while no
// thread waits.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/abort.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/link/link.h"
#include "transport/tcp/tcp_stream.h"

namespace hvd {

class TcpLinks : public EagerLinks {
 public:
  // A connection broke or ended: a death unless the peer has sent a goodbye. Any thread.
  using Broken = std::function<void(int peer, const std::string& why)>;

  // failed: called if the I/O thread fails.
  TcpLinks(std::size_t slot_bytes, std::size_t slots, const Abort& abort, Broken broken,
           Failed failed, double flush_s);
  ~TcpLinks() override;  // sends pending data for at most flush_s
  TcpLinks(const TcpLinks&) = delete;
  TcpLinks& operator=(const TcpLinks&) = delete;

  // Before start(). left: set when the peer has sent a goodbye. spare_cores: this host has no more
  // ranks than cores.
  void add(int peer, std::vector<Fd> streams, const std::atomic<bool>* left, bool spare_cores);
  Status start();
  // Valid for the lifetime of this object.
  std::unique_ptr<SendLink> send_link(int peer);
  std::unique_ptr<RecvLink> recv_link(int peer);
  // Wake waiting threads after an abort or a departure. Any thread.
  void wake() { signal_event(news_); }
  // Before start(): the callback of watch().
  void rings(std::function<void()> ring) { ring_ = std::move(ring); }

  std::size_t most_bytes() const override { return slot_bytes_ - kEagerTag; }
  std::byte* acquire(int peer) override;
  void publish(int peer, const EagerTag& tag, std::size_t bytes) override;
  EagerArrival poll(int peer, std::uint64_t position) override;
  void accept(int peer) override;
  void wait(const std::vector<int>& peers, const std::function<bool()>& news,
            std::chrono::nanoseconds longest) override;
  void watch(const std::vector<int>& peers) override;
  void interrupt_wait() override;

  struct Peer;
  Result<Slot> acquire(Peer& peer, const Abort& abort);
  void publish(Peer& peer, std::size_t bytes);
  Result<Slot> peek(Peer& peer, const Abort& abort);

 private:
  enum class Direction { kSend, kReceive };

  Slot attempt(Peer& peer, Direction direction);
  Result<Slot> wait(Peer& peer, Direction direction, const Abort& abort);
  void sleep(const Peer& peer, Direction direction);
  void push_pending();
  bool pending() const;
  void report_broken(Peer& peer, const std::string& why);
  void run();
  void sleep_of_io();
  void add_awaited(const std::vector<int>& peers, std::vector<pollfd>& items) const;
  void pushed(Peer& peer);
  Peer& peer_of(int rank) const;

  std::size_t slot_bytes_, slots_;
  double flush_s_;
  const Abort& abort_;
  Broken broken_;
  Failed failed_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Fd news_, work_;  // events: for waiting threads; for the I/O thread
  std::atomic<int> waiting_{0};
  std::atomic<bool> sleeping_{false}, stop_{false};
  std::atomic<bool> in_wait_{false};  // a thread is in wait(), which a doorbell must wake
  std::function<void()> ring_;
  Mutex watch_mutex_;
  std::vector<pollfd> watched_ GUARDED_BY(watch_mutex_);
  std::thread thread_;
};

}  // namespace hvd
