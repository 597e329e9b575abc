// What a rank knows of the devices of others when a group of it meets: from the meetings before.
#include <doctest/doctest.h>

#include "cuda/device/peer_info.h"

namespace hvd::cuda {
namespace {

// Rank r, a process of its own, on that device of host 0.
PeerInfo process(int rank, unsigned char device) {
  PeerInfo info;
  info.rank = rank;
  info.process = static_cast<std::uint64_t>(rank) + 1;
  info.uuid.back() = device;
  return info;
}

struct Told {
  int sharer, silent;
  bool operator==(const Told& other) const {
    return sharer == other.sharer && silent == other.silent;
  }
};

Told told(const KnownDevices& known, PeerInfo mine, std::vector<int> group,
          std::vector<int> hosts = {0, 0, 0, 0}) {
  Topology topology;
  topology.rank = mine.rank;
  topology.size = static_cast<int>(hosts.size());
  topology.host_of = std::move(hosts);
  Group members;
  members.ranks = std::move(group);
  known.describe(mine, topology, members);
  return {mine.sharer, mine.silent};
}

}  // namespace

TEST_CASE("known devices: of all ranks together nothing is left to know") {
  CHECK(told({}, process(0, 0), {0, 1, 2, 3}) == Told{-1, -1});
}

TEST_CASE("known devices: a rank of the host without a report is unknown, others are known") {
  CHECK(told({}, process(0, 0), {0, 1}) == Told{-1, 2});
  CHECK(told({}, process(0, 0), {0, 1}, {0, 0, 1, 1}) == Told{-1, -1});
  KnownDevices known;
  known.record({process(0, 0), process(2, 2)});
  CHECK(told(known, process(0, 0), {0, 1}) == Told{-1, 3});
}

TEST_CASE("known devices: sets of two where ranks 0 and 2, and 1 and 3, share a device") {
  KnownDevices known;
  known.record({process(0, 0), process(1, 1), process(2, 0), process(3, 1)});
  CHECK(told(known, process(0, 0), {0, 1}) == Told{2, -1});
  CHECK(told(known, process(3, 1), {2, 3}) == Told{1, -1});
}

TEST_CASE("known devices: separate devices, threads of one process, and ranks of another host") {
  KnownDevices known;
  known.record({process(0, 0), process(1, 1), process(2, 2), process(3, 3)});
  CHECK(told(known, process(0, 0), {0, 1}) == Told{-1, -1});
  KnownDevices together;
  std::vector<PeerInfo> threads{process(0, 0), process(1, 0), process(2, 0), process(3, 0)};
  for (PeerInfo& thread : threads) thread.process = 1;
  together.record(threads);
  CHECK(told(together, threads[0], {0, 1}) == Told{-1, -1});
  KnownDevices far;
  PeerInfo away = process(2, 0);  // of a virtual device, whose number another host has too
  away.host = 1;
  far.record({process(0, 0), process(1, 1), away});
  CHECK(told(far, process(0, 0), {0, 1}, {0, 0, 1}) == Told{-1, -1});
}

TEST_CASE("known devices: which rank shares its device with another process") {
  KnownDevices known;
  known.record({process(0, 0), process(1, 1), process(2, 0)});
  for (const int rank : {0, 2}) CHECK(known.shares(rank));
  for (const int rank : {1, 3}) CHECK(!known.shares(rank));
}

TEST_CASE("known devices: a rank that uses another device later has reported both") {
  KnownDevices known;
  known.record({process(0, 0), process(1, 1), process(2, 2), process(3, 3)});
  known.record({process(0, 0), process(2, 1)});
  CHECK(told(known, process(1, 1), {0, 1}) == Told{2, -1});
}

}  // namespace hvd::cuda
