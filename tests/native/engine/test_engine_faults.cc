// Whatever happens to one rank, every wait of every rank ends, with the same cause, and the process
// lives on.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <random>

#include "base/failpoint.h"
#include "engines.h"

namespace hvd::test {
namespace {

// One step of work: asynchronous and synchronous, small and large, every few steps another kind.
// The first failure of this rank, or ok.
Status step(Engine& engine, int rank, int number) {
  std::vector<float> small(16, static_cast<float>(rank));
  std::vector<float> large(20000, static_cast<float>(rank));
  const auto tensor = [](const std::string& name, std::vector<float>& values) {
    return std::pair(request_for<float>(name, values.size()),
                     std::vector<Operand>{in_place(values)});
  };
  std::vector<std::int64_t> handles;
  Status first;
  const auto ask = [&](const Request& request, const std::vector<Operand>& operands,
                       Next next = Next::kContinues) {
    const auto handle = engine.enqueue(request, operands, next);
    if (handle.is_ok()) {
      handles.push_back(handle.value());
    } else if (first) {
      first = handle.status();
      engine.abort(first.message);  // as Python does with an exception of one rank
    }
  };
  const auto [a, a_operands] = tensor("a", small);
  const auto [b, b_operands] = tensor("b", large);
  ask(a, a_operands);
  ask(b, b_operands);
  Request gather = request_for<float>("g", 16, Kind::kAllgather);
  if (number % 2 == 1) ask(gather, {{small.data(), nullptr, 16}});
  ask(plain_request(Kind::kBarrier, "barrier"), {}, Next::kWaits);
  for (auto handle = handles.rbegin(); handle != handles.rend(); ++handle) {
    const Outcome outcome = outcome_of(engine, *handle);
    if (first && !outcome.status) first = outcome.status;
  }
  return first;
}

// Steps until an operation fails, on every rank; returns the error of each rank.
std::vector<Status> run_until_failure(Engines& engines, int steps) {
  std::vector<Status> causes(engines.size());
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Status& cause = causes[static_cast<std::size_t>(rank)];
    for (int i = 0; i < steps && cause; ++i) cause = step(engine, rank, i);
    // For ever.
    if (!cause) CHECK(step(engine, rank, 0).code != Code::kOk);
  });
  return causes;
}

void check_same_cause(const std::vector<Status>& causes, Code code) {
  for (const Status& cause : causes) {
    CHECK(cause.code == code);
    CHECK(cause.message == causes.front().message);
    CHECK(cause.rank == causes.front().rank);
  }
}

}  // namespace

TEST_CASE(
    "engine: A20: any exception, in any place: all ranks end with the same error, the process "
    "lives") {
  for (const char* place : {"engine.message", "engine.before_letters", "engine.after_letters",
                            "engine.before_operation", "engine.after_operation"}) {
    for (const int passage : {1, 2, 5, 11}) {
      for (const char* small : {"0", "4194304"}) {
        CAPTURE(place);
        CAPTURE(passage);
        Engines engines = engines_of(3, {{"caller_runs_bytes", small}});
        const Armed armed(std::string(place) + ":throw@" + std::to_string(passage));
        const auto causes = run_until_failure(engines, 100);
        check_same_cause(causes, Code::kInternal);
        CHECK(causes.front().rank >= 0);
      }
    }
  }
}

TEST_CASE("engine: A15: the n-th allocation fails: an error on every rank") {
  for (int passage = 1; passage <= 40; ++passage) {
    CAPTURE(passage);
    Engines engines = engines_of(2);
    const Armed armed("engine.alloc:fail@" + std::to_string(passage));
    for (const Status& cause : run_until_failure(engines, 100)) {
      const bool received = cause.code == Code::kInternal || cause.code == Code::kUnavailable ||
                            cause.code == Code::kAborted;
      CHECK(received);
    }
  }
}

TEST_CASE("engine: A9: an abort at any moment ends every wait with the same cause") {
  for (int round = 0; round < 30; ++round) {
    const int size = 2 + round % 3;
    Engines engines = engines_of(size, {{"slot_bytes", "1024"}});
    const int victim = round % size;
    std::atomic<bool> over{false};
    std::thread killer([&] {
      // At a moment that the work decides, not the clock.
      const auto& ops = engines[0]->counters().ops;
      while (ops.load() < round * 3 && !over.load()) std::this_thread::yield();
      engines[static_cast<std::size_t>(victim)]->abort("ValueError: boom");
    });
    const auto causes = run_until_failure(engines, 100000);
    over.store(true);
    killer.join();
    check_same_cause(causes, Code::kAborted);
    CHECK(causes.front().rank == victim);
  }
}

TEST_CASE("engine: 200 engines, one after the other") {
  for (int round = 0; round < 200; ++round) {
    Engines engines = engines_of(2);
    on_every_rank(engines, [&](Engine& engine, int) { check_usable(engine, "x"); });
  }
}

TEST_CASE("engine: callers inside an engine return before it is destroyed") {
  for (int round = 0; round < 30; ++round) {
    Engines engines = engines_of(2);
    run_ranks(6, [&](int who) {
      Engine& engine = *engines[static_cast<std::size_t>(who % 2)];
      if (who < 2) {
        for (int i = 0; i < round; ++i) {
          if (!run(engine, plain_request(Kind::kBarrier, "both")).status) break;
        }
        engine.shutdown();
        return;
      }
      const std::string name = "thread " + std::to_string(who / 2);
      for (;;) {
        std::vector<float> values(8);
        const auto handle =
            engine.enqueue(request_for<float>(name, 8), {in_place(values)}, Next::kWaits);
        REQUIRE(handle.status().message == "");
        const Outcome outcome = outcome_of(engine, handle.value());
        engine.pending();
        if (outcome.status) continue;
        CHECK(outcome.status.code == Code::kShutdown);
        return;
      }
    });
  }
}

TEST_CASE(
    "engine: A21: in a forked child the engine refuses calls and does not disturb the parent") {
  Engines engines = engines_of(2);
  run_ranks(2, [&](int rank) { check_usable(*engines[static_cast<std::size_t>(rank)], "before"); });
  for (int round = 0; round < 5; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      Engine& mine = *engines[0];
      std::vector<float> values(4);
      const auto handle = mine.enqueue(request_for<float>("x", 4), {in_place(values)});
      const bool refused = handle.status().code == Code::kShutdown &&
                           mine.ended().code == Code::kShutdown && mine.pending().empty();
      mine.abort("from the child");
      mine.shutdown();
      engines.clear();
      ::_exit(refused ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    run_ranks(2,
              [&](int rank) { check_usable(*engines[static_cast<std::size_t>(rank)], "after"); });
  }
  on_every_rank(engines, [](Engine& engine, int) { check_usable(engine, "end"); });
}

}  // namespace hvd::test
