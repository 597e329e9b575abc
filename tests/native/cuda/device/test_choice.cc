// The choice: from the same peer info the same candidates, and reasons that name ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "cuda/device/choice.h"

namespace hvd::cuda {
namespace {

Uuid card(unsigned char number) {
  Uuid uuid{};
  uuid[15] = number;
  return uuid;
}

// Rank r on its own card, all on one host, all reachable, NCCL there.
std::vector<PeerInfo> ranks(int size, const char* operations = "auto") {
  std::vector<PeerInfo> members(static_cast<std::size_t>(size));
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    PeerInfo& info = members[rank];
    info.rank = static_cast<std::int32_t>(rank);
    info.uuid = card(static_cast<unsigned char>(rank));
    info.reachables = static_cast<std::uint32_t>(std::min(members.size(), kMostReachable));
    for (std::size_t other = 0; other < info.reachables; ++other)
      info.reachable[other] = card(static_cast<unsigned char>(other));
    info.word_operations = 1;
    info.nccl = 22703;
    std::strncpy(info.operations.data(), operations, info.operations.size() - 1);
  }
  return members;
}

std::string candidates(const std::vector<PeerInfo>& members) {
  const auto chosen = choose(members);
  if (!chosen) return chosen.status().message;
  std::string names;
  for (const BackendKind kind : chosen.value())
    names += (names.empty() ? "" : " ") + std::string(name_of(kind));
  return names;
}

TEST_CASE("auto: the ring first, then NCCL, and staged always") {
  CHECK(candidates(ranks(1)) == "ring nccl staged");
  CHECK(candidates(ranks(4)) == "ring nccl staged");
}

TEST_CASE("ranks that share a device: NCCL is not tried") {
  auto members = ranks(2);
  members[1].uuid = card(0);
  CHECK(candidates(members) == "ring staged");
}

TEST_CASE("auto without the requirements of the ring") {
  auto far = ranks(2);
  far[1].host = 1;
  CHECK(candidates(far) == "nccl staged");
  auto wordless = ranks(2);
  wordless[0].word_operations = 0;
  CHECK(candidates(wordless) == "nccl staged");
  auto apart = ranks(2);
  apart[1].reachables = 0;
  CHECK(candidates(apart) == "nccl staged");
  apart[0].nccl = 0;
  CHECK(candidates(apart) == "staged");
  CHECK(candidates(ranks(65)).find("ring") == std::string::npos);
}

TEST_CASE("NCCL preferred: first if each rank has its own device, else as auto") {
  CHECK(candidates(ranks(4, "prefer-nccl")) == "nccl ring staged");
  auto shared = ranks(2, "prefer-nccl");
  shared[1].uuid = card(0);
  CHECK(candidates(shared) == "ring staged");
  auto far = ranks(2, "prefer-nccl");
  far[1].host = 1;
  CHECK(candidates(far) == "nccl staged");
}

TEST_CASE("reason for host memory that was not requested") {
  CHECK(why_staged(ranks(2)).empty());
  auto far = ranks(2);
  far[1].host = 1;
  far[0].nccl = 0;
  CHECK(why_staged(far) ==
        std::vector<std::string>{
            "ring: rank 0 and rank 1 are on different hosts",
            "NCCL: rank 0 has no NCCL (pip install nvidia-nccl-cu13, or a torch that brings it), "
            "or one that blocks (unset NCCL_COMM_BLOCKING)"});
  for (PeerInfo& member : far) put(member.operations, "staged");
  CHECK(why_staged(far).empty());
}

TEST_CASE("a wish is that candidate alone") {
  CHECK(candidates(ranks(3, "ring")) == "ring");
  CHECK(candidates(ranks(3, "nccl")) == "nccl");
  CHECK(candidates(ranks(3, "staged")) == "staged");
}

TEST_CASE("an impossible request: ranks, reason, alternative") {
  auto far = ranks(3, "ring");
  far[2].host = 1;
  CHECK(candidates(far) ==
        "HOROVOD_GPU_OPERATIONS=ring is not possible among these ranks: rank 0 and rank 2 are on "
        "different hosts; use auto or staged");
  auto apart = ranks(3, "ring");
  apart[1].reachables = 2;
  CHECK(candidates(apart) ==
        "HOROVOD_GPU_OPERATIONS=ring is not possible among these ranks: rank 1's device cannot "
        "reach rank 2's directly (nvidia-smi topo -p2p r; a rank must see both in "
        "CUDA_VISIBLE_DEVICES); use auto or staged");
  auto wordless = ranks(2, "ring");
  wordless[1].word_operations = 0;
  CHECK(candidates(wordless) ==
        "HOROVOD_GPU_OPERATIONS=ring is not possible among these ranks: rank 1's driver has no "
        "stream memory operations; use auto or staged");
  auto shared = ranks(3, "nccl");
  shared[2].uuid = card(1);
  CHECK(
      candidates(shared) ==
      "HOROVOD_GPU_OPERATIONS=nccl is not possible among these ranks: rank 1 and rank 2 share one "
      "device, which NCCL refuses; use auto or staged");
  auto older = ranks(2, "nccl");
  older[1].nccl = 22000;
  CHECK(candidates(older) ==
        "HOROVOD_GPU_OPERATIONS=nccl is not possible among these ranks: rank 0 has NCCL 22703 and "
        "rank 1 has 22000; use auto or staged");
  auto without = ranks(2, "nccl");
  without[0].nccl = 0;
  CHECK(candidates(without) ==
        "HOROVOD_GPU_OPERATIONS=nccl is not possible among these ranks: rank 0 has no NCCL (pip "
        "install nvidia-nccl-cu13, or a torch that brings it), or one that blocks (unset "
        "NCCL_COMM_BLOCKING); use auto or staged");
}

TEST_CASE("requests that differ or are invalid") {
  auto members = ranks(3, "ring");
  std::strncpy(members[2].operations.data(), "nccl", members[2].operations.size() - 1);
  const auto chosen = choose(members);
  REQUIRE(!chosen.is_ok());
  CHECK(chosen.status().code == Code::kMismatch);
  CHECK(chosen.status().rank == 2);
  CHECK(chosen.status().message ==
        "HOROVOD_GPU_OPERATIONS is ring on rank 0 and nccl on rank 2: set it alike on all ranks");
  CHECK(candidates(ranks(2, "mpi")) ==
        "HOROVOD_GPU_OPERATIONS is auto, ring, nccl, prefer-nccl or staged, not 'mpi'");
}

}  // namespace
}  // namespace hvd::cuda
