// Where the ring and NCCL are both possible they are timed against each other: the ring is taken
// unless NCCL is clearly faster, and whatever happens to NCCL meanwhile is not the engine's end.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/deadline.h"
#include "cuda/group_init.h"
#include "cuda/nccl/nccl_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

constexpr int kRanks = 2;
constexpr int kLongMs = 200;  // against what a lap of the fakes takes

struct Outcome {
  std::string kind;  // or the message
  bool aborted = false;
};

// Ranks with a device each, whose driver is as it was set before.
Outcome met(const std::string& operations = "auto", double self_test_seconds = 20) {
  std::array<Outcome, kRanks> outcomes;
  const auto meshes = make_local_meshes(kRanks, {});
  hvd::test::run_ranks(kRanks, [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    CpuBackend cpu(mesh);
    auto device = Device::open(fake_driver(), rank, rank);
    REQUIRE(device.status().message == "");
    AcceleratorOptions options;
    options.arena_bytes = std::size_t{1} << 20U;
    options.operations = operations;
    options.self_test_seconds = self_test_seconds;
    KnownDevices known;
    auto agreed =
        init_backend({device.value(), {}}, mesh, cpu, everybody(kRanks, rank), options, known);
    outcomes[static_cast<std::size_t>(rank)] = {
        agreed ? name_of(agreed.value().kind) : agreed.status().message, mesh.abort().raised()};
  });
  CHECK(outcomes[0].kind == outcomes[1].kind);
  CHECK(outcomes[0].aborted == outcomes[1].aborted);
  return outcomes[0];
}

void begin() {
  FakeNccl::get().reset();
  fake_cuda_reset();
  fake_cuda_set_devices(kRanks);
}

void check_end() {
  check_nothing_left();
  CHECK(FakeNccl::get().communicators() == 0);
}

std::size_t sums() { return FakeNccl::get().calls("ncclAllReduce"); }

}  // namespace

TEST_CASE("candidates: the advantage that NCCL needs") {
  CHECK(is_worth_it(0.7, 1.0));
  CHECK(!is_worth_it(0.9, 1.0));
  CHECK(!is_worth_it(1.1, 1.0));
}

TEST_CASE("candidates: the faster one is selected") {
  begin();
  fake_cuda_slow("fake_cuda_enqueue", kLongMs);  // NCCL's kernels
  CHECK(met().kind == "ring");
  check_end();
  begin();
  fake_cuda_slow("cuLaunchKernel", kLongMs);  // the ring's
  CHECK(met().kind == "nccl");
  check_end();
}

TEST_CASE("candidates: a request for the ring does not wait for NCCL") {
  begin();
  const std::size_t before = sums();
  CHECK(met("ring").kind == "ring");
  CHECK(sums() == before);
  check_end();
}

TEST_CASE("candidates: an NCCL that is preferred is not timed, slow as it may be") {
  begin();
  fake_cuda_slow("fake_cuda_enqueue", kLongMs);
  CHECK(met("prefer-nccl").kind == "nccl");
  check_end();
}

TEST_CASE("candidates: an NCCL that is preferred and cannot begin leaves the ring") {
  begin();
  FakeNccl::get().refuse_start(1, NcclResult::kSystemError);
  const Outcome outcome = met("prefer-nccl");
  CHECK(outcome.kind == "ring");
  CHECK(!outcome.aborted);
  check_end();
}

TEST_CASE("candidates: an NCCL that cannot begin leaves the ring") {
  begin();
  fake_cuda_slow("cuLaunchKernel", 5);
  FakeNccl::get().refuse_start(1, NcclResult::kSystemError);
  const Outcome outcome = met();
  CHECK(outcome.kind == "ring");
  CHECK(!outcome.aborted);
  check_end();
}

// A released rank reads and writes without waiting for others: an intended race.
#ifndef __SANITIZE_THREAD__
TEST_CASE("candidates: an NCCL that breaks while it is tried leaves the ring, and ends no engine") {
  begin();
  fake_cuda_slow("fake_cuda_enqueue", kLongMs);
  const std::size_t before = sums();
  std::atomic<bool> over{false};
  std::thread saboteur([&] {
    while (!over && sums() == before) std::this_thread::yield();
    FakeNccl::get().break_rank(1, NcclResult::kSystemError);
  });
  const Outcome outcome = met("auto", 5);  // which it takes
  over = true;
  saboteur.join();
  CHECK(outcome.kind == "ring");
  CHECK(!outcome.aborted);
  check_end();
}
#endif

}  // namespace hvd::cuda::test
