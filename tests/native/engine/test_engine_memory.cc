// A15: every single request for memory of a thread of the core's fails once, and all after one of
// them: the process lives, every wait ends. operator new is replaced for this whole binary; it
// fails only while a test wants it to.
#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/parts/meeting.h"
#include "engines.h"

namespace hvd::test {
namespace {

std::atomic<long> countdown{-1};  // requests until one fails; negative: none does
std::atomic<bool> for_good{false};
std::atomic<long> failed{0};
std::atomic<const char*> victim{"hvd-progress"};  // the name of the threads that have none
thread_local long asked = 0;                      // requests of this thread

bool on_victim() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
         std::strcmp(name, victim.load()) == 0;
}

bool shall_fail() {
  if (countdown.load(std::memory_order_relaxed) < 0 || !on_victim()) return false;
  const long left = countdown.fetch_sub(1);
  if (left > 0) return false;
  if (for_good.load()) countdown.store(0);
  failed.fetch_add(1);
  return true;
}

}  // namespace
}  // namespace hvd::test

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++hvd::test::asked;
  if (hvd::test::shall_fail()) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;  // NOLINT
  throw std::bad_alloc();
}
// A library's own would not be met by the operator delete below.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (hvd::test::shall_fail()) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);  // NOLINT
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }  // NOLINT
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}  // NOLINT

namespace hvd::test {
namespace {

// Steps of several kinds until one fails; the first failure, or ok.
Status work(Engine& engine, int steps) {
  for (int i = 0; i < steps; ++i) {
    std::vector<float> values(50, 1.0F);
    std::vector<std::int64_t> handles;
    handles.push_back(start_sum(engine, "a", values));
    std::vector<float> more(20, 1.0F);
    const auto gather =
        engine.enqueue(request_for<float>("g", 20, Kind::kAllgather), {{more.data(), nullptr, 20}});
    handles.push_back(gather.value());
    handles.push_back(engine.enqueue(plain_request(Kind::kBarrier), {}).value());
    Status first;
    for (const std::int64_t handle : handles) {
      const Outcome outcome = outcome_of(engine, handle);
      if (first && !outcome.status) first = outcome.status;
    }
    if (!first) return first;
  }
  return {};
}

// All work is the background threads' own.
Engines local_engines() { return engines_of(2, {{"caller_runs_bytes", "0"}}); }

// With a thread that looks after the peers.
Engines engines_over_tcp() {
  return connected_engines(
      2, [](int /*rank*/) { return Table{{"transport", "tcp"}, {"caller_runs_bytes", "0"}}; });
}

long failures_when(long nth, bool from_there_on, const std::function<Engines()>& made) {
  Engines engines = made();
  failed.store(0);
  for_good.store(from_there_on);
  countdown.store(nth);
  std::vector<Status> causes(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Status& cause = causes[static_cast<std::size_t>(rank)];
    cause = work(engine, 4);
    if (!cause) countdown.store(-1);
  });
  countdown.store(-1);
  for (const Status& cause : causes) {  // ok: it was later, while leaving
    const bool received = cause.is_ok() || cause.code == Code::kInternal ||
                          cause.code == Code::kUnavailable || cause.code == Code::kShutdown;
    CHECK(received);
  }
  return failed.load();
}

}  // namespace

TEST_CASE("engine: A15: any single allocation of the coordinator may fail") {
  long nth = 0;
  while (failures_when(nth, false, local_engines) > 0) ++nth;
  CHECK(nth > 100);  // there were that many, and each of them failed once
}

TEST_CASE("engine: A15: all allocations may fail from any one on") {
  for (long nth = 0; failures_when(nth, true, local_engines) > 0; nth += 7) {
  }
}

TEST_CASE("engine: a persistent request allocates no memory") {
  for (const int size : {1, 2}) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int) {
      const Request request = request_for<float>("x", 1024);
      const auto persistent = engine.persistent(request);
      std::vector<float> values(1024, 1.0F);
      const std::vector<Operand> operands{in_place(values)};
      long requests = -1;  // of the last run that met the others
      const auto attempt = [&] {
        const long before = asked;
        const bool met = engine.run(*persistent, operands);
        if (met) requests = asked - before;
        if (!met) CHECK(run(engine, request, operands).status.message == "");
        return met;
      };
      CHECK(meet(engine, attempt));  // what is kept is found out
      CHECK(meet(engine, attempt));
      CHECK(requests == 0);
    });
  }
}

namespace {

// Of the failure detector's thread; how many requests there were.
long fail_each_of_the_watch(bool from_there_on, long step) {
  victim.store("hvd-watch");
  long nth = 0;
  while (failures_when(nth, from_there_on, engines_over_tcp) > 0) nth += step;
  victim.store("hvd-progress");
  return nth;
}

}  // namespace

TEST_CASE("engine: A15 A20: a monitor without memory aborts the engine") {
  CHECK(fail_each_of_the_watch(true, 8) > 0);
}

TEST_CASE("engine: A15 A20: any single allocation of the monitor may fail" *
          doctest::test_suite("nightly")) {
  CHECK(fail_each_of_the_watch(false, 1) > 0);
  CHECK(fail_each_of_the_watch(true, 1) > 0);
}

TEST_CASE("engine: A15: an engine without memory for its goodbye still ends") {
  Engines engines = engines_of(2);
  run_ranks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    check_usable(engine, "before");
    if (rank == 0) {
      while (engine.ended().is_ok()) std::this_thread::yield();
      CHECK(engine.ended().code == Code::kShutdown);
      CHECK(engine.ended().rank == 1);
      return;
    }
    const Armed armed("engine.alloc:fail");
    engine.shutdown();
    CHECK_FALSE(engine.ended().is_ok());
  });
}

}  // namespace hvd::test
