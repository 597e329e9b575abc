// Ranks as processes (or as threads that meet like processes): shared memory or TCP for data,
// sockets for control and watch.
#include <algorithm>

#include "base/thread.h"
#include "transport/control.h"
#include "transport/hosts.h"
#include "transport/mesh.h"
#include "transport/options.h"
#include "transport/pack.h"
#include "transport/rendezvous.h"
#include "transport/shm_arena.h"
#include "transport/socket.h"
#include "transport/tcp_io.h"
#include "transport/watch.h"

namespace hvd {
namespace {

const char* const kRoom = "transport/connect_mesh";
constexpr double kFlushSeconds = 2;

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

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
    io_.reset();  // what lies in the TCP rings still goes out
    watch_.reset();
    control_.reset();  // after the watch, which serves its outboxes
  }

  Status connect(Bootstrap& bootstrap) {
    Status status = agree(bootstrap);
    std::vector<PeerSockets> sockets(at(size_));
    if (status && size_ > 1) status = meet(bootstrap, sockets);
    if (status) status = share_memory(sockets);
    if (status) status = start_watch(sockets);
    if (status) status = start_control(sockets);
    if (status) status = make_links(sockets);
    return status;
  }

  const Topology& topology() const override { return topology_; }
  std::string transport_to(int peer) const override { return shares_memory(peer) ? "shm" : "tcp"; }
  SendLink& to(int peer) override { return *to_[at(peer)]; }
  RecvLink& from(int peer) override { return *from_[at(peer)]; }
  Status send_control(int peer, const std::string& bytes) override {
    return control_->send(peer, bytes);
  }
  ControlMessage wait_control(std::chrono::nanoseconds longest) override {
    return control_->wait(longest);
  }
  void wake() override { control_->wake(); }
  Abort& abort() override { return watch_->abort(); }
  bool has_left(int peer) const override {
    return watch_->left(peer).load(std::memory_order_acquire) && !watch_->abort().raised();
  }
  void raise_everywhere(Status cause) override { watch_->raise_everywhere(cause); }
  void leave() override {
    control_->flush(Deadline::after_seconds(kFlushSeconds));
    watch_->leave();
  }

 private:
  bool beside(int peer) const { return hosts_[at(peer)] == hosts_[at(rank_)]; }
  bool shares_memory(int peer) const { return beside(peer) && options_.transport != "tcp"; }

  // First exchange: who shares a host, and whether all ranks were told the same.
  Status agree(Bootstrap& bootstrap) {
    const std::string host = options_.host.empty() ? this_host() : options_.host;
    const std::string told = options_.transport + ", slot_bytes " +
                             std::to_string(options_.slot_bytes) + ", slots " +
                             std::to_string(options_.slots);
    if (size_ == 1) {
      hosts_ = {host};
      topology_ = topology_of(0, hosts_);
      return Status::ok();
    }
    const Result<std::vector<std::string>> all =
        bootstrap.allgather(Packer().text(host).text(told).take());
    if (!all.is_ok()) return all.status();
    if (all.value().size() != at(size_))
      return Status::make(Code::kInternal, "the bootstrap has another size", kRoom);
    for (int rank = 0; rank < size_; ++rank) {
      Unpacker reader(all.value()[at(rank)]);
      hosts_.push_back(reader.text());
      const std::string its = reader.text();
      if (!reader.complete())
        return Status::make(Code::kInternal,
                            "rank " + std::to_string(rank) + " speaks another version", kRoom,
                            rank);
      if (its != told) return different(rank, its, told);
    }
    topology_ = topology_of(rank_, hosts_);
    return Status::ok();
  }

  Status different(int rank, const std::string& its, const std::string& ours) const {
    std::string text = "rank " + std::to_string(rank) + " was started with transport " + its;
    text.append(", rank ").append(std::to_string(rank_)).append(" with ").append(ours);
    text.append("; give every rank the same settings");
    return Status::make(Code::kInvalidArgument, std::move(text), kRoom, rank);
  }

  Status meet(Bootstrap& bootstrap, std::vector<PeerSockets>& sockets) {
    std::vector<PeerPlan> plans(at(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      plans[at(peer)].same_host = beside(peer);
      plans[at(peer)].wanted = {true, std::min(rank_, peer) == 0, !shares_memory(peer)};
    }
    const Result<std::string> address =
        listen_address(options_.tcp_interface, topology_.local_size == size_);
    if (!address.is_ok()) return address.status();
    Result<std::vector<PeerSockets>> met =
        Rendezvous(rank_, std::move(plans), deadline_).meet(bootstrap, address.value());
    if (met.is_ok()) sockets = met.take();
    return met.status();
  }

  // The host's first rank makes the arena and passes it on, over the sockets that the watch gets
  // afterwards.
  Status share_memory(std::vector<PeerSockets>& sockets) {
    if (topology_.local_size == 1 || options_.transport == "tcp") return Status::ok();
    locals_ = ranks_beside(rank_, hosts_);
    const ArenaShape shape{locals_.size(), options_.slot_bytes, options_.slots};
    const int first = locals_.front();
    if (rank_ != first) {
      Result<Fd> memory = receive_fd(sockets[at(first)][Purpose::kWatch], deadline_);
      if (!memory.is_ok()) return memory.status();
      return keep(ShmArena::attach(shape, memory.take()));
    }
    Status status = keep(ShmArena::create(shape));
    for (const int peer : locals_)
      if (status && peer != rank_)
        status = send_fd(sockets[at(peer)][Purpose::kWatch], arena_->fd(), deadline_);
    return status;
  }

  Status keep(Result<std::shared_ptr<ShmArena>> arena) {
    if (arena.is_ok()) arena_ = arena.take();
    return arena.status();
  }

  Status start_watch(std::vector<PeerSockets>& sockets) {
    std::vector<Watch::Peer> peers;
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_)
        peers.push_back({peer, sockets[at(peer)].pid, beside(peer),
                         std::move(sockets[at(peer)][Purpose::kWatch])});
    Result<Fd> event = make_event();
    if (!event.is_ok()) return event.status();
    event_ = event.take();
    watch_ = std::make_unique<Watch>(size_, std::move(peers), [this] { signal_event(event_); });
    return Status::ok();
  }

  Status start_control(std::vector<PeerSockets>& sockets) {
    control_ = std::make_unique<Control>(event_, *watch_);
    for (int peer = 0; peer < size_; ++peer)
      if (sockets[at(peer)][Purpose::kControl])
        control_->add(peer, std::move(sockets[at(peer)][Purpose::kControl]));
    watch_->serve(control_->outboxes());
    return watch_->start();
  }

  Status make_links(std::vector<PeerSockets>& sockets) {
    to_.resize(at(size_));
    from_.resize(at(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      if (shares_memory(peer)) {
        link_over_memory(peer);
      } else {
        link_over_tcp(peer, std::move(sockets[at(peer)][Purpose::kData]));
      }
    }
    return io_ == nullptr ? Status::ok() : io_->start();
  }

  void link_over_memory(int peer) {
    const auto place = [this](int rank) {
      return static_cast<std::size_t>(std::find(locals_.begin(), locals_.end(), rank) -
                                      locals_.begin());
    };
    const WaitRules rules{topology_.local_size <= usable_cores(), &watch_->left(peer), nullptr,
                          peer};
    to_[at(peer)] =
        std::make_unique<ShmSendLink>(arena_, arena_->ring(place(rank_), place(peer)), rules);
    from_[at(peer)] =
        std::make_unique<RingRecvLink>(arena_->ring(place(peer), place(rank_)), rules);
  }

  void link_over_tcp(int peer, Fd socket) {
    if (io_ == nullptr)
      io_ = std::make_unique<TcpIo>(
          options_.slot_bytes, options_.slots, watch_->abort(),
          [this](int who, const std::string& why) { watch_->suspect(who, why); });
    io_->add(peer, std::move(socket));
    // Each rank has an I/O thread that wants a core as well.
    const WaitRules rules{2 * topology_.local_size <= usable_cores(), &watch_->left(peer),
                          &io_->ended(peer), peer};
    to_[at(peer)] = std::make_unique<RingSendLink>(io_->outgoing(peer), rules, io_.get());
    from_[at(peer)] = std::make_unique<RingRecvLink>(io_->incoming(peer), rules, io_.get());
  }

  int rank_, size_;
  MeshOptions options_;
  Deadline deadline_;
  Topology topology_;
  std::vector<std::string> hosts_;  // by rank
  std::vector<int> locals_;         // the ranks of this host
  Fd event_;                        // wakes wait_control()
  std::shared_ptr<ShmArena> arena_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<TcpIo> io_;
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
