// The policy for stopped processes (rows A10, A11 and F8 of the fault matrix), in virtual time: the
// process is real, the clock is the test's.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "transport/watch/stop_detector.h"

using namespace hvd;

namespace {

using std::chrono::milliseconds;

// A process that does nothing, which may be stopped.
class Idler {
 public:
  Idler() : pid_(::fork()) {
    if (pid_ == 0)
      for (;;) ::pause();
    REQUIRE(pid_ > 0);
    pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    REQUIRE(pidfd_);
  }
  ~Idler() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Idler(const Idler&) = delete;
  Idler& operator=(const Idler&) = delete;

  int pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  // Returns when it has happened.
  void stop() { change(SIGSTOP, WUNTRACED); }
  void go_on() { change(SIGCONT, WCONTINUED); }

 private:
  void change(int number, int what) {
    REQUIRE(::kill(pid_, number) == 0);
    REQUIRE(::waitpid(pid_, nullptr, what) == pid_);
  }
  pid_t pid_;
  Fd pidfd_;
};

// Looks every tenth of a second, as the failure detector does.
class Looker {
 public:
  explicit Looker(const StopRules& rules, const Idler& idler) : guard_(rules) {
    guard_.add(1, idler.pid(), idler.pidfd());
    guard_.attend(true);
    look_for(milliseconds(200));  // of a wait that has lasted since the last look
  }
  StopDetector& guard() { return guard_; }
  void stand_still(milliseconds time) { now_ += time; }
  // The time after which it found one stopped too long, if it did.
  std::optional<milliseconds> look_for(milliseconds time) {
    for (milliseconds passed{100}; passed <= time; passed += milliseconds(100)) {
      now_ += milliseconds(100);
      found_ = guard_.check(now_);
      if (found_) return passed;
    }
    return std::nullopt;
  }
  int rank() const { return found_->rank; }
  int pid() const { return found_->pid; }

 private:
  StopDetector guard_;
  Clock::time_point now_{std::chrono::hours(1)};
  std::optional<StopDetector::Stopped> found_;
};

const StopRules kRules{0.5, 5};

}  // namespace

TEST_CASE("stops, virtual time: A10 a stopped process is found after the policy's time") {
  Idler idler;
  Looker looker(kRules, idler);
  CHECK(!looker.look_for(milliseconds(20'000)));  // it runs
  idler.stop();
  CHECK(looker.look_for(milliseconds(20'000)) == milliseconds(5'100));  // from the first look on
  CHECK(looker.rank() == 1);
  CHECK(looker.pid() == idler.pid());
}

TEST_CASE("stops, virtual time: A11 stops shorter than the policy do not add up") {
  Idler idler;
  Looker looker(kRules, idler);
  for (int round = 0; round < 3; ++round) {
    idler.stop();
    CHECK(!looker.look_for(milliseconds(5'000)));
    idler.go_on();
    CHECK(!looker.look_for(milliseconds(100)));
  }
}

TEST_CASE("stops, virtual time: F8 a rank that was stopped itself restarts its count") {
  Idler idler;
  Looker looker(kRules, idler);
  idler.stop();
  CHECK(!looker.look_for(milliseconds(4'900)));
  looker.stand_still(milliseconds(10'000));
  CHECK(looker.look_for(milliseconds(20'000)) == milliseconds(5'200));
}

TEST_CASE("stops, virtual time: only a continuously waiting rank checks the others") {
  Idler idler;
  Looker looker(kRules, idler);
  idler.stop();
  CHECK(!looker.look_for(milliseconds(4'900)));
  looker.guard().attend(false);
  CHECK(!looker.look_for(milliseconds(20'000)));
  looker.guard().attend(true);
  CHECK(looker.look_for(milliseconds(20'000)) == milliseconds(5'200));
}

TEST_CASE("stops, virtual time: never if disabled, nor for a rank that has left") {
  Idler idler;
  Looker patient({0.5, 0}, idler), looker(kRules, idler);
  idler.stop();
  CHECK(!patient.look_for(milliseconds(3'600'000)));
  looker.guard().forget(1);
  CHECK(!looker.look_for(milliseconds(20'000)));
}
