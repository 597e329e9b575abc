// Mesh of ranks that are processes (or threads that connect like processes): shared memory or TCP
// for data, sockets for control and watch.
#include <algorithm>
#include <functional>

#include "base/cores.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/bootstrap/rendezvous.h"
#include "transport/control/control.h"
#include "transport/control/control_line.h"
#include "transport/mesh/hosts.h"
#include "transport/mesh/mesh.h"
#include "transport/mesh/options.h"
#include "transport/mpi/mpi_links.h"
#include "transport/shm/shared_heap.h"
#include "transport/shm/shm_arena.h"
#include "transport/socket/pack.h"
#include "transport/socket/socket.h"
#include "transport/tcp/tcp_links.h"
#include "transport/watch/failure_detector.h"

namespace hvd {
namespace {

const char* const kRoom = "transport/connect_mesh";

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

Status unreadable_control(int peer) {
  return Status::make(
      Code::kInternal,
      "rank " + std::to_string(peer) + " sent a control message that cannot be read", kRoom, peer);
}

class ConnectedMesh : public Mesh {
 public:
  ConnectedMesh(int rank, int size, MeshOptions options)
      : rank_(rank),
        size_(size),
        options_(std::move(options)),
        deadline_(Deadline::after_seconds(options_.start_timeout_s)) {
    options_.slot_bytes = rounded_slot_bytes(options_.slot_bytes);
  }

  ~ConnectedMesh() override {
    {
      const MutexLock lock(news_mutex_);
      wake_links_ = {};
      interrupt_links_ = {};
    }
    tcp_.reset();  // sends what is still pending
    mpi_.reset();
    failure_detector_.reset();
    control_.reset();  // after the failure detector, which serves its sockets
  }

  // Connect all ranks. The deadline covers lost ranks: either all ranks finish, or none.
  Status connect(Bootstrap& bootstrap) {
    deadline_ = deadline_.or_readable(bootstrap.news());
    Status status = connect_all(bootstrap);
    if (status && size_ > 1) status = bootstrap.finish();
    const bool may_be_news =
        !agreed_ && (status.code == Code::kTimeout || status.code == Code::kUnavailable);
    if (Status why = may_be_news ? bootstrap.alive() : Status::ok(); !why) status = std::move(why);
    if (!status) bootstrap.give_up(status);
    return status;
  }

  const Topology& topology() const override { return topology_; }
  std::string transport_to(int peer) const override {
    return over_mpi() ? "mpi" : shares_memory(peer) ? "shm" : "tcp";
  }
  SendLink& to(int peer) override { return *to_[at(peer)]; }
  RecvLink& from(int peer) override { return *from_[at(peer)]; }
  EagerLinks* eager() override { return may_be_eager() ? tcp_.get() : nullptr; }
  Status send_control(int peer, const std::string& bytes) override {
    return control_->send(peer, bytes);
  }
  ControlMessage poll_control() override { return control_->poll(); }
  Doorbell& doorbell() override { return *doorbell_; }
  bool may_spin() const override { return topology_.local_size <= usable_cores(); }
  std::unique_ptr<FastPath> fast_path() override {
    const bool all = has_arena_ && locals_.size() == at(size_);
    if (!all || locals_.size() > FastPath::Word::kMostRanks) return nullptr;
    const auto ranks = static_cast<unsigned>(size_);
    return std::make_unique<FastPath>(arena_->fast_path(), static_cast<unsigned>(rank_), ranks);
  }
  FastPathData fast_path_data() override {
    return has_arena_ ? arena_->fast_path_data() : FastPathData{};
  }
  SharedHeap* heap() override { return heap_.get(); }
  std::shared_ptr<SharedHeap> heap_holder() override { return heap_; }
  void attend(bool waiting) override { failure_detector_->attend(waiting); }
  Abort& abort() override { return failure_detector_->abort(); }
  bool has_left(int peer) const override {
    return failure_detector_->left(peer).load(std::memory_order_acquire) &&
           !failure_detector_->abort().raised();
  }
  void raise_everywhere(Status cause) override { failure_detector_->raise_everywhere(cause); }
  void leave() override {
    control_->flush(Deadline::after_seconds(options_.flush_s));
    control_->finish();
    failure_detector_->leave();
  }

 private:
  Status connect_all(Bootstrap& bootstrap) {
    Status status = agree(bootstrap);
    std::vector<PeerSockets> sockets(at(size_));
    ArenaPlan plan;
    if (status) status = plan_memory(bootstrap, plan);
    if (status && size_ > 1) status = meet(bootstrap, sockets);
    if (status) status = share_memory(sockets, std::move(plan.made));
    if (status) status = make_failure_detector(sockets);
    if (status) status = make_links(sockets, bootstrap);
    if (status) make_control(sockets);
    return status ? failure_detector_->start() : status;
  }

  int hosts() const {
    return 1 + *std::max_element(topology_.host_of.begin(), topology_.host_of.end());
  }
  // Eager rounds need a star: every rank is a child of rank 0.
  bool may_be_eager() const {
    return !over_mpi() && size_ <= kMostEagerRanks && size_ - 1 <= options_.fanout &&
           hosts() == size_;
  }
  bool beside(int peer) const {
    return topology_.host_of[at(peer)] == topology_.host_of[at(rank_)];
  }
  bool shares_memory(int peer) const { return has_arena_ && beside(peer); }
  bool over_mpi() const { return options_.transport == "mpi"; }
  bool may_share() const { return options_.transport != "tcp"; }
  bool neighbours(int a, int b) const {
    return parent_of(a, options_.fanout) == b || parent_of(b, options_.fanout) == a;
  }
  std::size_t place(int rank) const {
    return static_cast<std::size_t>(std::find(locals_.begin(), locals_.end(), rank) -
                                    locals_.begin());
  }
  ArenaShape shape() const {
    return {locals_.size(), options_.slot_bytes, options_.slots, options_.first_count};
  }

  // First exchange: which ranks share a host, and whether all ranks have the same options.
  Status agree(Bootstrap& bootstrap) {
    const std::string host = options_.host.empty() ? this_host() : options_.host;
    Result<std::vector<std::string>> hosts =
        size_ == 1 ? std::vector<std::string>{host} : exchange_settings(bootstrap, host);
    if (!hosts.is_ok()) return hosts.status();
    topology_ = topology_of(rank_, hosts.value());
    if (options_.place) {
      topology_.local_rank = options_.place->local_rank;
      topology_.cross_rank = options_.place->cross_rank;
      topology_.cross_size = options_.place->cross_size;
    }
    locals_ = ranks_beside(rank_, hosts.value());
    if (options_.transport == "shm" && topology_.local_size != size_)
      return Status::make(Code::kInvalidArgument,
                          "transport shm is for ranks of one host; these are on several", kRoom);
    return Status::ok();
  }

  Result<std::vector<std::string>> exchange_settings(Bootstrap& bootstrap,
                                                     const std::string& host) const {
    if (failpoint("connect.agree")) return Status::make(Code::kInternal, "failpoint", kRoom);
    const Result<std::vector<std::string>> all =
        bootstrap.allgather(card_of(host, settings_of(options_)));
    if (!all.is_ok()) return all.status();
    if (all.value().size() != at(size_))
      return Status::make(Code::kInternal, "the bootstrap has another size", kRoom);
    return read_cards(all.value());
  }

  // Second exchange: whether the ranks of every host can share memory. All ranks need the result
  // before they decide which sockets to open.
  Status plan_memory(Bootstrap& bootstrap, ArenaPlan& plan) {
    // If any two ranks share a host, all ranks take part in the exchange.
    if (!may_share() || hosts() == size_) return Status::ok();
    if (failpoint("connect.plan")) return Status::make(Code::kInternal, "failpoint", kRoom);
    if (topology_.local_size > 1) plan = plan_arena(shape(), rank_ == locals_.front());
    const Result<std::vector<std::string>> all = bootstrap.allgather(plan.missing);
    if (!all.is_ok()) return all.status();
    has_arena_ = topology_.local_size > 1;
    for (int rank = 0; rank < size_; ++rank) {
      const std::string& missing = all.value()[at(rank)];
      if (missing.empty()) continue;
      const std::string text = "rank " + std::to_string(rank) + ": " + missing;
      if (options_.transport == "shm") return Status::make(Code::kUnavailable, text, kRoom, rank);
      if (beside(rank)) has_arena_ = false;
      if (beside(rank) && rank_ == locals_.front())
        log(Level::kWarning, kRoom, "no shared memory, TCP instead: " + text);
    }
    return Status::ok();
  }

  Status meet(Bootstrap& bootstrap, std::vector<PeerSockets>& sockets) {
    if (failpoint("connect.meet")) return Status::make(Code::kInternal, "failpoint", kRoom);
    std::vector<PeerPlan> plans(at(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      plans[at(peer)].same_host = beside(peer);
      plans[at(peer)].wanted = {true, neighbours(rank_, peer) && !shares_memory(peer),
                                !shares_memory(peer) && !over_mpi()};
      plans[at(peer)].streams = options_.tcp_streams;
    }
    const Result<std::string> address =
        listen_address(options_.tcp_interface, topology_.local_size == size_);
    if (!address.is_ok()) return address.status();
    Result<std::vector<PeerSockets>> met =
        Rendezvous(rank_, std::move(plans), deadline_, options_.secret)
            .meet(bootstrap, address.value());
    if (met.is_ok()) sockets = met.take();
    return met.status();
  }

  // Uses the sockets that the failure detector owns afterwards.
  Status share_memory(std::vector<PeerSockets>& sockets, std::shared_ptr<ShmArena> made) {
    own_doorbell_ = std::make_unique<DoorbellMemory>();
    doorbell_ = std::make_unique<Doorbell>(*own_doorbell_);
    if (!has_arena_) return Status::ok();
    if (failpoint("connect.share")) return Status::make(Code::kInternal, "failpoint", kRoom);
    HostSockets host{rank_, locals_, {}, deadline_};
    for (const int peer : locals_)
      host.sockets.push_back(peer == rank_ ? nullptr
                                           : &sockets[at(peer)][Purpose::kFailureDetector]);
    Result<std::shared_ptr<ShmArena>> arena = share_arena(host, shape(), std::move(made));
    if (!arena.is_ok()) return arena.status();
    arena_ = arena.take();
    doorbell_ = std::make_unique<Doorbell>(arena_->doorbell(place(rank_)));
    Result<std::shared_ptr<SharedHeap>> heap =
        share_heap(host, heap_bytes_or_all(options_.heap_bytes));
    if (heap.is_ok()) heap_ = heap.take();
    return heap.status();
  }

  Status make_failure_detector(std::vector<PeerSockets>& sockets) {
    if (failpoint("connect.watch")) return Status::make(Code::kInternal, "failpoint", kRoom);
    std::vector<FailureDetector::Peer> peers;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      Fd& socket = sockets[at(peer)][Purpose::kFailureDetector];
      if (!beside(peer) && options_.net_timeout_s > 0)
        end_when_silent(socket, options_.net_timeout_s);
      peers.push_back({peer, sockets[at(peer)].pid, beside(peer), std::move(socket)});
    }
    failure_detector_ = std::make_unique<FailureDetector>(
        size_, std::move(peers), StopRules{options_.stop_warning_s, options_.stop_abort_s},
        [this] { news(); });
    return failure_detector_->prepare();
  }

  // Wake the threads that wait for a message or for a slot.
  void news() {
    doorbell_->ring();
    for (Counter* const counter : waits_) wake_sleeper(*counter);
    const MutexLock lock(news_mutex_);
    if (wake_links_) wake_links_();
  }

  // A thread that waits for control messages may be waiting for eager slots at the same time.
  void control_news() {
    doorbell_->ring();
    const MutexLock lock(news_mutex_);
    if (interrupt_links_) interrupt_links_();
  }

  void make_control(std::vector<PeerSockets>& sockets) {
    FailureDetector& failure_detector = *failure_detector_;
    control_ = std::make_unique<Control>(ControlRules{
        doorbell_.get(), &failure_detector.abort(),
        [&failure_detector](int peer) {
          return failure_detector.left(peer).load(std::memory_order_acquire);
        },
        [&failure_detector](int peer) { failure_detector.suspect(peer, "its connection broke"); },
        [&failure_detector](int peer) {
          failure_detector.raise_everywhere(unreadable_control(peer));
        }});
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || !neighbours(rank_, peer)) continue;
      if (shares_memory(peer)) {
        control_over_memory(peer);
      } else {
        auto line = std::make_unique<SocketLine>(
            peer, std::move(sockets[at(peer)][Purpose::kControl]),
            SocketLine::Calls{[this] { control_news(); },
                              [&failure_detector] { failure_detector.nudge(); }});
        failure_detector.serve(line.get());
        control_->add(std::move(line));
      }
    }
  }

  void control_over_memory(int peer) {
    const bool child = parent_of(peer, options_.fanout) == rank_;
    const std::size_t lower = place(child ? peer : rank_);
    const auto ring_peer = [doorbell = Doorbell(arena_->doorbell(place(peer)))]() mutable {
      doorbell.ring();
    };
    auto line = std::make_unique<MemoryLine>(
        peer, arena_->control(lower, child ? Direction::kDown : Direction::kUp),
        arena_->control(lower, child ? Direction::kUp : Direction::kDown),
        MemoryLine::Calls{ring_peer, ring_peer, [this] { failure_detector_->nudge(); }});
    failure_detector_->help([this, line = line.get()] {
      if (!line->pending()) return false;
      line->flush();
      if (line->pending()) return true;
      doorbell_->ring();  // wakes a thread that flushes before leaving
      return false;
    });
    control_->add(std::move(line));
  }

  Status make_links(std::vector<PeerSockets>& sockets, Bootstrap& bootstrap) {
    if (failpoint("connect.links")) return Status::make(Code::kInternal, "failpoint", kRoom);
    to_.resize(at(size_));
    from_.resize(at(size_));
    if (over_mpi() && size_ > 1) {
      Result<std::unique_ptr<MpiLinks>> mpi =
          MpiLinks::open({rank_, size_, options_.slot_bytes, options_.slots, options_.flush_s},
                         bootstrap, failure_detector_->abort(), raises("hvd-mpi"), deadline_);
      // An error with a rank is known to all ranks, which then exit: a lost peer is no further
      // news.
      agreed_ = mpi.status().rank >= 0;
      if (!mpi.is_ok()) return mpi.status();
      mpi_ = mpi.take();
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      if (over_mpi()) {
        link_over_mpi(peer);
      } else if (shares_memory(peer)) {
        link_over_memory(peer);
      } else {
        link_over_tcp(peer, sockets[at(peer)].take_data());
      }
    }
    if (tcp_ == nullptr) return Status::ok();
    Status status = tcp_->start();
    const MutexLock lock(news_mutex_);
    wake_links_ = [this] { tcp_->wake(); };
    interrupt_links_ = [this] { tcp_->interrupt_wait(); };
    return status;
  }

  Failed raises(const char* thread) {
    return [this, thread](const char* what) { failure_detector_->raise_failure(thread, what); };
  }

  void link_over_mpi(int peer) {
    mpi_->left(peer, &failure_detector_->left(peer));
    to_[at(peer)] = mpi_->send_link(peer);
    from_[at(peer)] = mpi_->recv_link(peer);
  }

  void link_over_memory(int peer) {
    const WaitRules rules{may_spin(), &failure_detector_->left(peer), nullptr, peer};
    auto to = std::make_unique<ShmSendLink>(arena_, arena_->ring(place(rank_), place(peer)), rules);
    auto from = std::make_unique<RingRecvLink>(arena_->ring(place(peer), place(rank_)), rules);
    waits_.push_back(&to->awaited());
    waits_.push_back(&from->awaited());
    to_[at(peer)] = std::move(to);
    from_[at(peer)] = std::move(from);
  }

  void link_over_tcp(int peer, std::vector<Fd> streams) {
    if (tcp_ == nullptr)
      tcp_ = std::make_unique<TcpLinks>(
          options_.slot_bytes, options_.slots, failure_detector_->abort(),
          [this](int who, const std::string& why) { failure_detector_->suspect(who, why); },
          raises("hvd-io"), options_.flush_s);
    tcp_->rings([this] { doorbell_->ring(); });
    tcp_->add(peer, std::move(streams), &failure_detector_->left(peer), may_spin());
    to_[at(peer)] = tcp_->send_link(peer);
    from_[at(peer)] = tcp_->recv_link(peer);
  }

  int rank_, size_;
  MeshOptions options_;
  Deadline deadline_;
  Topology topology_;
  std::vector<int> locals_;  // ranks of this host
  bool has_arena_ = false;
  std::shared_ptr<ShmArena> arena_;
  std::shared_ptr<SharedHeap> heap_;
  std::unique_ptr<DoorbellMemory> own_doorbell_;  // used if no other process needs it
  std::unique_ptr<Doorbell> doorbell_;
  std::vector<Counter*> waits_;  // counters that this rank may sleep on in a link over memory
  std::unique_ptr<FailureDetector> failure_detector_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<TcpLinks> tcp_;
  std::unique_ptr<MpiLinks> mpi_;
  bool agreed_ = false;  // all ranks know why the connection failed
  Mutex news_mutex_;
  std::function<void()> wake_links_
      GUARDED_BY(news_mutex_);  // for links that do not sleep on a counter
  std::function<void()> interrupt_links_ GUARDED_BY(news_mutex_);
  std::vector<std::unique_ptr<SendLink>> to_;
  std::vector<std::unique_ptr<RecvLink>> from_;
};

}  // namespace

Result<std::unique_ptr<Mesh>> connect_mesh(int rank, int size, Bootstrap& bootstrap,
                                           const MeshOptions& options) {
  Status status = check_options(rank, size, options);
  if (!status) return status;
  auto mesh = std::make_unique<ConnectedMesh>(rank, size, options);
  status = mesh->connect(bootstrap);
  if (!status) return status;
  return std::unique_ptr<Mesh>(std::move(mesh));
}

}  // namespace hvd
