// What all ranks wait for together is agreed on without a message, and nobody can tell by the
// result.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "engine/engines.h"
#include "engine/parts/meeting.h"

namespace hvd::test {
namespace {

std::int64_t fast_paths(const Engine& engine) { return engine.counters().fast_paths.load(); }

// A call that waits, and its result; `count` numbers that differ by rank.
std::vector<float> waited_sum(Engine& engine, const std::string& name, std::size_t count,
                              ReduceOp op = ReduceOp::kSum) {
  auto values = small_numbers<float>(engine.topology().rank, count);
  Request request = request_for<float>(name, count);
  request.op = op;
  const Outcome outcome = run(engine, request, {in_place(values)});
  CHECK(outcome.status.message == "");
  return values;
}

void meet_in_short(Engine& engine) {
  const auto before = fast_paths(engine);
  meet(engine, [&] { return fast_paths(engine) != before; });
  CHECK(fast_paths(engine) > before);
}

}  // namespace

TEST_CASE("fast path: used by ranks that wait, with any operation name") {
  for (const int size : {1, 2}) {  // as many as there are cores: then ranks look for each other
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int) {
      for (int i = 0; i < 200; ++i) {
        const std::string name = i % 2 == 0 ? "x" : "";  // without a name: numbered by the calls
        CHECK(same_bytes(waited_sum(engine, name, 33),
                         reduced<float>(first_ranks(size), 33, ReduceOp::kSum)));
      }
      meet_in_short(engine);
    });
  }
}

TEST_CASE("fast path: operands of small sums are stored beside the word, others are not") {
  for (const int size : {2, 3}) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int) {
      const auto given = [&] { return engine.counters().eager.load(); };
      const auto sums = [&](std::size_t count) {
        for (int i = 0; i < 30; ++i)
          CHECK(same_bytes(waited_sum(engine, "x", count),
                           reduced<float>(first_ranks(size), count, ReduceOp::kSum)));
      };
      for (const std::size_t count : {1U, 1000U, 16384U}) sums(count);
      const auto before = given(), taken = fast_paths(engine);
      meet_in_short(engine);
      CHECK(given() - before == fast_paths(engine) - taken);
      const auto small = given();
      sums(16385);
      CHECK(given() == small);
    });
  }
}

TEST_CASE("fast path: every kind has the result of the normal path") {
  const int size = 3;
  Engines engines = engines_of(size);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (int i = 0; i < 50; ++i) {
      CHECK(same_bytes(waited_sum(engine, "max", 7, ReduceOp::kMax),
                       reduced<float>(first_ranks(size), 7, ReduceOp::kMax)));

      auto received = small_numbers<float>(rank, 5);
      Request broadcast = request_for<float>("told", 5, Kind::kBroadcast);
      broadcast.root = i % size;
      CHECK(run(engine, broadcast, {in_place(received)}).status.message == "");
      CHECK(same_bytes(received, small_numbers<float>(i % size, 5)));

      const auto own = small_numbers<float>(rank, 4);
      const auto gathered = run(engine, request_for<float>("gather", 4, Kind::kAllgather),
                                {{own.data(), nullptr, own.size()}});
      REQUIRE(gathered.outputs.size() == 1);
      for (int from = 0; from < size; ++from) {
        const auto part = small_numbers<float>(from, 4);
        CHECK(std::memcmp(gathered.outputs[0]->data() + from * 16, part.data(), 16) == 0);
      }

      CHECK(run(engine, plain_request(Kind::kBarrier)).status.message == "");
    }
  });
}

TEST_CASE("fast path: counters wrap around") {
  EngineOptions options = options_of({});
  options.mesh.first_count = 4294967290U;
  Engines engines;
  for (auto& mesh : make_local_meshes(2, options.mesh)) {
    engines.push_back(std::make_unique<Engine>(std::move(mesh), options));
  }
  on_every_rank(engines, [&](Engine& engine, int) {
    for (int i = 0; i < 100; ++i) {
      CHECK(same_bytes(waited_sum(engine, "x", 9),
                       reduced<float>(first_ranks(2), 9, ReduceOp::kSum)));
    }
    meet_in_short(engine);
  });
}

TEST_CASE("fast path: mixed with the normal path in any order, no operation is lost or mixed up") {
  const int size = 2;
  for (const unsigned seed : {1U, 2U, 3U}) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      std::mt19937 random(seed * 100 + static_cast<unsigned>(rank));
      for (int i = 0; i < 300; ++i) {
        const std::string name = "x" + std::to_string(i % 3);
        auto beside = small_numbers<double>(rank, 11);
        const bool first = random() % 2 == 0;
        std::int64_t handle = -1;
        if (first) handle = start_sum(engine, "beside", beside);
        if (random() % 4 == 0) std::this_thread::yield();
        if (random() % 2 == 0) {
          CHECK(same_bytes(waited_sum(engine, name, 17),
                           reduced<float>(first_ranks(size), 17, ReduceOp::kSum)));
        } else {
          auto values = small_numbers<float>(rank, 17);
          const auto sum = start_sum(engine, name, values);
          if (!first) handle = start_sum(engine, "beside", beside);
          CHECK(outcome_of(engine, sum).status.message == "");
          CHECK(same_bytes(values, reduced<float>(first_ranks(size), 17, ReduceOp::kSum)));
        }
        if (handle < 0) handle = start_sum(engine, "beside", beside);
        CHECK(outcome_of(engine, handle).status.message == "");
        CHECK(same_bytes(beside, reduced<double>(first_ranks(size), 11, ReduceOp::kSum)));
      }
    });
  }
}

TEST_CASE("fast path: two threads of each rank") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    const auto sums = [&](const std::string& name, std::size_t count) {
      for (int i = 0; i < 200; ++i) {
        CHECK(same_bytes(waited_sum(engine, name, count),
                         reduced<float>(first_ranks(2), count, ReduceOp::kSum)));
      }
    };
    std::thread other([&] { sums("other", 5); });
    sums("one", 9);
    other.join();
  });
}

TEST_CASE("fast path: ranks that request different operations get an error, and continue") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (int i = 0; i < 20; ++i) {
      std::vector<float> values(rank == 0 ? 3U : 4U, 1.0F);
      const Outcome outcome =
          run(engine, request_for<float>("x", values.size()), {in_place(values)});
      CHECK(outcome.status.code == Code::kMismatch);
      CHECK(same_bytes(waited_sum(engine, "y", 6),
                       reduced<float>(first_ranks(2), 6, ReduceOp::kSum)));
    }
  });
}

TEST_CASE("fast path: not used while there are process sets") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    const int set = add_set(engine, {0}, "one");
    const auto before = fast_paths(engine);
    for (int i = 0; i < 50; ++i) waited_sum(engine, "x", 3);
    CHECK(fast_paths(engine) == before);
    Request remove = plain_request(Kind::kRemoveSet);
    remove.sizes = {set};
    CHECK(run(engine, remove).number == 1);
    meet_in_short(engine);
  });
}

TEST_CASE("fast path: not used while a timeline records requests") {
  const std::string path = "/tmp/hvd_short_way_" + std::to_string(getpid()) + ".json";
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    CHECK(engine.start_timeline(path, false).message == "");
    run(engine, plain_request(Kind::kBarrier, "begun"));
    const auto before = fast_paths(engine);
    for (int i = 0; i < 50; ++i) waited_sum(engine, "x", 3);
    CHECK(fast_paths(engine) == before);
    run(engine, plain_request(Kind::kBarrier, "all"));
    engine.stop_timeline();
    run(engine, plain_request(Kind::kBarrier, "over"));
    meet_in_short(engine);
  });
  engines.clear();  // which ends the timeline's writer
  CHECK(std::remove(path.c_str()) == 0);
}

}  // namespace hvd::test
