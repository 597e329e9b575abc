// Link emulator: passes IP packets between TUN devices, one per host, as links of a rate and a
// latency and a switch would.
//   emulator BITS_PER_SECOND NANOSECONDS DESCRIPTOR...     ends when its input does
// Descriptor number i is host i's TUN device (IFF_NO_PI | IFF_VNET_HDR), whose address ends in i
// + 1. Every host has one link to the switch and one back. A packet occupies the sender's link for
// its bits / rate, then travels for the latency, and occupies the receiver's link as long,
// beginning with its first bit (a cut-through switch). Nothing is lost.
//   ahead   how far a link may be booked: a packet that would begin later stays in the device's
//   queue
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <vector>

namespace {

constexpr std::size_t kMostBytes = 10 + 65536;  // a virtio_net_hdr and a packet
constexpr std::size_t kAddressEnd = 10 + 19;    // the last byte of an IPv4 destination
constexpr std::int64_t kAheadNs = 100'000;

using Bytes = std::vector<char>;

struct Packet {
  std::int64_t due;
  Bytes bytes;
};

struct Host {
  int device;
  std::int64_t sends_until = 0, receives_until = 0;
  std::deque<Packet> arriving;
};

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

class Emulator {
 public:
  Emulator(double bits_per_second, std::int64_t latency_ns, std::vector<Host> hosts)
      : ns_per_byte_(8e9 / bits_per_second), latency_ns_(latency_ns), hosts_(std::move(hosts)) {}

  // Until the input ends.
  void run() {
    std::vector<pollfd> items;
    do {
      for (Host& host : hosts_) deliver(host);
      for (Host& host : hosts_) take(host);
      items.assign(1, {STDIN_FILENO, POLLIN, 0});
      const std::int64_t wait = std::max<std::int64_t>(0, await(items) - now_ns());
      const timespec timeout{wait / 1'000'000'000, wait % 1'000'000'000};
      ppoll(items.data(), items.size(), &timeout, nullptr);
    } while (items[0].revents == 0);
  }

 private:
  void deliver(Host& host) {
    while (!host.arriving.empty() && host.arriving.front().due <= now_ns()) {
      Bytes& bytes = host.arriving.front().bytes;
      // A host that has no room drops it, as a network card does.
      if (write(host.device, bytes.data(), bytes.size()) < 0) ++dropped_;
      spare_.push_back(std::move(bytes));
      host.arriving.pop_front();
    }
  }

  void take(Host& from) {
    for (std::int64_t now = now_ns(); from.sends_until <= now + kAheadNs; now = now_ns()) {
      Bytes bytes = buffer();
      const ssize_t got = read(from.device, bytes.data(), bytes.size());
      if (got <= 0) {
        spare_.push_back(std::move(bytes));
        return;
      }
      bytes.resize(static_cast<std::size_t>(got));
      const std::size_t to = bytes.size() > kAddressEnd
                                 ? static_cast<unsigned char>(bytes[kAddressEnd]) - 1U
                                 : hosts_.size();
      if (to >= hosts_.size()) continue;  // no host's
      const auto length =
          static_cast<std::int64_t>(static_cast<double>(bytes.size()) * ns_per_byte_);
      Host& host = hosts_[to];
      const std::int64_t begins = std::max(now, from.sends_until);
      from.sends_until = begins + length;
      host.receives_until = std::max(begins + latency_ns_, host.receives_until) + length;
      host.arriving.push_back({host.receives_until, std::move(bytes)});
    }
  }

  Bytes buffer() {
    Bytes bytes;
    if (!spare_.empty()) {
      bytes = std::move(spare_.back());
      spare_.pop_back();
    }
    bytes.resize(kMostBytes);
    return bytes;
  }

  // When something is due, at the latest; devices that may be read before go to the items.
  std::int64_t await(std::vector<pollfd>& items) const {
    std::int64_t due = now_ns() + 1'000'000'000;
    for (const Host& host : hosts_) {
      if (!host.arriving.empty()) due = std::min(due, host.arriving.front().due);
      if (host.sends_until <= now_ns() + kAheadNs) {
        items.push_back({host.device, POLLIN, 0});
      } else {
        due = std::min(due, host.sends_until - kAheadNs);
      }
    }
    return due;
  }

  double ns_per_byte_;
  std::int64_t latency_ns_;
  std::vector<Host> hosts_;
  std::vector<Bytes> spare_;
  std::int64_t dropped_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  prctl(PR_SET_TIMERSLACK, 1);
  const sched_param first{1};
  sched_setscheduler(0, SCHED_FIFO, &first);  // a link does not wait for a core
  std::vector<Host> hosts;
  for (int i = 3; i < argc; ++i) hosts.push_back({std::atoi(argv[i]), 0, 0, {}});
  Emulator(std::atof(argv[1]), std::atoll(argv[2]), std::move(hosts)).run();
  return 0;
}
