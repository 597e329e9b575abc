// Two ranks as processes: their arenas are opened by IPC handles. Each process is this program
// again, for one test case that is skipped otherwise.
#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "cuda/group_init.h"
#include "cuda/ring/ring_cases.h"
#include "transport/bootstrap/bootstrap.h"

extern char** environ;

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

constexpr int kSize = 2;
constexpr double kPatience = 60;  // seconds

// Between two processes, over a pair of sockets.
class PairBootstrap : public Bootstrap {
 public:
  PairBootstrap(int rank, int fd) : rank_(rank), fd_(fd) {}

  Result<std::vector<std::string>> allgather(const std::string& mine) override {
    const std::size_t length = mine.size();
    REQUIRE(::write(fd_, &length, sizeof length) == sizeof length);
    REQUIRE(::write(fd_, mine.data(), length) == static_cast<ssize_t>(length));
    std::size_t due = 0;
    take(&due, sizeof due);
    std::string theirs(due, '\0');
    take(theirs.data(), due);
    std::vector<std::string> all(kSize);
    all[static_cast<std::size_t>(rank_)] = mine;
    all[static_cast<std::size_t>(1 - rank_)] = theirs;
    return all;
  }

 private:
  void take(void* to, std::size_t bytes) const {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t got = ::read(fd_, static_cast<char*>(to) + done, bytes - done);
      REQUIRE(got > 0);
      done += static_cast<std::size_t>(got);
    }
  }

  int rank_, fd_;
};

pid_t start(int rank, int fd, const char* part) {
  const std::string told = std::to_string(rank) + " " + std::to_string(fd);
  ::setenv("HVD_TEST_RING_PROCESS", told.c_str(), 1);
  const std::string which = std::string("--test-case=") + part;
  std::array<const char*, 5> line{"ring", "--no-skip=true", "--no-intro=true", which.c_str(),
                                  nullptr};
  pid_t pid = -1;
  REQUIRE(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(line.data()),
                        environ) == 0);
  ::unsetenv("HVD_TEST_RING_PROCESS");
  return pid;
}

int status_of(pid_t pid) {
  const Deadline deadline = Deadline::after_seconds(kPatience);
  int status = -1;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (deadline.expired()) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return status;
}

// The wait statuses of both.
std::array<int, kSize> run_pair(const char* part) {
  std::array<int, kSize> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  std::array<pid_t, kSize> pids{};
  for (int rank = 0; rank < kSize; ++rank)
    pids[static_cast<std::size_t>(rank)] = start(rank, ends[static_cast<std::size_t>(rank)], part);
  for (const int end : ends) ::close(end);
  return {status_of(pids[0]), status_of(pids[1])};
}

// What such a process does; nothing in the program that a user starts.
void as_process(const std::function<void(Rank&, Mesh&)>& body) {
  const char* const told = std::getenv("HVD_TEST_RING_PROCESS");
  if (told == nullptr) return;
  char* rest = nullptr;
  const auto number = static_cast<int>(std::strtol(told, &rest, 10));
  PairBootstrap bootstrap(number, static_cast<int>(std::strtol(rest, nullptr, 10)));
  auto mesh = connect_mesh(number, kSize, bootstrap, {});
  REQUIRE(mesh.status().message == "");
  RingSetup setup;
  setup.processes = true;
  {
    Rank rank(setup, number, *mesh.value());
    body(rank, *mesh.value());
  }
  mesh.value()->leave();
  check_nothing_left();
}

void wait_until_idle(Rank& rank) {
  const Deadline deadline = Deadline::after_seconds(kPatience);
  while (!rank.device().idle().value()) {
    REQUIRE(!deadline.expired());
    std::this_thread::yield();
  }
}

}  // namespace

TEST_CASE("ring in a process: every kind of operation" * doctest::skip()) {
  as_process([](Rank& rank, Mesh& /*mesh*/) {
    const Group group = everybody(kSize, rank.number());
    const auto ring = rank.ring(group);
    CHECK(counts().mappings == 1);
    const Reduction sum{Dtype::kFloat16, ReduceOp::kSum, {}};
    for (std::uint64_t turn = 0; turn < 10; ++turn) {
      check_allreduce(rank, *ring, group, {sum, {turn * 500 + 1, 7}, turn % 2 == 0});
      check_broadcast(rank, *ring, group, static_cast<int>(turn % 2), {5000}, false);
      check_allgather(rank, *ring, group, {turn * 100}, false);
      check_alltoall(rank, *ring, group, turn);
      check_reducescatter(rank, *ring, group, sum, {{turn, 900}});
    }
    REQUIRE(ring->finalize().message == "");
    wait_until_idle(rank);
  });
}

TEST_CASE("ring in a process: killed with the peer's arena open" * doctest::skip()) {
  as_process([](Rank& rank, Mesh& mesh) {
    const Group group = everybody(kSize, rank.number());
    const auto ring = rank.ring(group);
    const Reduction sum{Dtype::kFloat32, ReduceOp::kSum, {}};
    check_allreduce(rank, *ring, group, {sum, {5000}, true});
    char word = 0;
    REQUIRE(
        rank.cpu().broadcast(group, {{&word, &word, 1}}, 0).is_ok());  // the root waits for none
    if (rank.number() == 1) ::raise(SIGKILL);
    const OnDevice tensor(rank, Bytes(20000));
    REQUIRE(ring->allreduce(group, {{tensor.data(), tensor.data(), 5000}}, sum).is_ok());
    const Deadline deadline = Deadline::after_seconds(kPatience);
    while (!mesh.abort().raised()) {
      REQUIRE(!deadline.expired());
      std::this_thread::yield();
    }
    CHECK(mesh.abort().cause().code == Code::kRankDied);
    CHECK(!rank.device().idle().value());
    while (!rank.device().idle().value()) {
      REQUIRE(ring->abort_waits().message == "");
      REQUIRE(!deadline.expired());
    }
  });
}

TEST_CASE("ring in a process: cannot open the peer's arena" * doctest::skip()) {
  as_process([](Rank& rank, Mesh& /*mesh*/) {
    if (rank.number() == 0) fake_cuda_slow("cuIpcCloseMemHandle", 100);  // longer than the other
    if (rank.number() == 1) fake_cuda_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_INVALID_VALUE);
    const Status status =
        make_ring_backend(rank.bootstrap(everybody(kSize, rank.number()))).status();
    CHECK(status.message.find("(the memory is rank 0's)") != std::string::npos);
    CHECK(counts().mappings == 0);
    CHECK(fake_cuda_freed_under_others() == 0);
  });
}

TEST_CASE("ring in a process: is not taken after its trial" * doctest::skip()) {
  as_process([](Rank& rank, Mesh& /*mesh*/) {
    if (rank.number() == 0) fake_cuda_slow("cuIpcCloseMemHandle", 100);  // longer than the other
    if (rank.number() == 1) fake_cuda_fail("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_FAILED);
    const Group group = everybody(kSize, rank.number());
    BootstrapGroup bootstrap = rank.bootstrap(group);
    bootstrap.self_test_seconds = 3;  // which the other rank waits in vain
    const Status status = agree_on({BackendKind::kRing}, bootstrap).status();
    CHECK(status.rank == 1);
    CHECK(status.message.find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos);
    CHECK(counts().mappings == 0);
    CHECK(fake_cuda_freed_under_others() == 0);
  });
}

TEST_CASE("ring: two processes, every kind of operation, nothing left in either") {
  const std::array<int, kSize> ends = run_pair("ring in a process: every kind of operation");
  CHECK(ends[0] == 0);
  CHECK(ends[1] == 0);
}

TEST_CASE("ring: a process is killed; its peer's device is released, nothing is left") {
  const std::array<int, kSize> ends =
      run_pair("ring in a process: killed with the peer's arena open");
  CHECK(ends[0] == 0);
  CHECK(WIFSIGNALED(ends[1]));
}

TEST_CASE("ring: no process gives memory back that its peer has mapped, where there is no ring") {
  const std::array<int, kSize> unopened =
      run_pair("ring in a process: cannot open the peer's arena");
  CHECK(unopened[0] == 0);
  CHECK(unopened[1] == 0);
  const std::array<int, kSize> untaken =
      run_pair("ring in a process: is not taken after its trial");
  CHECK(untaken[0] == 0);
  CHECK(untaken[1] == 0);
}

}  // namespace hvd::cuda::test
