// n ranks as threads of one process. What is a socket between processes is a locked queue here;
// links are the same SlotRings.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/thread.h"
#include "transport/heap_ring.h"
#include "transport/mesh.h"
#include "transport/options.h"
#include "transport/ring_link.h"

namespace hvd {
namespace {

// One rank's letter-box, and what the others know of it.
struct Desk {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<ControlMessage> inbox;
  bool woken = false;
  Abort abort;
  std::atomic<bool> left{false};
};

struct Hub {
  Hub(int ranks, const MeshOptions& options) : size(ranks) {
    for (int i = 0; i < size; ++i) desks.push_back(std::make_unique<Desk>());
    for (int i = 0; i < size * size; ++i)
      rings.push_back(
          i / size == i % size
              ? nullptr
              : std::make_unique<HeapRing>(rounded_slot_bytes(options.slot_bytes), options.slots));
  }
  RingMemory ring(int from, int to) const {
    return rings[static_cast<std::size_t>(from) * desks.size() + static_cast<std::size_t>(to)]
        ->memory();
  }
  Desk& desk(int rank) const { return *desks[static_cast<std::size_t>(rank)]; }
  void wake(int rank) const {
    const std::lock_guard<std::mutex> lock(desk(rank).mutex);
    desk(rank).woken = true;
    desk(rank).arrived.notify_one();
  }

  int size;
  std::vector<std::unique_ptr<Desk>> desks;
  std::vector<std::unique_ptr<HeapRing>> rings;  // from * size + to
};

class LocalMesh : public Mesh {
 public:
  LocalMesh(int rank, std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {
    topology_.rank = topology_.local_rank = rank;
    topology_.size = topology_.local_size = hub_->size;
    const bool spin = hub_->size <= usable_cores();
    for (int peer = 0; peer < hub_->size; ++peer) {
      const WaitRules rules{spin, &hub_->desk(peer).left, nullptr, peer};
      const bool self = peer == rank;
      to_.push_back(self ? nullptr : std::make_unique<RingSendLink>(hub_->ring(rank, peer), rules));
      from_.push_back(self ? nullptr
                           : std::make_unique<RingRecvLink>(hub_->ring(peer, rank), rules));
    }
  }

  const Topology& topology() const override { return topology_; }
  std::string transport_to(int) const override { return "local"; }
  SendLink& to(int peer) override { return *to_[static_cast<std::size_t>(peer)]; }
  RecvLink& from(int peer) override { return *from_[static_cast<std::size_t>(peer)]; }

  Status send_control(int peer, const std::string& bytes) override {
    Desk& desk = hub_->desk(peer);
    const bool left = desk.left.load();  // looked at first: an abort is told before the goodbye
    if (abort().raised()) return abort().cause();
    if (left) return gone(peer);
    const std::lock_guard<std::mutex> lock(desk.mutex);
    desk.inbox.push_back({topology_.rank, bytes});
    desk.arrived.notify_one();
    return Status::ok();
  }

  ControlMessage wait_control(std::chrono::nanoseconds longest) override {
    Desk& desk = mine();
    std::unique_lock<std::mutex> lock(desk.mutex);
    desk.arrived.wait_for(lock, std::min<std::chrono::nanoseconds>(longest, std::chrono::hours(1)),
                          [&] { return desk.woken || !desk.inbox.empty() || desk.abort.raised(); });
    desk.woken = false;
    if (desk.inbox.empty() || desk.abort.raised()) return {};
    ControlMessage message = std::move(desk.inbox.front());
    desk.inbox.pop_front();
    return message;
  }

  void wake() override { hub_->wake(topology_.rank); }
  Abort& abort() override { return mine().abort; }
  bool has_left(int peer) const override {
    return hub_->desk(peer).left.load() && !mine().abort.raised();
  }

  void raise_everywhere(Status cause) override {
    for (int rank = 0; rank < hub_->size; ++rank) {
      hub_->desk(rank).abort.raise(cause);
      hub_->wake(rank);
    }
  }

  void leave() override {
    // Nobody shall see this goodbye before the abort that is its reason.
    if (abort().raised()) raise_everywhere(abort().cause());
    mine().left.store(true);
    for (int rank = 0; rank < hub_->size; ++rank) hub_->wake(rank);
  }

 private:
  Desk& mine() const { return hub_->desk(topology_.rank); }
  static Status gone(int peer) {
    return Status::make(Code::kShutdown, "rank " + std::to_string(peer) + " has shut down",
                        "transport/local_mesh: send_control", peer);
  }

  std::shared_ptr<Hub> hub_;
  Topology topology_;
  std::vector<std::unique_ptr<RingSendLink>> to_;
  std::vector<std::unique_ptr<RingRecvLink>> from_;
};

}  // namespace

std::vector<std::unique_ptr<Mesh>> make_local_meshes(int size, const MeshOptions& options) {
  const auto hub = std::make_shared<Hub>(size, options);
  std::vector<std::unique_ptr<Mesh>> meshes;
  meshes.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) meshes.push_back(std::make_unique<LocalMesh>(rank, hub));
  return meshes;
}

}  // namespace hvd
