#include "transport/mpi/mpi_links.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/backoff.h"
#include "base/failpoint.h"
#include "transport/socket/pack.h"
#include "transport/tcp/tcp_stream.h"

namespace hvd {
namespace {

using std::chrono::microseconds;

constexpr double kCancelSeconds = 0.5;
constexpr microseconds kEager{200};  // how long a wait only yields before it naps
constexpr microseconds kNap{50};
constexpr int kFirstTag = 64, kStarts = 8192;  // two tags per start; MPI promises 32767
const char* const kRoom = "transport/mpi_links";

Polling polling_of_mpi() { return {Spin(Spin::Between::kYield, kEager), kNap, kNap}; }

class Link : public SendLink, public RecvLink {
 public:
  Link(MpiLinks& links, MpiLinks::Peer& peer) : links_(links), peer_(peer) {}
  std::size_t slot_bytes() const override { return links_.slot_bytes(); }
  std::size_t slots() const override { return links_.slots(); }
  Result<Slot> acquire(const Abort& abort) override { return links_.acquire(peer_, abort); }
  void publish(std::size_t bytes) override { links_.publish(peer_, bytes); }
  Result<Slot> peek(const Abort& abort) override { return links_.peek(peer_, abort); }
  void release() override { links_.release(peer_); }

 private:
  MpiLinks& links_;
  MpiLinks::Peer& peer_;
};

// Number of starts of this process: messages of an aborted earlier start must not be mistaken for
// those of this one.
std::atomic<int> starts{0};

}  // namespace

struct MpiLinks::Peer {
  Peer(int number, const MpiShape& shape)
      : rank(number),
        out(shape.slot_bytes * shape.slots),
        in(shape.slot_bytes * shape.slots),
        sends(shape.slots),
        receives(shape.slots) {}
  struct Receive {
    MpiRequest request;
    bool posted = false, there = false;
    std::size_t bytes = 0;
  };

  int rank;
  Pages out, in;
  std::vector<MpiRequest> sends;
  std::vector<Receive> receives;
  std::size_t first = 0, used = 0;  // the slots that are being sent
  std::size_t next = 0;             // the slot that is received next
  std::uint64_t sent = 0, received = 0;
  MpiRequest end_out, end_in;
  std::uint64_t end_sent = 0, end_received = 0;
  bool end_posted = false, end_pending = false, ended = false;
  std::optional<Clock::time_point> failed;  // when MPI first reported an error with this peer
  const std::atomic<bool>* left = nullptr;
};

namespace {

// Leak memory that MPI may still read or write.
void leak(std::unique_ptr<MpiLinks::Peer> peer) {
  static Mutex mutex;
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
  static auto* const leaked = new std::vector<std::unique_ptr<MpiLinks::Peer>>();
  const MutexLock lock(mutex);
  leaked->push_back(std::move(peer));
}

}  // namespace

Result<std::unique_ptr<MpiLinks>> MpiLinks::open(const MpiShape& shape, Bootstrap& bootstrap,
                                                 const Abort& abort, Failed failed,
                                                 Deadline deadline, const MpiVerbs* verbs) {
  Status loaded;
  if (verbs == nullptr) {
    const Result<const MpiVerbs*> plugin = load_mpi();
    if (plugin.is_ok()) verbs = plugin.value();
    loaded = plugin.status();
  }
  std::unique_ptr<MpiLinks> links(new MpiLinks(shape, abort, std::move(failed), verbs));
  Status status = links->meet(bootstrap, deadline, loaded);
  if (status) status = links->start();
  if (!status) return status;
  return links;
}

MpiLinks::MpiLinks(const MpiShape& shape, const Abort& abort, Failed failed, const MpiVerbs* verbs)
    : shape_(shape),
      failure_grace_(shape.failure_s),
      abort_(abort),
      failed_(std::move(failed)),
      verbs_(verbs) {}

// The ranks exchange whether they can use MPI, their number there, and their number of starts.
Status MpiLinks::meet(Bootstrap& bootstrap, Deadline deadline, const Status& loaded) {
  std::string trouble = loaded.message;
  if (loaded) {
    const char* const why = verbs_->trouble(verbs_->self);
    if (why != nullptr) trouble = std::string("transport mpi cannot be used: ") + why;
  }
  const bool usable = trouble.empty();
  if (usable && verbs_->size(verbs_->self) != shape_.size)
    trouble = "transport mpi cannot be used: MPI has " +
              std::to_string(verbs_->size(verbs_->self)) + " ranks and " +
              std::to_string(shape_.size) + " are asked for; it needs all of MPI_COMM_WORLD";
  const int start = starts.load();
  const Result<std::vector<std::string>> all = bootstrap.allgather(
      Packer().text(trouble).number(usable ? verbs_->rank(verbs_->self) : -1).number(start).take());
  if (!all.is_ok()) return all.status();
  int most = 0;
  for (const std::string& item : all.value()) {
    Unpacker reader(item);
    const std::string its = reader.text();
    const int rank = static_cast<int>(world_.size());
    if (!its.empty())
      return Status::make(Code::kUnavailable, "rank " + std::to_string(rank) + ": " + its, kRoom,
                          rank);
    world_.push_back(reader.number<int>());
    most = std::max(most, reader.number<int>());
  }
  starts.store(most + 1);
  tag_ = kFirstTag + 2 * (most % kStarts);
  for (;;) {
    const int ready = verbs_->prepare(verbs_->self);
    if (ready == 1) return Status::ok();
    if (abort_.raised()) return abort_.cause();
    if (ready < 0 || deadline.expired())
      return Status::make(ready < 0 ? Code::kUnavailable : Code::kTimeout,
                          "MPI does not make a communicator of all ranks", kRoom);
    std::this_thread::sleep_for(kNap);
  }
}

Status MpiLinks::start() {
  if (Status status = post_all(); !status) return status;
  return start_thread(thread_, [this] { run(); }, failed_);
}

Status MpiLinks::post_all() {
  const MutexLock lock(mutex_);
  for (int rank = 0; rank < shape_.size; ++rank) {
    peers_.push_back(rank == shape_.rank ? nullptr : std::make_unique<Peer>(rank, shape_));
    if (rank == shape_.rank) continue;
    Peer& peer = *peers_.back();
    for (std::size_t place = 0; place < shape_.slots; ++place) post(peer, place);
    peer.end_posted =
        verbs_->receive(verbs_->self, &peer.end_received, sizeof peer.end_received,
                        world_[static_cast<std::size_t>(rank)], tag_ + 1, &peer.end_in) == 0;
    if (peer.failed || !peer.end_posted)
      return Status::make(Code::kUnavailable, "MPI does not take a receive", kRoom, rank);
  }
  return Status::ok();
}

MpiLinks::~MpiLinks() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    thread_.join();
  }
  cancel_receives();
}

void MpiLinks::left(int peer, const std::atomic<bool>* mark) {
  peers_[static_cast<std::size_t>(peer)]->left = mark;
}

std::unique_ptr<SendLink> MpiLinks::send_link(int peer) {
  return std::make_unique<Link>(*this, *peers_[static_cast<std::size_t>(peer)]);
}

std::unique_ptr<RecvLink> MpiLinks::recv_link(int peer) {
  return std::make_unique<Link>(*this, *peers_[static_cast<std::size_t>(peer)]);
}

Result<Slot> MpiLinks::acquire(Peer& peer, const Abort& abort) {
  return wait(peer, Direction::kSend, abort);
}

Result<Slot> MpiLinks::peek(Peer& peer, const Abort& abort) {
  return wait(peer, Direction::kReceive, abort);
}

void MpiLinks::publish(Peer& peer, std::size_t bytes) {
  const MutexLock lock(mutex_);
  const std::size_t place = (peer.first + peer.used) % shape_.slots;
  if (verbs_->send(verbs_->self, peer.out.data() + place * shape_.slot_bytes,
                   static_cast<int>(bytes), world_[static_cast<std::size_t>(peer.rank)], tag_,
                   &peer.sends[place]) != 0) {
    fail(peer);
    return;
  }
  ++peer.used;
  ++peer.sent;
  move_on(peer);
  if (peer.used > 0) work_.notify_all();
}

void MpiLinks::release(Peer& peer) {
  const MutexLock lock(mutex_);
  const std::size_t place = peer.next;
  peer.next = (peer.next + 1) % shape_.slots;
  ++peer.received;
  post(peer, place);
}

void MpiLinks::post(Peer& peer, std::size_t place) {
  Peer::Receive& receive = peer.receives[place];
  receive.there = false;
  receive.posted =
      verbs_->receive(verbs_->self, peer.in.data() + place * shape_.slot_bytes,
                      static_cast<int>(shape_.slot_bytes),
                      world_[static_cast<std::size_t>(peer.rank)], tag_, &receive.request) == 0;
  if (!receive.posted) fail(peer);
}

void MpiLinks::move_on(Peer& peer) {
  int bytes = 0;
  while (peer.used > 0) {
    const int state = verbs_->test(verbs_->self, &peer.sends[peer.first], &bytes);
    if (state == 0) return;
    if (state < 0) fail(peer);
    peer.first = (peer.first + 1) % shape_.slots;
    --peer.used;
  }
}

void MpiLinks::fail(Peer& peer) {
  if (!peer.failed) peer.failed = Clock::now();
}

std::optional<Clock::time_point> MpiLinks::failed_at(const Peer& peer) const {
  const MutexLock lock(mutex_);
  return peer.failed;
}

Slot MpiLinks::attempt(Peer& peer, Direction direction) {
  const MutexLock lock(mutex_);
  for (const auto& other : peers_)
    if (other != nullptr) move_on(*other);
  int bytes = 0;
  if (direction == Direction::kSend) {
    if (peer.used == shape_.slots || peer.failed) return {};
    const std::size_t place = (peer.first + peer.used) % shape_.slots;
    return {peer.out.data() + place * shape_.slot_bytes, shape_.slot_bytes};
  }
  Peer::Receive& receive = peer.receives[peer.next];
  if (receive.posted && !receive.there) {
    const int state = verbs_->test(verbs_->self, &receive.request, &bytes);
    if (state != 0) receive.posted = false;
    if (state < 0) fail(peer);
    receive.there = state > 0;
    receive.bytes = static_cast<std::size_t>(bytes);
  }
  if (receive.there) return {peer.in.data() + peer.next * shape_.slot_bytes, receive.bytes};
  if (peer.end_posted) {
    const int state = verbs_->test(verbs_->self, &peer.end_in, &bytes);
    if (state != 0) peer.end_posted = false;
    peer.ended = state > 0;
  }
  return {};
}

Result<Slot> MpiLinks::wait(Peer& peer, Direction direction, const Abort& abort) {
  Slot slot = attempt(peer, direction);
  if (slot.data != nullptr) return slot;
  ++waiting_;
  Polling polling = polling_of_mpi();
  Status status;
  for (;;) {
    const bool left = peer.left != nullptr && peer.left->load(std::memory_order_acquire);
    const bool raised = abort.raised();
    slot = attempt(peer, direction);
    if (slot.data != nullptr) break;
    if (raised) {
      status = abort.cause();
      break;
    }
    // A peer that has left reads nothing more; everything it sent has arrived once its count is
    // reached.
    if (left &&
        (direction == Direction::kSend || (peer.ended && peer.received == peer.end_received))) {
      status = Status::make(
          Code::kShutdown,
          "rank " + std::to_string(peer.rank) + " has shut down while this rank still needs it",
          "transport/mpi_links: wait", peer.rank);
      break;
    }
    // An error of MPI is usually a death, which the failure detector reports with its cause. If it
    // does not, only this check ends the wait.
    if (const auto failed = failed_at(peer); failed && Clock::now() - *failed > failure_grace_) {
      status = Status::make(Code::kInternal,
                            "MPI reports an error in the exchange with rank " +
                                std::to_string(peer.rank) +
                                ", which is alive (its own words, if any, are on stderr)",
                            "transport/mpi_links: wait", peer.rank);
      break;
    }
    polling.pause();
  }
  --waiting_;
  if (!status) return status;
  return slot;
}

bool MpiLinks::pending() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer != nullptr && (peer->used > 0 || peer->end_pending);
  });
}

void MpiLinks::send_end() {
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->failed) continue;
    peer->end_sent = peer->sent;
    peer->end_pending =
        verbs_->send(verbs_->self, &peer->end_sent, sizeof peer->end_sent,
                     world_[static_cast<std::size_t>(peer->rank)], tag_ + 1, &peer->end_out) == 0;
  }
}

void MpiLinks::run() {
  name_thread("hvd-mpi");
  block_signals();
  Deadline last = Deadline::never();
  bool ending = false;
  MutexLock lock(mutex_);
  for (;;) {
    failpoint("mpi.thread");
    if (stop_ && !ending && !abort_.raised()) send_end();
    if (stop_ && !ending) last = Deadline::after_seconds(shape_.flush_s);
    ending = stop_;
    if (stop_ && (!pending() || abort_.raised() || last.expired())) return;
    int bytes = 0;
    for (const auto& peer : peers_) {
      if (peer == nullptr) continue;
      if (stop_ || waiting_.load() == 0) move_on(*peer);
      if (peer->end_pending && verbs_->test(verbs_->self, &peer->end_out, &bytes) != 0)
        peer->end_pending = false;
    }
    if (pending()) {
      work_.wait_for(lock, 4 * kNap);
    } else {
      while (!stop_ && !pending()) work_.wait(lock);
    }
  }
}

void MpiLinks::cancel_receives() {
  const Deadline deadline = Deadline::after_seconds(kCancelSeconds);
  Polling polling = polling_of_mpi();
  int bytes = 0;
  const auto over = [&](bool& posted, MpiRequest& request) {
    if (posted && verbs_->test(verbs_->self, &request, &bytes) != 0) posted = false;
    return !posted;
  };
  for (auto& peer : peers_) {
    if (peer == nullptr) continue;
    for (Peer::Receive& receive : peer->receives)
      if (receive.posted && !receive.there) verbs_->cancel(verbs_->self, &receive.request);
    if (peer->end_posted) verbs_->cancel(verbs_->self, &peer->end_in);
    bool all = peer->used == 0 && !peer->end_pending;
    for (Peer::Receive& receive : peer->receives)
      while (!over(receive.posted, receive.request) && !deadline.expired()) polling.pause();
    while (!over(peer->end_posted, peer->end_in) && !deadline.expired()) polling.pause();
    for (const Peer::Receive& receive : peer->receives) all = all && !receive.posted;
    if (!all || peer->end_posted) leak(std::move(peer));
  }
}

}  // namespace hvd
