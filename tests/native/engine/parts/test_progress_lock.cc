// The progress lock: one thread at a time, and nothing that is asked for is ever forgotten.
#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/progress_lock.h"
#include "ranks.h"

namespace hvd::test {
namespace {

constexpr std::chrono::nanoseconds kForEver = std::chrono::hours(1);

// What the progress engine is to its callers: jobs are put in a box, whoever has the progress lock
// does them.
struct Shop {
  struct Job {
    bool large = false;
    Word done{0};
  };

  DoorbellMemory memory;
  Doorbell doorbell{memory};
  ProgressLock progress_lock{doorbell};
  std::mutex mutex;
  std::vector<Job*> box;
  std::vector<Job*> agenda;  // progress-lock owner only, as is all that follows
  bool ended = false;
  long steps = 0;  // not atomic: ThreadSanitizer sees a second holder
  std::atomic<bool> stop{false};

  void put(Job& job, bool ring) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      box.push_back(&job);
    }
    if (ring) doorbell.ring();
  }
  bool look() {
    ++steps;
    const std::lock_guard<std::mutex> lock(mutex);
    agenda.insert(agenda.end(), box.begin(), box.end());
    const bool any = !box.empty();
    box.clear();
    return any;
  }
  void work() {
    ++steps;
    Job* const job = agenda.front();
    agenda.erase(agenda.begin());
    job->done.store(1);
    futex_wake_all(job->done);
  }
  void background() {
    progress_lock.acquire();
    while (!stop.load()) {
      const std::uint32_t seen = doorbell.heard();
      const bool news = look();
      if (!agenda.empty()) {
        work();
      } else if (!news && !stop.load()) {
        progress_lock.park(seen, kForEver);
      }
    }
  }
  void call(Job& job) {
    put(job, false);
    if (progress_lock.try_acquire()) {
      run_for(job);
      hand_back();
    } else {
      doorbell.ring();
    }
    while (job.done.load() == 0) futex_wait(job.done, 0, kForEver);
  }
  void run_for(Job& job) {
    while (job.done.load() == 0) {
      const std::uint32_t seen = doorbell.heard();
      const bool news = look();
      if (!agenda.empty()) {
        if (agenda.front()->large) return;
        work();
      } else if (!news) {
        progress_lock.sleep(seen, std::chrono::milliseconds(1));
        return;  // as if its time were over
      }
    }
  }
  void hand_back() {
    for (;;) {
      const std::uint32_t seen = doorbell.heard();
      if (look()) continue;
      if (!agenda.empty()) return progress_lock.hand_off();
      if (progress_lock.release_if_quiet(seen)) return;
    }
  }
};

}  // namespace

TEST_CASE(
    "progress lock: one holder; no ring during its last check is lost; remaining work is passed "
    "on") {
  DoorbellMemory memory;
  Doorbell doorbell(memory);
  ProgressLock progress_lock(doorbell);
  REQUIRE(progress_lock.try_acquire());
  CHECK_FALSE(progress_lock.try_acquire());
  const std::uint32_t seen = doorbell.heard();
  doorbell.ring();
  CHECK_FALSE(progress_lock.release_if_quiet(seen));
  CHECK_FALSE(progress_lock.try_acquire());  // still held
  CHECK(progress_lock.release_if_quiet(doorbell.heard()));
  CHECK(memory.sleeps.load() != 0);  // the background thread is to be woken by the next ring
  REQUIRE(progress_lock.try_acquire());
  CHECK(memory.sleeps.load() == 0);  // a peer makes no system call for an awake rank
  progress_lock.hand_off();
  CHECK(progress_lock.try_acquire());
}

TEST_CASE("progress lock: callers do not wake a parked background thread") {
  Shop shop;
  run_ranks(2, [&](int who) {
    if (who == 1) return shop.background();
    for (int i = 0; i < 1000; ++i) {
      Shop::Job job;
      shop.call(job);
    }
    shop.stop.store(true);
    shop.doorbell.ring();
  });
  CHECK(shop.agenda.empty());
  CHECK(shop.box.empty());
}

TEST_CASE(
    "progress lock: many threads that call and leave work, small and large: all of it is done") {
  Shop shop;
  const int callers = 6;
  std::atomic<int> left{callers};
  run_ranks(callers + 1, [&](int who) {
    if (who == callers) return shop.background();
    std::mt19937 random(static_cast<unsigned>(who));
    for (int i = 0; i < 2000; ++i) {
      Shop::Job call;
      Shop::Job left_behind;
      call.large = random() % 8 == 0;
      left_behind.large = random() % 2 == 0;
      const bool asynchronous = random() % 3 == 0;
      if (asynchronous) shop.put(left_behind, true);
      shop.call(call);
      while (asynchronous && left_behind.done.load() == 0) {
        futex_wait(left_behind.done, 0, kForEver);
      }
    }
    if (left.fetch_sub(1) == 1) {
      shop.stop.store(true);
      shop.doorbell.ring();
    }
  });
  CHECK(shop.agenda.empty());
  CHECK(shop.box.empty());
}

TEST_CASE("rundown guard: closes when the last caller has left, and stays closed") {
  RundownGuard guard;
  std::atomic<bool> inside{false};
  std::atomic<bool> out{false};
  run_ranks(2, [&](int who) {
    if (who == 0) {
      {
        const RundownScope scope(guard);
        REQUIRE(static_cast<bool>(scope));
        inside.store(true);
        // The other one is closing the guard: nobody else gets in, and it does not come back.
        while (guard.enter()) {
          guard.leave();
          std::this_thread::yield();
        }
        out.store(true);
      }
    } else {
      while (!inside.load()) std::this_thread::yield();
      guard.close_and_wait();
      CHECK(out.load());
    }
  });
  CHECK_FALSE(guard.enter());
}

}  // namespace hvd::test
