// Which algorithms the ring of a group can have: from the same peer info the same, and reasons that
// name ranks.
#include <doctest/doctest.h>

#include <cstring>

#include "cuda/ring/ring_backend.h"

namespace hvd::cuda {
namespace {

// Rank r, a process of its own, on the device that its place in `devices` names.
std::vector<PeerInfo> processes(const std::vector<unsigned char>& devices,
                                const char* algorithm = "auto") {
  std::vector<PeerInfo> members(devices.size());
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    members[rank].rank = static_cast<std::int32_t>(rank);
    members[rank].process = rank + 1;
    members[rank].uuid.back() = devices[rank];
    members[rank].multiprocessors = 132;
    std::strncpy(members[rank].ring.data(), algorithm, members[rank].ring.size() - 1);
  }
  return members;
}

std::vector<PeerInfo> threads(const std::vector<unsigned char>& devices,
                              const char* algorithm = "auto") {
  auto members = processes(devices, algorithm);
  for (PeerInfo& member : members) member.process = 1;
  return members;
}

// "slices", "persistent 32", both, or the error.
std::string algorithms(const std::vector<PeerInfo>& members) {
  const auto found = ring_algorithms(members);
  if (!found) return found.status().message;
  std::string text = found.value().slices ? "slices" : "";
  if (found.value().blocks > 0)
    text += (text.empty() ? "" : " ") + ("persistent " + std::to_string(found.value().blocks));
  return text;
}

TEST_CASE("ring algorithms: one device each: both are tried") {
  CHECK(algorithms(processes({0, 1})) == "slices persistent 32");
  CHECK(algorithms(processes({0, 1, 2, 3})) == "slices persistent 32");
  auto small = processes({0, 1, 2});
  small[1].multiprocessors = 14;
  CHECK(algorithms(small) == "slices persistent 14");
}

TEST_CASE("ring algorithms: processes that share a device go in slices") {
  CHECK(algorithms(processes({0, 0})) == "slices");
  CHECK(algorithms(processes({0, 1, 2, 1})) == "slices");
}

TEST_CASE("ring algorithms: another process shares a device, or might") {
  auto pair = processes({0, 1});
  pair[1].sharer = 3;
  CHECK(algorithms(pair) == "slices");
  for (PeerInfo& member : pair) put(member.ring, "persistent");
  CHECK(algorithms(pair) ==
        "HVD_GPU_RING=persistent is not possible among these ranks: rank 1 and rank 3 are "
        "processes that share a device, where kernels that wait for each other may never run "
        "together (give each rank a GPU of its own); use auto or slices");
  auto silent = processes({0, 1});
  silent[0].silent = 2;
  CHECK(algorithms(silent) == "slices");
  for (PeerInfo& member : silent) put(member.ring, "persistent");
  CHECK(algorithms(silent) ==
        "HVD_GPU_RING=persistent is not possible among these ranks: rank 0 and rank 2 may be "
        "processes that share a device: rank 2 is not among these ranks and has not told its "
        "device yet (the first operation of all ranks on their devices does); use auto or slices");
}

TEST_CASE("ring algorithms: threads that share a device get the persistent one on request") {
  CHECK(algorithms(threads({0, 0, 0, 0})) == "slices");
  CHECK(algorithms(threads({0, 1, 1})) == "slices");
  CHECK(algorithms(threads({0, 1, 2})) == "slices persistent 32");
  CHECK(algorithms(threads({0, 0, 0, 0}, "persistent")) == "persistent 32");
  CHECK(algorithms(threads({0, 0, 0, 0, 0}, "persistent")) == "persistent 26");
}

TEST_CASE("ring algorithms: no persistent kernel if a driver ends long ones") {
  auto shown = processes({0, 1});
  shown[1].time_limit = 1;
  CHECK(algorithms(shown) == "slices");
  for (PeerInfo& member : shown) put(member.ring, "persistent");
  CHECK(algorithms(shown).find("seconds on the device of rank 1") != std::string::npos);
}

TEST_CASE("ring algorithms: a wish") {
  CHECK(algorithms(processes({0, 1}, "slices")) == "slices");
  CHECK(algorithms(processes({0, 1}, "persistent")) == "persistent 32");
  CHECK(algorithms(processes({0}, "persistent")) == "slices");
  CHECK(algorithms(processes({0, 1, 2, 1}, "persistent")) ==
        "HVD_GPU_RING=persistent is not possible among these ranks: rank 1 and rank 3 are "
        "processes that share a device, where kernels that wait for each other may never run "
        "together (give each rank a GPU of its own); use auto or slices");
  auto tiny = threads({0, 0, 0}, "persistent");
  for (PeerInfo& member : tiny) member.multiprocessors = 2;
  CHECK(algorithms(tiny) ==
        "HVD_GPU_RING=persistent is not possible among these ranks: a device has too few "
        "multiprocessors for all; use auto or slices");
}

}  // namespace
}  // namespace hvd::cuda
