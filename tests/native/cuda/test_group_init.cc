// Groups meet: all members take the same backend, and fail alike.
#include <doctest/doctest.h>

#include <map>
#include <mutex>

#include "collective/cpu_backend.h"
#include "cuda/group_init.h"
#include "cuda/rings.h"

namespace hvd::cuda {
namespace {

using hvd::test::Cluster;
using hvd::test::cluster_of;
using hvd::test::everybody;
using hvd::test::on_meshes;
using test::check_nothing_left;
using test::fake_driver;

struct Host {
  std::map<int, std::string> operations;  // of a rank, where it is not auto
  std::map<int, int> devices;             // of a rank, where it is not 0
  std::string ring = "auto";
  double self_test_seconds = 20;
};

// "ring", or the message; the same on all ranks, which is checked.
struct Outcome {
  std::string text;
  Code code = Code::kOk;
  int rank = -1;
  std::size_t algorithms = 0;
  std::string notice;  // of rank 0; the others have none
};

Outcome met(const Cluster& cluster, const Host& host = {}) {
  std::mutex mutex;
  std::map<int, Outcome> outcomes;
  on_meshes(cluster, [&](int rank, Mesh& mesh) {
    CpuBackend cpu(mesh);
    const int number = host.devices.count(rank) == 0 ? 0 : host.devices.at(rank);
    auto device = Device::open(fake_driver(), number, rank);
    AcceleratorOptions options;
    options.arena_bytes = 4096;
    options.self_test_seconds = host.self_test_seconds;
    options.ring = host.ring;
    if (host.operations.count(rank) == 1) options.operations = host.operations.at(rank);
    const LocalDevice local{device ? device.value() : nullptr, device.status()};
    KnownDevices known;
    const auto agreed =
        init_backend(local, mesh, cpu, everybody(cluster.size, rank), options, known);
    Outcome outcome{agreed ? name_of(agreed.value().kind) : agreed.status().message,
                    agreed.status().code, agreed.status().rank,
                    agreed ? agreed.value().backend->algorithms() : 0,
                    agreed ? agreed.value().notice : ""};
    const std::lock_guard<std::mutex> lock(mutex);
    outcomes[rank] = outcome;
  });
  REQUIRE(outcomes.size() == static_cast<std::size_t>(cluster.size));
  for (const auto& [rank, outcome] : outcomes) {
    CHECK(outcome.text == outcomes[0].text);
    CHECK(outcome.code == outcomes[0].code);
    CHECK(outcome.rank == outcomes[0].rank);
    CHECK(outcome.algorithms == outcomes[0].algorithms);
    CHECK((rank == 0 || outcome.notice.empty()));
  }
  check_nothing_left();
  return outcomes[0];
}

Host all_want(int size, const std::string& operations) {
  Host host;
  for (int rank = 0; rank < size; ++rank) host.operations[rank] = operations;
  return host;
}

TEST_CASE("ranks of one host use the ring, also on one device") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    fake_cuda_reset();
    const Outcome outcome = met(cluster_of(size));
    CHECK(outcome.text == "ring");
    CHECK(outcome.notice.empty());
  }
}

TEST_CASE("ranks on devices of their own, and ranks that are processes' like") {
  fake_cuda_reset();
  fake_cuda_set_devices(3);
  Host host;
  host.devices = {{1, 1}, {2, 2}};
  CHECK(met(cluster_of(3), host).text == "ring");
  Cluster far = cluster_of(3);
  far.hosts = "aab";
  const Outcome staged = met(far);
  CHECK(staged.text == "staged");
  CHECK(staged.notice.find("tensors on devices are reduced through host memory: ring: rank 0 and "
                           "rank 2 are on different hosts; NCCL: rank 0 ") == 0);
}

TEST_CASE("messages may be longer than a slot") {
  fake_cuda_reset();
  CHECK(met(cluster_of(3, 64, 2)).text == "ring");
}

TEST_CASE("without word operations tensors use the host") {
  fake_cuda_reset();
  fake_cuda_set_word_operations(0);
  const Outcome outcome = met(cluster_of(2));
  CHECK(outcome.text == "staged");
  CHECK(outcome.notice.find("ring: rank 0's driver has no stream memory operations") !=
        std::string::npos);
}

TEST_CASE("a rank without memory for its arena: all use the next candidate") {
  fake_cuda_reset();
  fake_cuda_fail("cuMemAlloc", 5, CUDA_ERROR_OUT_OF_MEMORY);  // three probes, and an arena before
  CHECK(met(cluster_of(3)).text == "staged");
}

TEST_CASE("if only the ring is allowed, all fail for the rank that cannot") {
  fake_cuda_reset();
  fake_cuda_fail("cuMemAlloc", 5, CUDA_ERROR_OUT_OF_MEMORY);
  const Outcome outcome = met(cluster_of(3), all_want(3, "ring"));
  CHECK(outcome.code == Code::kUnavailable);
  CHECK(outcome.rank >= 0);
  CHECK(outcome.text.find("rank " + std::to_string(outcome.rank) + ", device 0 (Fake GPU): ") == 0);
  CHECK(outcome.text.find("CUDA_ERROR_OUT_OF_MEMORY (out of memory)") != std::string::npos);
}

TEST_CASE("a ring whose trial fails on a rank is not used") {
  fake_cuda_reset();
  Host host;
  host.self_test_seconds = 0.5;  // which the other rank waits in vain
  fake_cuda_fail("cuEventElapsedTime", 0, CUDA_ERROR_UNKNOWN);
  const Outcome outcome = met(cluster_of(2), host);
  CHECK(outcome.text == "staged");
  CHECK(outcome.notice.find("; 'ring': rank ") != std::string::npos);
  CHECK(outcome.notice.find("CUDA_ERROR_UNKNOWN") != std::string::npos);
}

// Of four laps for each rank and algorithm one fails; then all of it without the newer algorithm.
static void check_newer_form(int lap) {
  fake_cuda_reset();
  fake_cuda_set_devices(2);
  Host host;
  host.devices = {{1, 1}};
  CHECK(met(cluster_of(2), host).algorithms == 2);
  fake_cuda_fail("cuEventElapsedTime", lap, CUDA_ERROR_UNKNOWN);
  host.self_test_seconds =
      6;  // which the other rank waits in vain, and none that is well must need
  const Outcome outcome = met(cluster_of(2), host);
  CHECK(outcome.text == "ring");
  CHECK(outcome.algorithms == 1);
}

TEST_CASE("a ring a form of which goes wrong in its trial is taken without the newer form") {
  check_newer_form(3);
}

TEST_CASE("a ring a form of which goes wrong: whichever of them it is" *
          doctest::test_suite("nightly")) {
  check_newer_form(9);
}

TEST_CASE("a wish for a form of the ring") {
  fake_cuda_reset();
  Host host;
  host.ring = "persistent";  // four multiprocessors
  CHECK(met(cluster_of(4), host).text == "ring");
  const Outcome outcome = met(cluster_of(5), host);
  CHECK(outcome.code == Code::kInvalidArgument);
  CHECK(outcome.text ==
        "HVD_GPU_RING=persistent is not possible among these ranks: a device has too few "
        "multiprocessors for all; use auto or slices");
}

TEST_CASE("a rank without a device: reported to all, with the reason") {
  fake_cuda_reset();
  Host host;
  host.devices = {{1, 7}};
  const Outcome outcome = met(cluster_of(3), host);
  CHECK(outcome.code == Code::kUnavailable);
  CHECK(outcome.rank == 1);
  CHECK(outcome.text == "rank 1: there is no device 7, this process sees 1 (CUDA_VISIBLE_DEVICES)");
}

TEST_CASE("requests: staged, nccl without the library, and differing ranks") {
  fake_cuda_reset();
  const Outcome staged = met(cluster_of(2), all_want(2, "staged"));
  CHECK(staged.text == "staged");
  CHECK(staged.notice.empty());
  const Outcome shared = met(cluster_of(2), all_want(2, "nccl"));
  CHECK(shared.code == Code::kInvalidArgument);
  CHECK(shared.text.find("HOROVOD_GPU_OPERATIONS=nccl is not possible among these ranks: rank 0") ==
        0);
  Host host;
  host.operations = {{0, "ring"}, {1, "staged"}};
  const Outcome outcome = met(cluster_of(2), host);
  CHECK(outcome.code == Code::kMismatch);
  CHECK(outcome.rank == 1);
  CHECK(outcome.text ==
        "HOROVOD_GPU_OPERATIONS is ring on rank 0 and staged on rank 1: set it alike on all ranks");
}

TEST_CASE("an abort ends a rendezvous with a missing rank") {
  fake_cuda_reset();
  const auto meshes = make_local_meshes(2, {});
  hvd::test::run_ranks(2, [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    if (rank == 1) {
      mesh.raise_everywhere(Status::make(Code::kRankDied, "rank 1 died", "test", 1));
      return;
    }
    CpuBackend cpu(mesh);
    auto device = Device::open(fake_driver(), 0, rank);
    REQUIRE(device.status().message == "");
    KnownDevices known;
    const auto agreed =
        init_backend({device.value(), {}}, mesh, cpu, everybody(2, rank), {}, known);
    REQUIRE(!agreed.is_ok());
    CHECK(agreed.status().code == Code::kRankDied);
    CHECK(agreed.status().message == "rank 1 died");
  });
  check_nothing_left();
}

TEST_CASE("the smallest arena counts") {
  std::vector<PeerInfo> members(3);
  members[0].arena_bytes = 4096;
  members[1].arena_bytes = 1024;
  members[2].arena_bytes = 2048;
  CHECK(least_arena(members) == 1024);
}

}  // namespace
}  // namespace hvd::cuda
