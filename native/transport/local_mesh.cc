// Mesh of n ranks that are threads of one process: links and control channel are the same rings as
// between processes, on this process's heap. Threads do not die alone, so there is no watch.
#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "base/cores.h"
#include "base/log.h"
#include "base/mutex.h"
#include "transport/control/control.h"
#include "transport/control/control_line.h"
#include "transport/link/slot_ring.h"
#include "transport/mesh/mesh.h"
#include "transport/mesh/options.h"
#include "transport/shm/heap_ring.h"
#include "transport/shm/shared_heap.h"

namespace hvd {
namespace {

const char* const kRoom = "transport/local_mesh";

// The part of one rank that its peers use.
struct RankContext {
  explicit RankContext(std::uint32_t first_count) : up(first_count), down(first_count) {}
  DoorbellMemory doorbell;
  HeapControlRing up, down;  // to and from the parent
  Abort abort;
  std::atomic<bool> left{false};
  std::vector<Counter*> waits;  // counters that it may sleep on in a link
};

struct Hub {
  Hub(int ranks, const MeshOptions& mesh_options)
      : size(ranks),
        options(mesh_options),
        fast_path_texts(std::make_unique<FastPathText[]>(static_cast<std::size_t>(ranks))),
        fast_path_data(2 * static_cast<std::size_t>(ranks) *
                       fast_path_data_bytes(static_cast<std::size_t>(ranks))) {
    const std::size_t slot_bytes = rounded_slot_bytes(options.slot_bytes);
    for (int i = 0; i < size; ++i)
      contexts.push_back(std::make_unique<RankContext>(options.first_count));
    for (int i = 0; i < size * size; ++i)
      rings.push_back(i / size == i % size ? nullptr
                                           : std::make_unique<HeapRing>(slot_bytes, options.slots,
                                                                        options.first_count));
    if (size == 1) return;
    Result<std::shared_ptr<MemfdHeap>> made =
        MemfdHeap::create(heap_bytes_or_all(mesh_options.heap_bytes));
    if (made.is_ok()) heap = made.take();
    if (!heap) log(Level::kWarning, kRoom, "no shared heap: " + made.status().message);
  }
  RingMemory ring(int from, int to) const {
    return rings[static_cast<std::size_t>(from) * contexts.size() + static_cast<std::size_t>(to)]
        ->memory();
  }
  RankContext& context(int rank) const { return *contexts[static_cast<std::size_t>(rank)]; }
  void ring_doorbell(int rank) const { Doorbell(context(rank).doorbell).ring(); }
  // Wake the rank if it waits for a message or for a slot.
  void news(int rank) const {
    ring_doorbell(rank);
    for (Counter* const counter : context(rank).waits) wake_sleeper(*counter);
  }

  int size;
  MeshOptions options;
  std::vector<std::unique_ptr<RankContext>> contexts;
  std::vector<std::unique_ptr<HeapRing>> rings;  // from * size + to
  FastPathHeader fast_path;
  std::unique_ptr<FastPathText[]> fast_path_texts;  // by rank
  std::vector<std::byte> fast_path_data;
  std::shared_ptr<SharedHeap> heap;
  // A rank that has made room sends what its peer has kept, because the peer may be blocked in a
  // link.
  Mutex mutex;
  std::map<std::pair<int, int>, MemoryLine*> lines GUARDED_BY(mutex);  // of a rank, to a peer
  void push_on(int rank, int peer) {
    const MutexLock lock(mutex);
    const auto found = lines.find({rank, peer});
    if (found != lines.end()) found->second->flush();
  }
};

class LocalMesh : public Mesh {
 public:
  LocalMesh(int rank, std::shared_ptr<Hub> hub)
      : hub_(std::move(hub)), doorbell_(hub_->context(rank).doorbell), control_(rules(rank)) {
    topology_ = topology_of_threads(rank, hub_->size);
    for (int peer = 0; peer < hub_->size; ++peer) {
      to_.emplace_back();
      from_.emplace_back();
      if (peer != rank) link(rank, peer);
      if (parent_of(peer, hub_->options.fanout) == rank ||
          parent_of(rank, hub_->options.fanout) == peer)
        add_control(rank, peer);
    }
  }

  ~LocalMesh() override {
    const MutexLock lock(hub_->mutex);
    for (int peer = 0; peer < hub_->size; ++peer) hub_->lines.erase({topology_.rank, peer});
  }

  const Topology& topology() const override { return topology_; }
  std::string transport_to(int) const override { return "local"; }
  SendLink& to(int peer) override { return *to_[static_cast<std::size_t>(peer)]; }
  RecvLink& from(int peer) override { return *from_[static_cast<std::size_t>(peer)]; }
  Status send_control(int peer, const std::string& bytes) override {
    return control_.send(peer, bytes);
  }
  ControlMessage poll_control() override { return control_.poll(); }
  Doorbell& doorbell() override { return doorbell_; }
  bool may_spin() const override { return hub_->size <= usable_cores(); }
  std::unique_ptr<FastPath> fast_path() override {
    const auto ranks = static_cast<unsigned>(hub_->size);
    if (ranks > FastPath::Word::kMostRanks) return nullptr;
    const FastPathMemory memory{&hub_->fast_path, hub_->fast_path_texts.get(), ranks};
    return std::make_unique<FastPath>(memory, static_cast<unsigned>(topology_.rank), ranks);
  }
  FastPathData fast_path_data() override {
    if (hub_->fast_path_data.empty()) return {};
    return {hub_->fast_path_data.data(), fast_path_data_bytes(hub_->contexts.size())};
  }
  SharedHeap* heap() override { return hub_->heap.get(); }
  std::shared_ptr<SharedHeap> heap_holder() override { return hub_->heap; }
  void attend(bool) override {}  // a thread cannot be stopped alone
  Abort& abort() override { return mine().abort; }
  bool has_left(int peer) const override {
    return hub_->context(peer).left.load() && !mine().abort.raised();
  }

  void raise_everywhere(Status cause) override {
    for (int rank = 0; rank < hub_->size; ++rank) hub_->context(rank).abort.raise(cause);
    for (int rank = 0; rank < hub_->size; ++rank) hub_->news(rank);
  }

  void leave() override {
    // Peers must receive the abort before the goodbye that it causes.
    if (abort().raised()) raise_everywhere(abort().cause());
    control_.flush(Deadline::after_seconds(hub_->options.flush_s));
    mine().left.store(true);
    for (int rank = 0; rank < hub_->size; ++rank) hub_->news(rank);
  }

 private:
  RankContext& mine() const { return hub_->context(topology_.rank); }

  static Topology topology_of_threads(int rank, int size) {
    Topology topology;
    topology.rank = topology.local_rank = rank;
    topology.size = topology.local_size = size;
    topology.host_of.assign(static_cast<std::size_t>(size), 0);
    return topology;
  }

  ControlRules rules(int rank) {
    return {&doorbell_, &hub_->context(rank).abort,
            [hub = hub_.get()](int peer) { return hub->context(peer).left.load(); },
            [](int) {
              return Status::make(Code::kInternal,
                                  "the control line between two ranks of this process broke",
                                  kRoom);
            },
            [this](int peer) {
              raise_everywhere(Status::make(
                  Code::kInternal,
                  "rank " + std::to_string(peer) + " sent a control message that cannot be read",
                  kRoom, peer));
            }};
  }

  void link(int rank, int peer) {
    const WaitRules rules{may_spin(), &hub_->context(peer).left, nullptr, peer};
    auto to = std::make_unique<RingSendLink>(hub_->ring(rank, peer), rules);
    auto from = std::make_unique<RingRecvLink>(hub_->ring(peer, rank), rules);
    hub_->context(rank).waits.push_back(&to->awaited());
    hub_->context(rank).waits.push_back(&from->awaited());
    to_.back() = std::move(to);
    from_.back() = std::move(from);
  }

  void add_control(int rank, int peer) {
    const bool child = parent_of(peer, hub_->options.fanout) == rank;
    RankContext& lower = hub_->context(child ? peer : rank);
    Hub* const hub = hub_.get();
    auto line = std::make_unique<MemoryLine>(
        peer, (child ? lower.down : lower.up).memory(), (child ? lower.up : lower.down).memory(),
        MemoryLine::Calls{[hub, peer] { hub->ring_doorbell(peer); },
                          [hub, peer, rank] { hub->push_on(peer, rank); },
                          {}});
    const MutexLock lock(hub->mutex);
    hub->lines[{rank, peer}] = line.get();
    control_.add(std::move(line));
  }

  std::shared_ptr<Hub> hub_;
  Topology topology_;
  Doorbell doorbell_;
  Control control_;
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
