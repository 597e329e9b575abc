// Rows of the fault matrix that kill, stop or crash a rank in the middle of an operation: every
// other rank's wait ends in time with an error that names the failing one, and nothing is left.
// Ranks outnumber the cores and are busy, as in the matrix.
#include <dirent.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "faults/processes.h"

namespace hvd::test {
namespace {

constexpr int kRanks = 4;
constexpr double kPatience = 60;
// What is seen at once and not by a timer, of which the shortest lasts twice as long.
constexpr double kAtOnceMs = 250;

EngineOptions options_for(const std::string& transport) {
  EngineOptions options;
  options.mesh.transport = transport;
  options.mesh.slot_bytes = std::size_t{256} << 10U;
  options.mesh.stop_abort_s = kPatience;  // ranks that a test stops for a while are no fault
  return options;
}

// Sums `values` until an error comes; the sums are checked as long as they succeed. Says that it
// has started after so many of them.
Status sum_for_ever(Engine& engine, std::vector<float>& values, const Line& line, int told = 1) {
  for (int round = 0;; ++round) {
    std::fill(values.begin(), values.end(), static_cast<float>(engine.topology().rank + 1));
    Request request;
    request.kind = Kind::kAllreduce;
    request.name = "grads";
    TensorMeta meta;
    meta.shape = {static_cast<std::int64_t>(values.size())};
    request.tensors.push_back(meta);
    // In turn the way of a gradient and that of a call that waits.
    Result<std::int64_t> handle =
        engine.enqueue(std::move(request), {{values.data(), values.data(), values.size()}},
                       round % 2 == 0 ? Next::kWaits : Next::kContinues);
    if (!handle) return handle.status();
    std::unique_ptr<Outcome> outcome;
    while (outcome == nullptr) {
      Result<std::unique_ptr<Outcome>> waited =
          engine.wait(handle.value(), std::chrono::milliseconds(100));
      if (!waited) return waited.status();
      outcome = waited.take();
    }
    if (!outcome->status) return outcome->status;
    const int n = engine.topology().size;
    const auto expected = static_cast<float>(n * (n + 1) / 2);
    if (!std::all_of(values.begin(), values.end(), [&](float v) { return v == expected; })) {
      return Status::make(Code::kInternal, "a wrong sum was given out", "test_faults");
    }
    if (round + 1 == told) line.started();
  }
}

Body summing(const std::string& transport, std::size_t count,
             const std::function<void(int)>& before = {}, int told = 1) {
  return [=](int rank, Bootstrap& bootstrap, Line& line) {
    Result<std::unique_ptr<Engine>> engine =
        Engine::start(rank, kRanks, bootstrap, options_for(transport));
    if (!engine) return line.say(Report::of(engine.status()));
    std::vector<float> values(count);
    if (before) before(rank);
    const Status status = sum_for_ever(*engine.value(), values, line, told);
    line.say(Report::of(status));
  };
}

// Each rank sends to the next one and receives from the one before it until an error comes.
Status pass_messages(Engine& engine, std::size_t count, const Line& line) {
  const int rank = engine.topology().rank, size = engine.topology().size;
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  std::vector<float> out(count), in(count);
  for (int round = 0;; ++round) {
    std::fill(out.begin(), out.end(), static_cast<float>(rank + round));
    std::vector<std::int64_t> handles;
    for (const bool sends : {true, false}) {
      std::vector<float>& values = sends ? out : in;
      Request request =
          sends ? send_request(rank, next, 0, size) : send_request(before, rank, 0, size);
      request.tensors.emplace_back().shape = {static_cast<std::int64_t>(count)};
      Result<std::int64_t> handle =
          engine.enqueue(std::move(request), {{values.data(), values.data(), count}});
      if (!handle) return handle.status();
      handles.push_back(handle.value());
    }
    for (const std::int64_t handle : handles) {
      const auto outcome = engine.wait(handle, std::chrono::hours(1));
      if (!outcome) return outcome.status();
      if (!outcome.value()->status) return outcome.value()->status;
    }
    const auto expected = static_cast<float>(before + round);
    if (!std::all_of(in.begin(), in.end(), [&](float value) { return value == expected; })) {
      return Status::make(Code::kInternal, "a wrong message arrived", "test_faults");
    }
    if (round == 0) line.started();
  }
}

Body passing(const std::string& transport, std::size_t count) {
  return [=](int rank, Bootstrap& bootstrap, Line& line) {
    Result<std::unique_ptr<Engine>> engine =
        Engine::start(rank, kRanks, bootstrap, options_for(transport));
    if (!engine) return line.say(Report::of(engine.status()));
    line.say(Report::of(pass_messages(*engine.value(), count, line)));
  };
}

Body sums(const std::string& transport, std::size_t count) { return summing(transport, count); }

std::size_t open_files() {
  std::size_t count = 0;
  DIR* const dir = ::opendir("/proc/self/fd");
  while (dir != nullptr && ::readdir(dir) != nullptr) ++count;
  if (dir != nullptr) ::closedir(dir);
  return count;
}

struct Figures {
  std::vector<double> ms;
  double at(double share) {
    std::sort(ms.begin(), ms.end());
    return ms[std::min(ms.size() - 1,
                       static_cast<std::size_t>(share * static_cast<double>(ms.size())))];
  }
};

// Every survivor of `failing` reports a death of that rank; the delays since `since_ns` are added.
void check_survivors(Processes& ranks, int failing, Code code, std::int64_t since_ns,
                     Figures& figures) {
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == failing) continue;
    const std::optional<Report> report = ranks.report(rank, kPatience);
    REQUIRE_MESSAGE(report.has_value(), "rank " << rank << " said nothing");
    CHECK_MESSAGE(report->status_code() == code, "rank " << rank << ": " << report->message);
    CHECK_MESSAGE(report->rank == failing, "rank " << rank << ": " << report->message);
    figures.ms.push_back(static_cast<double>(report->at_ns - since_ns) / 1e6);
  }
}

void check_ends(Processes& ranks, int failing) {
  const std::vector<int> ends = ranks.wait_all(kPatience);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == failing) continue;
    CHECK_MESSAGE(ends[static_cast<std::size_t>(rank)] == 0,
                  "rank " << rank << " did not end by itself");
  }
}

Figures kill_in_the_middle(const std::string& transport, int number, int episodes,
                           Body (*body)(const std::string&, std::size_t) = sums) {
  const std::size_t files = open_files();
  std::mt19937 random(20261120);
  Figures figures;
  for (int episode = 0; episode < episodes; ++episode) {
    const int failing = episode % kRanks;  // rank 0 too: row A5
    Processes ranks(kRanks, body(transport, std::size_t{4} << 20U));
    REQUIRE(ranks.all_started(kPatience));
    // The offset of the fault in the operation, not a wait for anything.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    const std::int64_t since = now_ns();
    ranks.signal(failing, number);
    check_survivors(ranks, failing, Code::kRankDied, since, figures);
    check_ends(ranks, failing);
  }
  MESSAGE(transport << ", signal " << number << ", " << figures.ms.size() << " survivors: p50 "
                    << figures.at(0.5) << " ms, p99 " << figures.at(0.99) << " ms, max "
                    << figures.at(1) << " ms");
  CHECK(open_files() == files);  // shared memory has no name: it is gone with its last process
  return figures;
}

// The names of all failpoints that the sources of the core have.
std::set<std::string> failpoints() {
  std::set<std::string> names;
  const std::string call = "failpoint(\"";
  for (const char* room : {"base", "transport", "collective", "engine"}) {
    const auto folder = std::filesystem::path(HVD_SOURCE_DIR) / room;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      const std::string all = text.str();
      for (std::size_t at = all.find(call); at != std::string::npos; at = all.find(call, at)) {
        at += call.size();
        names.insert(all.substr(at, all.find('"', at) - at));
      }
    }
  }
  return names;
}

}  // namespace

TEST_CASE("A1 A5: a rank that is killed in the middle of an allreduce is named by all others") {
  SUBCASE("shm") { kill_in_the_middle("shm", SIGKILL, 2 * kRanks); }
  SUBCASE("tcp") { kill_in_the_middle("tcp", SIGKILL, kRanks); }
}

TEST_CASE("A1 A5: a rank that is killed in the middle of messages is named by all others") {
  SUBCASE("shm") { kill_in_the_middle("shm", SIGKILL, 2 * kRanks, passing); }
  SUBCASE("tcp") { kill_in_the_middle("tcp", SIGKILL, kRanks, passing); }
}

TEST_CASE("A1 A5: that is so in many episodes, and known at once" *
          doctest::test_suite("nightly")) {
  Figures figures;
  SUBCASE("shm") { figures = kill_in_the_middle("shm", SIGKILL, 48); }
  SUBCASE("tcp") { figures = kill_in_the_middle("tcp", SIGKILL, 20); }
  CHECK(figures.at(0.1) <= kAtOnceMs);  // in many of the episodes others may have the cores
}

// Until it is stopped, or has ended.
static void await(pid_t pid, int what) {
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &info, what | WNOWAIT) == 0);
}

// Two ranks look away while `cause` makes rank 3 end, and while that makes another rank end. When
// they go on they find two dead, and only rank 3 is to blame.
static void check_blame(Processes& ranks, const std::vector<int>& survivors, int second,
                        const std::function<void()>& cause, Code code) {
  REQUIRE(ranks.all_started(kPatience));
  for (const int survivor : survivors) {
    ranks.signal(survivor, SIGSTOP);
    await(ranks.pid(survivor), WSTOPPED);
  }
  cause();
  for (const int dead : {3, second}) await(ranks.pid(dead), WEXITED);
  for (const int survivor : survivors) ranks.signal(survivor, SIGCONT);
  for (const int survivor : survivors) {
    const std::optional<Report> report = ranks.report(survivor, kPatience);
    REQUIRE(report.has_value());
    CHECK_MESSAGE(report->rank == 3, report->message);
    CHECK_MESSAGE(report->status_code() == code, report->message);
  }
}

TEST_CASE("A1: a rank that ends because of a death has reported it to the others") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Processes ranks(kRanks, summing(transport, 1U << 18U, [](int rank) {
                      if (rank == 2) arm_failpoints("watch.notified:kill@1");
                    }));
    check_blame(ranks, {0, 1}, 2, [&] { ranks.signal(3, SIGKILL); }, Code::kRankDied);
  }
}

TEST_CASE("A1: a rank that ends because of an abort has forwarded it to the others") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Processes ranks(kRanks, [&](int rank, Bootstrap& bootstrap, Line& line) {
      Result<std::unique_ptr<Engine>> engine =
          Engine::start(rank, kRanks, bootstrap, options_for(transport));
      if (!engine) return line.say(Report::of(engine.status()));
      if (rank == 0) arm_failpoints("watch.notified:kill@1");
      if (rank == 3) arm_failpoints("watch.notify:kill@2");  // when only rank 0 knows
      std::thread key([&] {
        line.await_go();
        if (rank == 3) engine.value()->abort("stop");
      });
      std::vector<float> values(1U << 18U);
      line.say(Report::of(sum_for_ever(*engine.value(), values, line)));
      key.join();
    });
    check_blame(ranks, {1, 2}, 0, [&] { ranks.go(); }, Code::kAborted);
  }
}

TEST_CASE("A7: a rank that crashes is named by all others") {
  for (const int number : {SIGSEGV, SIGILL, SIGABRT}) kill_in_the_middle("shm", number, 1);
}

TEST_CASE("A7: whichever rank it is" * doctest::test_suite("nightly")) {
  for (const int number : {SIGSEGV, SIGILL, SIGABRT}) kill_in_the_middle("shm", number, kRanks);
}

TEST_CASE(
    "A8: a rank whose process exits with status 0 in the middle has departed, it has not "
    "succeeded") {
  for (int failing = 0; failing < kRanks; ++failing) {
    Processes ranks(kRanks, [failing](int rank, Bootstrap& bootstrap, Line& line) {
      if (rank != failing) return summing("shm", 1U << 18U)(rank, bootstrap, line);
      Result<std::unique_ptr<Engine>> engine =
          Engine::start(rank, kRanks, bootstrap, options_for("shm"));
      REQUIRE(engine.is_ok());
      std::vector<float> values(1U << 18U);
      line.started();
      ::_exit(0);
    });
    Figures figures;
    check_survivors(ranks, failing, Code::kRankDied, now_ns(), figures);
    check_ends(ranks, failing);
  }
}

// Kills each of so many ranks at its third passage of every failpoint; returns how often one came
// along there.
static int kill_at_failpoints(const std::string& transport, int victims) {
  constexpr int kSums = 12;  // whoever passes somewhere has passed there three times by then
  int reached = 0;
  for (const std::string& name : failpoints()) {
    CAPTURE(name);
    // What neither rank 0 nor rank 1 passes in an allreduce, no rank does.
    const int before = reached;
    for (int failing = 0; failing < victims && (failing < 2 || reached > before); ++failing) {
      const std::string arm = name + ":kill@3";
      Processes ranks(kRanks, summing(
                                  transport, 1U << 19U,
                                  [&](int rank) {
                                    if (rank == failing) arm_failpoints(arm.c_str());
                                  },
                                  kSums));
      if (ranks.has_started(failing, kPatience)) continue;  // so it does not pass there
      const std::optional<Report> first = ranks.report(failing == 0 ? 1 : 0, kPatience);
      REQUIRE(first.has_value());
      ++reached;
      CHECK_MESSAGE(first->status_code() == Code::kRankDied, first->message);
      CHECK_MESSAGE(first->rank == failing, first->message);
      check_ends(ranks, failing);
    }
  }
  return reached;
}

TEST_CASE("A3: a death at any failpoint releases all others and gives no wrong sum") {
  REQUIRE(failpoints().size() >= 20);
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    const int reached = kill_at_failpoints(transport, 2);  // rank 0, and one of the others
    CHECK(reached >= 4 * 2);
    MESSAGE(transport << ": " << reached << " deaths");
  }
}

TEST_CASE("A3: a death at any failpoint, in any rank, does so" * doctest::test_suite("nightly")) {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    const int reached = kill_at_failpoints(transport, kRanks);
    CHECK(reached >= 4 * kRanks);
    MESSAGE(transport << ": " << reached << " deaths");
  }
}

TEST_CASE(
    "A10: a rank that is stopped is named, and its peers are released after the policy's time") {
  const auto stopped = [](int rank, Bootstrap& bootstrap, Line& line) {
    EngineOptions options = options_for("shm");
    options.mesh.stop_warning_s = 0.2;
    options.mesh.stop_abort_s = 1.0;
    Result<std::unique_ptr<Engine>> engine = Engine::start(rank, kRanks, bootstrap, options);
    if (!engine) return line.say(Report::of(engine.status()));
    std::vector<float> values(1U << 20U);
    line.say(Report::of(sum_for_ever(*engine.value(), values, line)));
  };
  for (const int failing : {0, 2}) {
    Processes ranks(kRanks, stopped);
    REQUIRE(ranks.all_started(kPatience));
    Figures figures;
    const std::int64_t since = now_ns();
    ranks.signal(failing, SIGSTOP);
    check_survivors(ranks, failing, Code::kStalled, since, figures);
    CHECK(figures.at(0) >= 900);
    ranks.signal(failing, SIGKILL);
    check_ends(ranks, failing);
  }
}

static void pause_ranks(int pauses) {
  Processes ranks(kRanks, summing("shm", 1U << 18U));
  REQUIRE(ranks.all_started(kPatience));
  std::mt19937 random(11);
  for (int pause = 0; pause < pauses; ++pause) {
    const int rank = static_cast<int>(random() % kRanks);
    ranks.signal(rank, SIGSTOP);
    // The pause is the fault, not a wait for anything.
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + random() % 200));
    ranks.signal(rank, SIGCONT);
  }
  for (int rank = 0; rank < kRanks; ++rank) CHECK_FALSE(ranks.report(rank, 0.01).has_value());
  for (int rank = 0; rank < kRanks; ++rank) ranks.signal(rank, SIGKILL);
}

TEST_CASE("A11: pauses shorter than the policy are no faults, and sums are exact") {
  pause_ranks(kRanks);
}

TEST_CASE("A11: nor are many of them" * doctest::test_suite("nightly")) { pause_ranks(20); }

TEST_CASE("A21: a forked child that ends does its parent's engine no damage") {
  Processes ranks(kRanks, [](int rank, Bootstrap& bootstrap, Line& line) {
    Result<std::unique_ptr<Engine>> engine =
        Engine::start(rank, kRanks, bootstrap, options_for("auto"));
    if (!engine) return line.say(Report::of(engine.status()));
    for (int i = 0; i < 5; ++i) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      ::waitpid(child, nullptr, 0);
    }
    std::vector<float> values(1U << 16U);
    if (rank == 3) {
      line.started();
      return engine.value()->shutdown();
    }
    line.say(Report::of(sum_for_ever(*engine.value(), values, line)));
  });
  for (int rank = 0; rank < 3; ++rank) {
    const std::optional<Report> report = ranks.report(rank, kPatience);
    REQUIRE(report.has_value());
    CHECK_MESSAGE(report->status_code() == Code::kShutdown, report->message);
    CHECK_MESSAGE(report->rank == 3, report->message);
  }
  check_ends(ranks, -1);
}

}  // namespace hvd::test
