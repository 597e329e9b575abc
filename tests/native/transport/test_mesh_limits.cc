// Row A16: whatever limit a process meets while it connects, it gets a Status that names it.
#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/failpoint.h"
#include "base/thread.h"
#include "processes.h"
#include "ranks.h"
#include "transport/mesh/mesh.h"

using namespace hvd;

namespace {

int open_descriptors() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count - 3;  // ".", ".." and the folder itself
}

// No number below the highest one is free, so that a limit leaves exactly what it says.
void fill_gaps(int highest) {
  int fd = 0;
  while ((fd = ::dup(STDERR_FILENO)) >= 0 && fd < highest) {
  }
  if (fd > highest) ::close(fd);
}

int highest_descriptor() {
  int highest = 0;
  for (int fd = 0; fd < 4096; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) highest = fd;
  return highest;
}

// A rendezvous that ends for all when one of them cannot come any more, as a bootstrap's does.
class InMemoryRendezvous {
 public:
  Result<std::vector<std::string>> allgather(int rank, const std::string& mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::size_t round = round_;
    parts_[static_cast<std::size_t>(rank)] = mine;
    if (++arrived_ == parts_.size()) {
      result_ = parts_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || cancelled_; });
    if (round_ == round) return Status::make(Code::kUnavailable, "the other rank gave up", "test");
    return result_;
  }
  void cancel() {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> parts_{2}, result_;
  std::size_t arrived_ = 0, round_ = 0;
  bool cancelled_ = false;
};

class Invited : public Bootstrap {
 public:
  Invited(InMemoryRendezvous& rendezvous, int rank) : rendezvous_(rendezvous), rank_(rank) {}
  Result<std::vector<std::string>> allgather(const std::string& mine) override {
    return rendezvous_.allgather(rank_, mine);
  }

 private:
  InMemoryRendezvous& rendezvous_;
  int rank_;
};

enum End { kBoth = 0, kNone = 1, kOne = 2, kNoReason, kNoLimit };

// Two ranks as threads of this process, which has room for k more descriptors.
int connect_with(rlim_t more, const std::string& transport, double start_timeout_s = 1) {
  const int highest = highest_descriptor();
  fill_gaps(highest);
  const rlim_t most = static_cast<rlim_t>(highest) + 1 + more;
  const rlimit limit{most, most};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return kNoLimit;
  std::atomic<int> good{0}, unnamed{0};
  InMemoryRendezvous rendezvous;
  test::run_ranks(
      2,
      [&](int rank) {
        Invited connection(rendezvous, rank);
        MeshOptions options;
        options.transport = transport;
        options.slot_bytes = 4096;
        options.heap_bytes = std::size_t{1} << 20U;
        options.start_timeout_s = start_timeout_s;
        auto mesh = connect_mesh(rank, 2, connection, options);
        if (mesh.is_ok()) {
          ++good;
          mesh.value()->leave();
          return;
        }
        rendezvous.cancel();
        if (mesh.status().message.empty() || mesh.status().code == Code::kOk) ++unnamed;
      },
      40);
  if (unnamed != 0) return kNoReason;
  return good == 2 ? kBoth : good == 0 ? kNone : kOne;
}

int in_a_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("limits: A16 any number of descriptors gives two ranks or a reason, and no crash" *
          doctest::skip(test::kSanitized)) {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    int connected = 0, refused = 0;
    for (rlim_t more = 0; more <= 64; ++more) {
      CAPTURE(more);
      const int end = in_a_child([&] { return connect_with(more, transport); });
      CHECK(end < kNoReason);
      connected += end == kBoth;
      refused += end == kNone;
    }
    CHECK(connected > 0);
    CHECK(refused > 0);
    CHECK(in_a_child([&] { return connect_with(64, transport, 30); }) == kBoth);
  }
}

TEST_CASE("limits: A16 no thread to be had is a Status that names the limit" *
          doctest::skip(test::kSanitized)) {
  const int end = in_a_child([] {
    std::vector<std::thread> threads(200);  // more than the stacks that earlier threads left
    std::atomic<bool> stop{false};
    const rlimit limit{0, 0};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    Status status;
    for (std::thread& thread : threads) {
      status = start_thread(
          thread,
          [&stop] {
            while (!stop.load()) std::this_thread::yield();
          },
          [](const char*) {});
      if (!status) break;
    }
    stop = true;
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    return status.message.find("RLIMIT_NPROC") != std::string::npos ? 0 : 2;
  });
  CHECK(end == 0);
}

TEST_CASE("limits: a step of connecting that fails is a Status on that rank, and leaves nothing") {
  struct Disarm {
    ~Disarm() { arm_failpoints(""); }
  } const disarm;
  const int before = open_descriptors();
  for (const std::string step : {"agree", "plan", "meet", "share", "watch", "links"}) {
    CAPTURE(step);
    arm_failpoints(("connect." + step + ":fail").c_str());
    InMemoryRendezvous rendezvous;
    test::run_ranks(2, [&](int rank) {
      Invited connection(rendezvous, rank);
      MeshOptions options;
      options.heap_bytes = std::size_t{1} << 20U;
      const auto mesh = connect_mesh(rank, 2, connection, options);
      CHECK_FALSE(mesh.is_ok());
      CHECK(mesh.status().code == Code::kInternal);
    });
    CHECK(open_descriptors() == before);
  }
}
