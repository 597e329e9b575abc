#include "transport/tcp/tcp_links.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/backoff.h"
#include "base/deadline.h"
#include "base/failpoint.h"
#include "base/futex.h"

namespace hvd {
namespace {

constexpr int kSliceMs = 10;  // maximum delay until a waiter notices an event without a wake-up
constexpr std::int64_t kLongestMs = 3'600'000;
constexpr int kStandByMs = 1;  // maximum delay until the I/O thread takes over from a waiter

class Link : public SendLink, public RecvLink {
 public:
  Link(TcpLinks& links, TcpLinks::Peer& peer) : links_(links), peer_(peer) {}
  std::size_t slot_bytes() const override;
  std::size_t slots() const override;
  Result<Slot> acquire(const Abort& abort) override { return links_.acquire(peer_, abort); }
  void publish(std::size_t bytes) override { links_.publish(peer_, bytes); }
  Result<Slot> peek(const Abort& abort) override { return links_.peek(peer_, abort); }
  void release() override;

 private:
  TcpLinks& links_;
  TcpLinks::Peer& peer_;
};

}  // namespace

struct TcpLinks::Peer {
  Peer(int number, std::vector<Fd> sockets, std::size_t slot_bytes, std::size_t slots)
      : rank(number),
        streams(std::move(sockets)),
        sender(streams, slot_bytes, slots),
        receiver(streams, slot_bytes) {}
  int rank;
  std::vector<Fd> streams;
  TcpSender sender;
  TcpReceiver receiver;
  std::byte* eager = nullptr;  // the slot acquired last for eager data
  const std::atomic<bool>* left = nullptr;
  bool spare_cores = false;
  // Only one thread uses the receiver; another may wait for room to send.
  std::atomic<bool> ended{false};

  bool gone() const {
    return left != nullptr && left->load(std::memory_order_acquire) &&
           (ended.load(std::memory_order_acquire) || sender.broken());
  }
};

namespace {

struct Counted {
  explicit Counted(std::atomic<int>& number) : count(number) { ++count; }
  ~Counted() { --count; }
  Counted(const Counted&) = delete;
  std::atomic<int>& count;
};

std::size_t Link::slot_bytes() const { return peer_.sender.slot_bytes(); }
std::size_t Link::slots() const { return peer_.sender.slots(); }
void Link::release() { peer_.receiver.release(); }

}  // namespace

TcpLinks::TcpLinks(std::size_t slot_bytes, std::size_t slots, const Abort& abort, Broken broken,
                   Failed failed, double flush_s)
    : slot_bytes_(slot_bytes),
      slots_(slots),
      flush_s_(flush_s),
      abort_(abort),
      broken_(std::move(broken)),
      failed_(std::move(failed)) {}

TcpLinks::~TcpLinks() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  signal_event(work_);
  thread_.join();
}

void TcpLinks::add(int peer, std::vector<Fd> streams, const std::atomic<bool>* left,
                   bool spare_cores) {
  peers_.push_back(std::make_unique<Peer>(peer, std::move(streams), slot_bytes_, slots_));
  peers_.back()->left = left;
  peers_.back()->spare_cores = spare_cores;
}

Status TcpLinks::start() {
  for (Fd* const event : {&news_, &work_}) {
    Result<Fd> made = make_event();
    if (!made.is_ok()) return made.status();
    *event = made.take();
  }
  return start_thread(thread_, [this] { run(); }, failed_);
}

TcpLinks::Peer& TcpLinks::peer_of(int rank) const {
  return **std::find_if(peers_.begin(), peers_.end(),
                        [&](const auto& peer) { return peer->rank == rank; });
}

std::unique_ptr<SendLink> TcpLinks::send_link(int peer) {
  return std::make_unique<Link>(*this, peer_of(peer));
}

std::unique_ptr<RecvLink> TcpLinks::recv_link(int peer) {
  return std::make_unique<Link>(*this, peer_of(peer));
}

Result<Slot> TcpLinks::acquire(Peer& peer, const Abort& abort) {
  const Slot slot = peer.sender.acquire();
  if (slot.data != nullptr) return slot;
  return wait(peer, Direction::kSend, abort);
}

// Pending data are stored before sleeping_ is checked, and the I/O thread sets sleeping_ before its
// last check for pending data (all sequentially consistent): one of the two sees the other.
void TcpLinks::publish(Peer& peer, std::size_t bytes) {
  peer.sender.publish(bytes);
  pushed(peer);
}

void TcpLinks::pushed(Peer& peer) {
  report_broken(peer, peer.sender.new_failure());
  if (peer.sender.pending() && sleeping_.load(std::memory_order_seq_cst)) signal_event(work_);
}

Result<Slot> TcpLinks::peek(Peer& peer, const Abort& abort) {
  const Slot slot = attempt(peer, Direction::kReceive);
  if (slot.data != nullptr) return slot;
  return wait(peer, Direction::kReceive, abort);
}

Slot TcpLinks::attempt(Peer& peer, Direction direction) {
  if (direction == Direction::kSend) {
    peer.sender.push();
    report_broken(peer, peer.sender.new_failure());
    return peer.sender.acquire();
  }
  Slot slot = peer.receiver.peek();
  while (slot.data != nullptr && peer.receiver.unaccepted()) {  // another operation is next
    peer.receiver.release();
    slot = peer.receiver.peek();
  }
  if (slot.data == nullptr && peer.receiver.ended()) {
    peer.ended.store(true, std::memory_order_release);
    report_broken(peer, peer.receiver.new_failure());
  }
  return slot;
}

Result<Slot> TcpLinks::wait(Peer& peer, Direction direction, const Abort& abort) {
  const Counted counted(waiting_);
  Spin spin = peer.spare_cores ? Spin::before_sleep(true) : Spin::none();
  for (;;) {
    push_pending();
    // In this order: a peer that leaves because of an abort sends the abort first, and what it sent
    // before its goodbye has arrived when it is gone.
    const bool gone = peer.gone();
    const bool raised = abort.raised();
    const Slot slot = attempt(peer, direction);
    if (slot.data != nullptr) return slot;
    if (raised) return abort.cause();
    if (gone)
      return Status::make(
          Code::kShutdown,
          "rank " + std::to_string(peer.rank) + " has shut down while this rank still needs it",
          "transport/tcp_links: wait", peer.rank);
    if (!spin.again()) sleep(peer, direction);
  }
}

void TcpLinks::sleep(const Peer& peer, Direction direction) {
  std::vector<pollfd> items{{news_.get(), POLLIN, 0}};
  if (direction == Direction::kReceive && peer.receiver.awaited() >= 0)
    items.push_back({peer.receiver.awaited(), POLLIN, 0});
  for (const auto& other : peers_)
    if (other->sender.pending()) other->sender.ask(items);
  if (::poll(items.data(), items.size(), kSliceMs) > 0 && items[0].revents != 0 && !abort_.raised())
    drain_event(news_);
}

void TcpLinks::push_pending() {
  for (const auto& peer : peers_) {
    if (!peer->sender.pending()) continue;
    peer->sender.push();
    report_broken(*peer, peer->sender.new_failure());
  }
}

bool TcpLinks::pending() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer->sender.pending(); });
}

void TcpLinks::report_broken(Peer& peer, const std::string& why) {
  if (!why.empty()) broken_(peer.rank, "its data connection broke: " + why);
}

void TcpLinks::run() {
  name_thread("hvd-io");
  block_signals();
  std::optional<Deadline> last;
  for (;;) {
    if (stop_.load()) {
      if (!last) last = Deadline::after_seconds(flush_s_);
      if (!pending() || abort_.raised() || last->expired()) break;
    }
    if (waiting_.load() == 0) push_pending();
    failpoint("tcp.io");
    sleep_of_io();
  }
  for (const auto& peer : peers_)
    for (const Fd& stream : peer->streams) ::shutdown(stream.get(), SHUT_WR);
}

// Block until there is work; poll briefly while a waiter is pushing; otherwise block until sockets
// are writable.
void TcpLinks::sleep_of_io() {
  std::vector<pollfd> items{{work_.get(), POLLIN, 0}};
  sleeping_.store(true, std::memory_order_seq_cst);
  const bool work = pending();
  if (work) sleeping_.store(false, std::memory_order_seq_cst);
  if (work && waiting_.load() == 0)
    for (const auto& peer : peers_) peer->sender.ask(items);
  const std::size_t own = items.size();
  {
    const MutexLock lock(watch_mutex_);
    items.insert(items.end(), watched_.begin(), watched_.end());
  }
  const int ready = ::poll(items.data(), items.size(), work ? kStandByMs : stop_.load() ? 0 : -1);
  sleeping_.store(false, std::memory_order_seq_cst);
  if (ready <= 0) return;
  if (items[0].revents != 0) drain_event(work_);
  if (std::none_of(items.begin() + static_cast<std::ptrdiff_t>(own), items.end(),
                   [](const pollfd& item) { return item.revents != 0; })) {
    return;
  }
  {
    const MutexLock lock(watch_mutex_);
    watched_.clear();
  }
  ring_();
}

std::byte* TcpLinks::acquire(int peer) {
  TcpSender& sender = peer_of(peer).sender;
  peer_of(peer).eager = sender.broken() ? nullptr : sender.acquire().data;
  return peer_of(peer).eager == nullptr ? nullptr : peer_of(peer).eager + kEagerTag;
}

void TcpLinks::publish(int peer, const EagerTag& tag, std::size_t bytes) {
  Peer& to = peer_of(peer);
  std::byte* const head = to.eager;
  std::memset(head, 0, kEagerTag);
  std::memcpy(head, &tag.position, sizeof tag.position);
  std::memcpy(head + sizeof tag.position, &tag.slot, sizeof tag.slot);
  to.sender.publish(kEagerTag + bytes, true);
  pushed(to);
}

EagerArrival TcpLinks::poll(int peer, std::uint64_t position) {
  Peer& from = peer_of(peer);
  const bool gone =
      from.gone();  // read before the receiver: data sent before the goodbye still count
  for (;;) {
    if (from.receiver.peek().data == nullptr) break;
    if (!from.receiver.unaccepted()) return {EagerArrival::Kind::kOrdinary, {}};
    const EagerTag tag = from.receiver.tag();
    if (tag.position >= position) return {EagerArrival::Kind::kEager, tag};
    from.receiver.release();
  }
  if (from.receiver.ended()) {
    from.ended.store(true, std::memory_order_release);
    report_broken(from, from.receiver.new_failure());
  }
  return {gone ? EagerArrival::Kind::kGone : EagerArrival::Kind::kNothing, {}};
}

void TcpLinks::accept(int peer) { peer_of(peer).receiver.accept(); }

void TcpLinks::add_awaited(const std::vector<int>& peers, std::vector<pollfd>& items) const {
  for (const int peer : peers) {
    const int socket = peer_of(peer).receiver.awaited();
    if (socket >= 0) items.push_back({socket, POLLIN, 0});
  }
}

// A ringing thread rings before it checks in_wait_; this thread sets in_wait_ before news() checks
// the doorbell (all sequentially consistent): one of the two sees the other.
void TcpLinks::wait(const std::vector<int>& peers, const std::function<bool()>& news,
                    std::chrono::nanoseconds longest) {
  const Counted counted(waiting_);
  push_pending();
  in_wait_.store(true, std::memory_order_seq_cst);
  if (!news()) {
    std::vector<pollfd> items{{news_.get(), POLLIN, 0}};
    add_awaited(peers, items);
    for (const auto& other : peers_)
      if (other->sender.pending()) other->sender.ask(items);
    const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(longest).count();
    const int ms = static_cast<int>(std::min<std::int64_t>(rest + 1, kLongestMs));
    if (::poll(items.data(), items.size(), ms) > 0 && items[0].revents != 0 && !abort_.raised())
      drain_event(news_);
  }
  in_wait_.store(false, std::memory_order_relaxed);
}

void TcpLinks::watch(const std::vector<int>& peers) {
  std::vector<pollfd> items;
  add_awaited(peers, items);
  {
    const MutexLock lock(watch_mutex_);
    watched_ = std::move(items);
  }
  signal_event(work_);
}

void TcpLinks::interrupt_wait() {
  if (in_wait_.load(std::memory_order_seq_cst)) signal_event(news_);
}

}  // namespace hvd
