// The shared heap: claims, releases, and what happens where there is no memory for it.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/failpoint.h"
#include "ranks.h"
#include "transport/control_wait.h"
#include "transport/processes.h"
#include "transport/shm/shared_heap.h"

using namespace hvd;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20U;

struct Disarm {
  ~Disarm() { arm_failpoints(""); }
};

MeshOptions options_of(const std::string& transport) {
  MeshOptions options;
  options.transport = transport;
  options.slot_bytes = 4096;
  options.heap_bytes = 64 * kMiB;
  return options;
}

std::size_t pages_of(const MemfdHeap& heap) {
  struct stat facts{};
  REQUIRE(::fstat(heap.fd().get(), &facts) == 0);
  return static_cast<std::size_t>(facts.st_blocks) * 512;
}

// Rank 0 claims and writes, rank 1 sees it; both say what they found.
Status share_bytes(Mesh& mesh) {
  const auto fail = [](const std::string& what) {
    return Status::make(Code::kInternal, what, "test");
  };
  SharedHeap* const heap = mesh.heap();
  if (heap == nullptr) return fail("no heap");
  if (heap->bytes() != 64 * kMiB) return fail("a heap of another size");
  if (mesh.topology().rank == 0) {
    Status status = heap->claim(8 * kMiB, kMiB);
    if (!status) return status;
    std::memset(heap->base() + 8 * kMiB, 0x5A, kMiB);
    return mesh.send_control(1, "written");
  }
  if (test::next_control(mesh).bytes != "written") return fail("no message");
  for (std::size_t i = 0; i < kMiB; ++i)
    if (heap->base()[8 * kMiB + i] != std::byte{0x5A}) return fail("other bytes");
  return Status::ok();
}

}  // namespace

TEST_CASE(
    "heap: of a limited address space it takes a quarter, so that a rank can map other things") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const std::size_t unlimited = heap_bytes_or_all(0);
  rlimit limited = before;
  limited.rlim_cur =
      8 * 1024 * kMiB;  // less than a sanitizer maps: nothing may be mapped in between
  const int set = ::setrlimit(RLIMIT_AS, &limited);
  const std::size_t quarter = heap_bytes_or_all(0);
  const int restored = ::setrlimit(RLIMIT_AS, &before);
  REQUIRE(set == 0);
  REQUIRE(restored == 0);
  CHECK(quarter == std::min(unlimited, 2 * 1024 * kMiB));
  CHECK(heap_bytes_or_all(4096) == 4096);
}

TEST_CASE("heap: claimed memory is zeroed, and unmapped when it is released") {
  const auto made = MemfdHeap::create(64 * kMiB);
  REQUIRE_MESSAGE(made.is_ok(), made.status().message);
  MemfdHeap& heap = *made.value();
  CHECK(heap.bytes() == 64 * kMiB);
  CHECK(pages_of(heap) == 0);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(heap.claim(4 * kMiB, kMiB).is_ok());
    CHECK(pages_of(heap) == kMiB);
    std::size_t dirty = 0;
    for (std::size_t i = 0; i < kMiB; ++i) dirty += heap.base()[4 * kMiB + i] != std::byte{0};
    CHECK(dirty == 0);
    std::memset(heap.base() + 4 * kMiB, 0xFF, kMiB);
    heap.release(4 * kMiB, kMiB);
    CHECK(pages_of(heap) == 0);
  }
}

TEST_CASE("heap: beyond its end, or without memory, a claim is an error that leaves nothing") {
  const Disarm disarm;
  const auto made = MemfdHeap::create(8 * kMiB);
  REQUIRE(made.is_ok());
  MemfdHeap& heap = *made.value();
  CHECK(heap.claim(8 * kMiB, 1).code == Code::kUnavailable);
  CHECK(heap.claim(0, 9 * kMiB).code == Code::kUnavailable);
  CHECK(heap.claim(4096, ~std::size_t{0}).code == Code::kUnavailable);
  arm_failpoints("heap.claim:fail@1");
  CHECK(heap.claim(0, kMiB).code == Code::kUnavailable);
  CHECK(pages_of(heap) == 0);
  CHECK(heap.claim(0, kMiB).is_ok());
}

TEST_CASE("heap: ranks of one host share the bytes; it outlives the mesh") {
  test::Processes ranks(2, [](int) { return options_of("auto"); }, share_bytes);
  for (int i = 0; i < 2; ++i) {
    const test::Report report = ranks.next();
    CHECK_MESSAGE(report.code == 0, report.message());
  }
  for (int rank = 0; rank < 2; ++rank) ranks.expect_good_end(rank);

  auto meshes = make_local_meshes(2, options_of("auto"));
  const std::shared_ptr<SharedHeap> kept = meshes[0]->heap_holder();
  REQUIRE(static_cast<bool>(kept));
  CHECK((kept.get() == meshes[1]->heap()));
  meshes.clear();
  REQUIRE(kept->claim(0, 4096).is_ok());
  std::memset(kept->base(), 1, 4096);
}

TEST_CASE("heap: one rank without address space means no heap on its host" *
          doctest::skip(test::kSanitized)) {
  test::Processes ranks(
      3,
      [](int rank) {
        MeshOptions options = options_of("auto");
        options.heap_bytes = std::size_t{1} << 40U;
        if (rank == 1) {
          const rlimit limit{std::size_t{1} << 39U, std::size_t{1} << 39U};
          if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(14);
        }
        return options;
      },
      [](Mesh& mesh) {
        return mesh.heap() == nullptr && mesh.transport_to((mesh.topology().rank + 1) % 3) == "shm"
                   ? Status::ok()
                   : Status::make(Code::kInternal, "a heap", "test");
      });
  for (int i = 0; i < 3; ++i) CHECK(ranks.next().message() == "");
  for (int rank = 0; rank < 3; ++rank) ranks.expect_good_end(rank);
  ranks.expect_logged("no shared heap");
}

TEST_CASE("heap: E1 without shared memory auto uses TCP on every rank of the host, shm refuses") {
  const Disarm disarm;
  for (const std::string transport : {"auto", "shm"}) {
    arm_failpoints("arena.create:fail@1");
    test::Meeting meeting(3);
    test::run_ranks(3, [&](int rank) {
      test::ThreadBootstrap bootstrap(meeting, rank);
      auto mesh = connect_mesh(rank, 3, bootstrap, options_of(transport));
      if (transport == "shm") {
        REQUIRE_FALSE(mesh.is_ok());
        CHECK(mesh.status().code == Code::kUnavailable);
        CHECK(mesh.status().rank == 0);
        return;
      }
      REQUIRE_MESSAGE(mesh.is_ok(), mesh.status().message);
      CHECK((mesh.value()->heap() == nullptr));
      for (int peer = 0; peer < 3; ++peer)
        if (peer != rank) CHECK(mesh.value()->transport_to(peer) == "tcp");
      if (rank != 0) REQUIRE(mesh.value()->send_control(0, "here").is_ok());
      for (int i = 0; rank == 0 && i < 2; ++i)
        CHECK(test::next_control(*mesh.value()).bytes == "here");
      mesh.value()->leave();
    });
  }
}

TEST_CASE("heap: E1 slots that cannot be claimed are an error of the sender, not a SIGBUS") {
  const Disarm disarm;
  test::Meeting meeting(2);
  arm_failpoints("arena.claim:fail@1");
  test::run_ranks(2, [&](int rank) {
    test::ThreadBootstrap bootstrap(meeting, rank);
    auto mesh = connect_mesh(rank, 2, bootstrap, options_of("shm"));
    REQUIRE(mesh.is_ok());
    if (rank == 0) {
      CHECK(mesh.value()->to(1).acquire(mesh.value()->abort()).status().code == Code::kUnavailable);
      CHECK(mesh.value()->to(1).acquire(mesh.value()->abort()).is_ok());
    }
    mesh.value()->leave();
  });
}
