// How requests end: `done` is called exactly once, whichever way.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <thread>

#include "framework.h"

namespace hvd::test {
namespace {

// A request that starts the next one within its own `done`, under the same name, up to a limit;
// failing requests have no limit.
struct Chain {
  hvd_engine* engine = nullptr;
  int left = 0;
  std::atomic<int> well{0}, failed{0};
  std::vector<float> values = std::vector<float>(1, 1.0F);
  int depth = 0, deepest = 0;
  Word ended{0};

  std::string ask() {
    std::vector<std::int64_t> shape{1};
    const DLTensor tensor = view(values, shape);
    hvd_request request{};
    request.struct_size = sizeof(request);
    request.kind = HVD_ALLREDUCE;
    request.name = "chain";
    request.op = HVD_MAX;
    request.prescale = request.postscale = 1;
    request.count = 1;
    request.inputs = request.outputs = &tensor;
    request.done = &Chain::done;
    request.context = this;
    return asked(engine, request);
  }
  void wait() {
    while (ended.load() == 0) futex_wait(ended, 0, std::chrono::hours(1));
  }

  static void done(void* context, const hvd_outcome* outcome) {
    auto& self = *static_cast<Chain*>(context);
    self.deepest = std::max(self.deepest, ++self.depth);
    ++(outcome->code == HVD_OK ? self.well : self.failed);
    const bool again = --self.left > 0;
    if (again) CHECK(self.ask() == "");
    --self.depth;
    if (again) return;
    self.ended.store(1);  // the last word: who waits may destroy the chain now
    futex_wake_all(self.ended);
  }
};

// One more count. By way of the process's one current engine: not for ranks that are threads.
hvd_engine* kept(hvd_engine* engine) {
  core().make_current(engine);
  hvd_engine* const counted = core().current();
  core().make_current(nullptr);
  return counted;
}

}  // namespace

TEST_CASE("table: a mismatch is reported to all ranks, which continue") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    std::vector<float> values(static_cast<std::size_t>(rank + 1));
    Told told;
    REQUIRE(ask_sum(engine, "x", values, told) == "");
    told.wait();
    CHECK(told.code == HVD_MISMATCH);
    CHECK(told.text.find("Mismatched") != std::string::npos);
    CHECK(told.outputs.empty());
    check_usable(engine, "x");
    CHECK(told.calls() == 1);
  });
}

TEST_CASE("table: an abort ends waiting operations on both ranks, and all later ones") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    check_usable(engine, "first");
    std::vector<float> values(2);
    Told told, later;
    REQUIRE(ask_sum(engine, rank == 0 ? "mine" : "other", values, told) == "");
    if (rank == 1) core().abort(engine, "the reason");
    told.wait();
    CHECK(told.code == HVD_ABORTED);
    CHECK(told.rank == 1);
    CHECK(told.text == "Rank 1 failed: the reason");
    REQUIRE(ask_sum(engine, "later", values, later) == "");
    CHECK(later.calls() == 1);
    CHECK(later.code == HVD_ABORTED);
    CHECK(later.text == told.text);
    CHECK(told.calls() == 1);
  });
}

TEST_CASE("table: a shutdown ends waiting and later requests") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    std::vector<float> values(2);
    std::deque<Told> told(3);
    if (rank == 0) {
      for (Told& its : told) {
        REQUIRE(ask_sum(engine, ("x" + std::to_string(&its - &told[0])).c_str(), values, its) ==
                "");
      }
    }
    core().shutdown(engine);
    for (Told& its : told) {
      if (rank == 1) REQUIRE(ask_sum(engine, "y", values, its) == "");
      CHECK(its.calls() == 1);
      CHECK(its.code == HVD_SHUTDOWN);
      CHECK(its.text.find("Horovod has been shut down") != std::string::npos);
    }
  });
}

TEST_CASE("table: done may request the same name again 2000 times, and is never nested") {
  on_ranks(2, [](hvd_engine* engine, int) {
    Chain chain;
    chain.engine = engine;
    chain.left = 2'000;
    REQUIRE(chain.ask() == "");
    chain.wait();
    CHECK(chain.well == 2'000);
    CHECK(chain.failed == 0);
    CHECK(chain.deepest == 1);
    CHECK(engine->engine->pending().empty());
  });
}

TEST_CASE("table: done that repeats requests to an ended engine does not recurse") {
  on_ranks(1, [](hvd_engine* engine, int) {
    core().shutdown(engine);
    Chain chain;
    chain.engine = engine;
    chain.left = 100'000;
    REQUIRE(chain.ask() == "");
    CHECK(chain.failed == 100'000);
    CHECK(chain.deepest == 1);
  });
}

TEST_CASE("table: a result lives after done until it is released, and is counted") {
  on_ranks(2, [](hvd_engine* engine, int) {
    Told told;
    std::vector<float> values(5, 2.0F);
    REQUIRE(ask(engine, HVD_ALLGATHER, "g", values, {5}, told) == "");
    told.check();
    hvd_buffer* const owner = told.outputs[0].owner;
    core().keep(owner);
    core().drop(owner);
    CHECK(values_of<float>(told.outputs[0]) == std::vector<float>(10, 2.0F));
    Told careless;
    careless.keeps = false;
    REQUIRE(ask(engine, HVD_ALLGATHER, "g", values, {5}, careless) == "");
    careless.check();
  });
}

TEST_CASE("table: the last reference may be given back within done") {
  std::vector<hvd_engine*> engines;
  const EngineOptions options = options_of({});
  for (auto& mesh : make_local_meshes(2, options.mesh)) {
    engines.push_back(new hvd_engine{std::make_shared<Engine>(std::move(mesh), options)});
  }
  std::array<std::weak_ptr<Engine>, 2> alive{engines[0]->engine, engines[1]->engine};
  const std::array<hvd_engine*, 2> asking{kept(engines[0]), kept(engines[1])};
  std::array<Told, 2> told;
  run_ranks(2, [&](int rank) {
    const auto mine = static_cast<std::size_t>(rank);
    Word released{0};
    told[mine].meanwhile = [&] {
      while (released.load() == 0) futex_wait(released, 0, std::chrono::hours(1));
      core().release(engines[mine]);
    };
    std::vector<float> values(1 << 15);  // what is small may be told before ask_sum() returns
    REQUIRE(ask_sum(asking[mine], "x", values, told[mine]) == "");
    core().release(asking[mine]);
    released.store(1);
    futex_wake_all(released);
    told[mine].check();
  });
  while (!alive[0].expired() || !alive[1].expired()) std::this_thread::yield();
}

TEST_CASE("table: requests during a shutdown complete once, or are refused") {
  for (int round = 0; round < 20; ++round) {
    on_ranks(2, [](hvd_engine* engine, int) {
      std::array<std::deque<Told>, 2> told;
      std::array<std::vector<float>, 2> values{std::vector<float>(3), std::vector<float>(3)};
      std::vector<std::thread> threads;
      std::atomic<int> taken{0};
      for (std::size_t t = 0; t < 2; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < 25; ++i) {
            Told& its = told[t].emplace_back();
            const std::string name = std::to_string(t) + "." + std::to_string(i);
            REQUIRE(ask_sum(engine, name.c_str(), values[t], its) == "");
            ++taken;
          }
        });
      }
      while (taken.load() < 5) std::this_thread::yield();
      core().shutdown(engine);
      for (std::thread& thread : threads) thread.join();
      for (std::deque<Told>& all : told) {
        for (Told& its : all) {
          CHECK(its.calls() == 1);
          CHECK((its.code == HVD_OK || its.code == HVD_SHUTDOWN));
        }
      }
    });
  }
}

TEST_CASE("table: without memory a request is refused, or completes once; never both") {
  for (int passage = 1; passage <= 12; ++passage) {
    CAPTURE(passage);
    on_ranks(1, [&](hvd_engine* engine, int) {
      Told told;
      std::vector<float> values(3);
      std::string refused;
      {
        const Armed armed("engine.alloc:fail@" + std::to_string(passage));
        refused = ask(engine, HVD_ALLGATHER, "g", values, {3}, told);
        if (refused.empty()) told.wait();
      }
      CHECK(told.calls() == (refused.empty() ? 1 : 0));
      if (!refused.empty()) CHECK(refused == "no memory");
    });
  }
}

TEST_CASE("table: in a forked child there is no engine") {
  on_ranks(1, [](hvd_engine* engine, int) {
    core().make_current(engine);
    const pid_t child = ::fork();
    if (child == 0) {
      Told told;
      std::vector<float> values(2);
      char text[256];
      hvd_request request = request_of(HVD_BARRIER, "b", told);
      const bool refused = core().current() == nullptr &&
                           core().enqueue(engine, &request, text, sizeof(text)) == HVD_SHUTDOWN &&
                           told.calls() == 0;
      core().make_current(nullptr);
      core().release(engine);
      ::_exit(refused ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    hvd_engine* const found = core().current();
    CHECK((found == engine));
    core().release(found);
    core().make_current(nullptr);
    check_usable(engine, "after");
  });
}

}  // namespace hvd::test
