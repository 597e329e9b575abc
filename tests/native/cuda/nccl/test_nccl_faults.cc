// What goes wrong with NCCL, and that nobody waits forever: the same error on all ranks where
// there is no communicator, an abort of all where there was one.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "cuda/nccl/nccl_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

constexpr double kSoon = 30;    // s; far longer than any of this takes
constexpr double kLooks = 0.3;  // s; some of the looks that would find an error

template <typename Condition>
bool until(const Condition& condition, double seconds = kSoon) {
  const Deadline deadline = Deadline::after_seconds(seconds);
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool idle(Rank& rank) {
  const Result<bool> now = rank.device().idle();
  return now && now.value();
}

// What is under way on the device ends without the others.
void check_abort_waits(Rank& rank, DeviceBackend& backend) {
  CHECK(backend.abort_waits().message == "");
  CHECK(until([&] { return idle(rank); }));
}

Status refusal(Rank& rank, const Group& group, double start_timeout_s) {
  return make_nccl_backend(rank.bootstrap(group), start_timeout_s).status();
}

}  // namespace

TEST_CASE("nccl: two ranks on one device are refused on both") {
  FakeNccl::get().reset();
  on_rings({2, 1}, [&](Rank& rank) {
    const Status status = refusal(rank, everybody(2, rank.number()), kSoon);
    CHECK(status.code == Code::kInternal);
    CHECK(status.rank == 0);
    CHECK(status.message.find("rank 0, device 0") == 0);
    CHECK(status.message.find("Duplicate GPU") != std::string::npos);
  });
  CHECK(FakeNccl::get().communicators() == 0);
}

TEST_CASE("nccl: a rank that cannot start is named on all ranks, and none waits for it") {
  FakeNccl::get().reset();
  FakeNccl::get().refuse_start(1, NcclResult::kSystemError);
  on_rings({3, 3}, [&](Rank& rank) {
    const Status status = refusal(rank, everybody(3, rank.number()), 1e6);
    CHECK(status.code == Code::kUnavailable);
    CHECK(status.rank == 1);
    CHECK(status.message.find("rank 1, device 1") == 0);
    CHECK(status.message.find("unhandled system error") != std::string::npos);
  });
  CHECK(FakeNccl::get().communicators() == 0);
}

TEST_CASE("nccl: a missing member is a timeout on all ranks") {
  FakeNccl::get().reset();
  FakeNccl::get().hold_start(true);
  on_rings({2, 2}, [&](Rank& rank) {
    const Status status = refusal(rank, everybody(2, rank.number()), 0.1);
    CHECK(status.code == Code::kTimeout);
    CHECK(status.message.find("NCCL_SOCKET_IFNAME") != std::string::npos);
  });
  CHECK(FakeNccl::get().communicators() == 0);
  FakeNccl::get().reset();
}

TEST_CASE("nccl: an abort ends the building of a communicator") {
  FakeNccl::get().reset();
  FakeNccl::get().hold_start(true);
  on_rings({2, 2}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    if (rank.number() == 0) {
      const std::size_t before = FakeNccl::get().calls("ncclCommGetAsyncError");
      std::thread other([&, mesh = rank.bootstrap(group).mesh] {
        CHECK(until([&] { return FakeNccl::get().calls("ncclCommGetAsyncError") > before; }));
        mesh->raise_everywhere(Status::make(Code::kAborted, "rank 1 raised", "test", 1));
      });
      CHECK(refusal(rank, group, 1e6).message == "rank 1 raised");
      other.join();
    } else {
      CHECK(refusal(rank, group, 1e6).message == "rank 1 raised");
    }
  });
  CHECK(FakeNccl::get().communicators() == 0);
  FakeNccl::get().reset();
}

TEST_CASE("nccl: A20 the watch of a communicator that ends in an exception is the abort") {
  arm_failpoints("nccl.watch:throw@1");
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const BootstrapGroup bootstrap = rank.bootstrap(group);
    const auto backend = nccl(rank, group);
    const OnDevice tensor(rank, Bytes(64));
    if (rank.number() == 0) {
      REQUIRE(backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {}).message == "");
    }
    REQUIRE(until([&] { return bootstrap.mesh->abort().raised(); }));
    const Status cause = bootstrap.mesh->abort().cause();
    CHECK(cause.code == Code::kInternal);
    CHECK(cause.rank == 0);
    CHECK(cause.message ==
          "rank 0, device 0 (Fake GPU): the thread that watches NCCL has ended: failpoint "
          "nccl.watch");
    check_abort_waits(rank, *backend);
  });
  arm_failpoints("");
}

TEST_CASE("nccl: an abort frees a device that waits for a missing rank") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = nccl(rank, group);
    const OnDevice tensor(rank, Bytes(64));
    if (rank.number() == 0) {
      REQUIRE(backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {}).message == "");
      CHECK_FALSE(idle(rank));
    }
    CHECK(backend->abort_waits().message == "");
    check_abort_waits(rank, *backend);
  });
}

TEST_CASE("nccl: after a reset the current ranks connect, regardless of earlier state") {
  for (const int size : {3, 2, 4}) {
    on_nccl(size, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = nccl(rank, group);
      const Reduction sum{Dtype::kFloat32, ReduceOp::kSum, {}};
      check_exact_allreduce(rank, *backend, group, {sum, {400}, false});
      const OnDevice tensor(rank, Bytes(64));
      const Operand lonely{tensor.data(), tensor.data(), 16};
      if (rank.number() == 0) REQUIRE(backend->allreduce(group, {lonely}, sum).message == "");
      check_abort_waits(rank, *backend);  // what an engine does that others have left
      CHECK_FALSE(backend->allreduce(group, {lonely}, sum).is_ok());
    });
  }
}

TEST_CASE("nccl: letting go returns at once, even where NCCL's abort does not") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = nccl(rank, group);
    const OnDevice tensor(rank, Bytes(64));
    if (rank.number() == 0) {
      const std::size_t before = FakeNccl::get().calls("ncclCommAbort");
      FakeNccl::get().hold_abort(true);
      REQUIRE(backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {}).message == "");
      CHECK(backend->abort_waits().message == "");
      CHECK(until([&] { return FakeNccl::get().calls("ncclCommAbort") > before; }));
      CHECK_FALSE(idle(rank));
      FakeNccl::get().hold_abort(false);
      CHECK(until([&] { return idle(rank); }));
    } else {
      CHECK(backend->abort_waits().message == "");
    }
  });
}

TEST_CASE("nccl: an error during device work is reported to all ranks, naming the rank") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const BootstrapGroup bootstrap = rank.bootstrap(group);
    const auto backend = nccl(rank, group);
    const OnDevice tensor(rank, Bytes(64));
    if (rank.number() == 0) {
      REQUIRE(backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {}).message == "");
      FakeNccl::get().break_rank(0, NcclResult::kSystemError);
    }
    REQUIRE(until([&] { return bootstrap.mesh->abort().raised(); }));
    const Status cause = bootstrap.mesh->abort().cause();
    CHECK(cause.code == Code::kUnavailable);
    CHECK(cause.rank == 0);
    CHECK(cause.message.find("rank 0, device 0") == 0);
    CHECK(cause.message.find("an operation over NCCL: unhandled system error") !=
          std::string::npos);
    check_abort_waits(rank, *backend);
  });
}

TEST_CASE("nccl: on trial an error while the device works is known, and ends nothing") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const BootstrapGroup bootstrap = rank.bootstrap(group);
    const auto backend = nccl(rank, group);
    backend->set_self_test(20);
    const OnDevice tensor(rank, Bytes(64));
    if (rank.number() == 0) {
      REQUIRE(backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {}).message == "");
      CHECK(backend->health().message == "");
      FakeNccl::get().break_rank(0, NcclResult::kSystemError);
      CHECK(!until([&] { return bootstrap.mesh->abort().raised(); }, kLooks));
      const Status known = backend->health();
      CHECK(known.rank == 0);
      CHECK(known.message.find("rank 0, device 0") == 0);
      CHECK(known.message.find("unhandled system error") != std::string::npos);
    }
    check_abort_waits(rank, *backend);
  });
}

TEST_CASE("nccl: a trial with a missing member times out") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = nccl(rank, group);
    backend->set_self_test(0.2);
    const OnDevice tensor(rank, Bytes(64));
    FakeNccl::get().hold_launch(true);
    const Status status = backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {});
    CHECK(status.code == Code::kTimeout);
    CHECK(status.message.find("an allreduce over NCCL is not done in time") != std::string::npos);
    check_abort_waits(rank, *backend);
  });
}

TEST_CASE("nccl: the mesh reports a peer's death, before NCCL's remote error") {
  constexpr std::int64_t kGraceNs = 400'000'000;  // a little less than the mesh is given for it
  std::atomic<std::int64_t> broken_ns{0}, told_ns{0};
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const BootstrapGroup bootstrap = rank.bootstrap(group);
    const auto backend = nccl(rank, group);
    const OnDevice tensor(rank, Bytes(64));
    if (rank.number() == 0) {
      REQUIRE(backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {}).message == "");
      broken_ns = now_ns();
      FakeNccl::get().break_rank(0, NcclResult::kRemoteError);
    } else {
      REQUIRE(until([&] { return broken_ns.load() != 0; }));
      bootstrap.mesh->raise_everywhere(Status::make(Code::kRankDied, "rank 1 died", "test", 1));
      told_ns = now_ns();
    }
    REQUIRE(until([&] { return told_ns.load() != 0; }));
    REQUIRE(bootstrap.mesh->abort().raised());
    if (told_ns.load() - broken_ns.load() < kGraceNs)  // else this test was late
      CHECK(bootstrap.mesh->abort().cause().message == "rank 1 died");
    check_abort_waits(rank, *backend);
  });
}

TEST_CASE("nccl: an operation after a broken one fails with NCCL's message") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = nccl(rank, group);
    const OnDevice tensor(rank, Bytes(64));
    if (rank.number() == 0) FakeNccl::get().break_rank(0, NcclResult::kInternalError);
    if (rank.number() == 0) {
      const Status status = backend->broadcast(group, {{tensor.data(), tensor.data(), 64}}, 0);
      CHECK(status.code == Code::kInternal);
      CHECK(status.rank == 0);
      CHECK(status.message.find("a broadcast over NCCL: internal error") != std::string::npos);
    }
    check_abort_waits(rank, *backend);
  });
}

TEST_CASE("nccl: operations that do not match are an abort of all, not a hang") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const BootstrapGroup bootstrap = rank.bootstrap(group);
    const auto backend = nccl(rank, group);
    const OnDevice tensor(rank, Bytes(64));
    const std::size_t count = rank.number() == 0 ? 16 : 8;
    REQUIRE(backend->allreduce(group, {{tensor.data(), tensor.data(), count}}, {}).message == "");
    REQUIRE(until([&] { return bootstrap.mesh->abort().raised(); }));
    CHECK(bootstrap.mesh->abort().cause().message.find("operations do not match") !=
          std::string::npos);
    check_abort_waits(rank, *backend);
  });
}

}  // namespace hvd::cuda::test
