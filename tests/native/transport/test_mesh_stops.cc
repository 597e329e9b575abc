// Stopped processes (rows A10 and A11 of the fault matrix), and deaths while the others wait in
// every way there is (A1).
#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <thread>

#include "control_wait.h"
#include "processes.h"

using namespace hvd;

namespace {

const std::string kStopped = ") is stopped (SIGSTOP or a debugger)";

MeshOptions options_of(const std::string& transport, double abort_s = 5) {
  MeshOptions options;
  options.transport = transport;
  options.slot_bytes = 4096;
  options.heap_bytes = std::size_t{16} << 20U;
  options.stop_warning_s = 0.2;
  options.stop_abort_s = abort_s;
  return options;
}

// Waits for rank 1 in a link, as the engine does it.
Status wait_for_one(Mesh& mesh) {
  mesh.attend(true);
  const Status status = mesh.from(1).peek(mesh.abort()).status();
  mesh.attend(false);
  return status;
}

// Rank 1 stops itself before it gives rank 0 what it waits for.
Status stop_then_give(Mesh& mesh) {
  if (mesh.topology().rank == 0) return wait_for_one(mesh);
  if (::raise(SIGSTOP) != 0) return Status::make(Code::kInternal, "not stopped", "test");
  const Result<Slot> slot = mesh.to(0).acquire(mesh.abort());
  if (slot.is_ok()) mesh.to(0).publish(1);
  return slot.status();
}

// Rank 1 dies while rank 0 waits for a message, 2 for a slot, 3 for room.
Status wait_each_in_its_way(Mesh& mesh) {
  switch (mesh.topology().rank) {
    case 0:
      while (!mesh.abort().raised()) test::wait_control(mesh, std::chrono::hours(1));
      return mesh.abort().cause();
    case 2:
      return mesh.from(1).peek(mesh.abort()).status();
    case 3:
      for (;;) {
        const Result<Slot> slot = mesh.to(1).acquire(mesh.abort());
        if (!slot.is_ok()) return slot.status();
        mesh.to(1).publish(4096);
      }
    default:
      break;
  }
  // Blocked as well: a process that runs would be no different.
  return mesh.from(0).peek(mesh.abort()).status();
}

}  // namespace

TEST_CASE("stops: A10 a stopped rank is named, and ends the wait of all others by the policy") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    test::Processes ranks(
        3, [&](int) { return options_of(transport, 0.6); },
        [](Mesh& mesh) {
          return mesh.topology().rank == 1 ? mesh.from(0).peek(mesh.abort()).status()
                                           : wait_for_one(mesh);
        });
    const std::int64_t stopped = now_ns();
    ranks.signal(1, SIGSTOP);
    for (int i = 0; i < 2; ++i) {
      const test::Report report = ranks.next();
      CHECK(report.code == static_cast<int>(Code::kStalled));
      CHECK(report.failing == 1);
      CHECK(report.message().find("is stopped (SIGSTOP or a debugger)") != std::string::npos);
      CHECK(report.rank != 1);
      const double seconds = static_cast<double>(report.at_ns - stopped) / 1e9;
      CHECK(seconds >= 0.5);
    }
    ranks.signal(1, SIGCONT);
    CHECK(ranks.next().code == static_cast<int>(Code::kStalled));  // it learns of it as well
    for (int rank = 0; rank < 3; ++rank) ranks.expect_good_end(rank);
    ranks.expect_logged(kStopped);
  }
}

TEST_CASE("stops: A11 a stop shorter than the policy has no effect") {
  test::Processes ranks(2, [&](int) { return options_of("shm", 600); }, stop_then_give);
  ranks.expect_stopped(1);
  ranks.expect_logged(kStopped);  // rank 0 has looked, and counts
  ranks.signal(1, SIGCONT);
  for (int i = 0; i < 2; ++i) CHECK(ranks.next().code == 0);
  for (int rank = 0; rank < 2; ++rank) ranks.expect_good_end(rank);
}

// In real time what test_watch_stops.cc has in virtual time.
TEST_CASE("stops: F8 ranks that stood still together for longer than the policy go on" *
          doctest::test_suite("nightly")) {
  constexpr double kPolicy = 6;  // this process must not be late for so long
  std::vector<std::unique_ptr<test::Processes>> pairs;
  for (const std::string transport : {"shm", "tcp"}) {
    pairs.push_back(std::make_unique<test::Processes>(
        2, [&](int) { return options_of(transport, kPolicy); }, stop_then_give));
    pairs.back()->expect_stopped(1);
    pairs.back()->expect_logged(kStopped);  // rank 0 is counting
    pairs.back()->signal(0, SIGSTOP);
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(kPolicy + 0.5));  // the fault itself
  for (const auto& ranks : pairs) {
    ranks->signal(0, SIGCONT);
    ranks->expect_logged(kStopped);  // it has seen the other one still stopped, and counts anew
    ranks->signal(1, SIGCONT);
    for (int i = 0; i < 2; ++i) {
      const test::Report report = ranks->next();
      CHECK_MESSAGE(report.code == 0, report.message());
    }
    for (int rank = 0; rank < 2; ++rank) ranks->expect_good_end(rank);
  }
}

TEST_CASE("stops: with stop_abort_s = 0 a stopped rank is named and waited for") {
  test::Processes ranks(2, [&](int) { return options_of("shm", 0); }, stop_then_give);
  ranks.expect_stopped(1);
  ranks.expect_logged(kStopped);
  ranks.signal(1, SIGCONT);
  for (int i = 0; i < 2; ++i) CHECK(ranks.next().code == 0);
  for (int rank = 0; rank < 2; ++rank) ranks.expect_good_end(rank);
}

// Kills one of four that wait; milliseconds until the slowest survivor knows.
static double kill_one_of_four(const std::string& transport) {
  test::Processes ranks(4, [&](int) { return options_of(transport); }, wait_each_in_its_way);
  const std::int64_t killed = now_ns();
  ranks.signal(1, SIGKILL);
  std::set<int> survivors;
  double slowest = 0;
  for (int i = 0; i < 3; ++i) {
    const test::Report report = ranks.next();
    CHECK(report.died(1));
    survivors.insert(report.rank);
    slowest = std::max(slowest, static_cast<double>(report.at_ns - killed) / 1e6);
  }
  CHECK(survivors == std::set<int>{0, 2, 3});
  for (const int rank : survivors) ranks.expect_good_end(rank);
  return slowest;
}

TEST_CASE("deaths: A1 a SIGKILL ends every kind of wait on every survivor") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    kill_one_of_four(transport);
  }
}

TEST_CASE("deaths: A1 a SIGKILL ends every kind of wait at once" * doctest::test_suite("nightly")) {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    // The quickest round counts: in any of them another process may have the cores.
    double quickest = test::kNotAtOnceMs;
    for (int round = 0; round < 5 || (round < 40 && quickest >= test::kAtOnceMs); ++round)
      quickest = std::min(quickest, kill_one_of_four(transport));
    CHECK(quickest < test::kAtOnceMs);
    MESSAGE(transport << ": slowest survivor of the quickest round " << quickest << " ms");
  }
}
