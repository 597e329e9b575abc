// Ranks with a host each, over TCP: nobody can tell by the result whether data were sent before an
// operation was agreed on.
#include <doctest/doctest.h>

#include <random>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "engine/engines.h"

namespace hvd::test {
namespace {

Engines apart(int size) {
  return connected_engines(size,
                           [](int rank) { return Table{{"host", "h" + std::to_string(rank)}}; });
}

std::int64_t eager(const Engine& engine) { return engine.counters().eager.load(); }

std::vector<float> uneven(int rank, std::size_t count, unsigned seed) {
  std::mt19937 random(seed * 31U + static_cast<unsigned>(rank));
  std::vector<float> values(count);
  for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
  return values;
}

std::vector<float> waited(Engine& engine, const std::string& name, std::vector<float> values,
                          ReduceOp op = ReduceOp::kSum) {
  Request request = request_for<float>(name, values.size());
  request.op = op;
  CHECK(run(engine, request, {in_place(values)}).status.message == "");
  return values;
}

std::vector<float> begun(Engine& engine, const std::string& name, std::vector<float> values) {
  CHECK(outcome_of(engine, start_sum(engine, name, values)).status.message == "");
  return values;
}

// Until ranks, whose cores are busy elsewhere, have met in a round.
void meet(Engine& engine) {
  const std::int64_t before = eager(engine);
  const Deadline deadline = Deadline::after_seconds(120);
  std::vector<float> again{1.0F};
  while (again.front() > 0) {
    again.front() = eager(engine) == before && !deadline.expired() ? 1.0F : 0.0F;
    again = waited(engine, "meet", again, ReduceOp::kMin);
  }
  CHECK(eager(engine) > before);
}

}  // namespace

TEST_CASE("eager: hosts of one rank each send a small sum before they agree on it") {
  for (const int size : {2, 3}) {
    Engines engines = apart(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      for (int i = 0; i < 30; ++i) {
        const std::size_t count = i % 3 == 0 ? 1 : i % 3 == 1 ? 1000 : 8192;
        const std::string name = "x" + std::to_string(count);
        CHECK(same_bytes(waited(engine, name, small_numbers<float>(rank, count)),
                         reduced<float>(first_ranks(size), count, ReduceOp::kSum)));
      }
      meet(engine);
    });
  }
}

TEST_CASE("eager: the same bytes as by agreement, with every kind of call") {
  Engines engines = apart(3);
  std::vector<std::vector<float>> sums(3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 7U);
    for (unsigned i = 0; i < 60; ++i) {
      const std::vector<float> mine = uneven(rank, 501, i % 5);
      const std::string name = "x" + std::to_string(i % 5);
      const bool waits = i < 20 || random() % 3 != 0;
      const auto sum = waits ? waited(engine, name, mine) : begun(engine, name, mine);
      std::vector<float>& all = sums[static_cast<std::size_t>(rank)];
      if (i < 5) {
        all.insert(all.end(), sum.begin(), sum.end());
      } else {
        const auto* const first = all.data() + (i % 5) * 501;
        CHECK(same_bytes(sum, std::vector<float>(first, first + 501)));
      }
    }
    meet(engine);
  });
  CHECK(same_bytes(sums[0], sums[1]));
  CHECK(same_bytes(sums[0], sums[2]));
}

TEST_CASE("eager: a caller that stops waiting leaves the round to the background thread") {
  Engines engines = apart(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto values = small_numbers<float>(rank, 100);
    for (int i = 0; i < 12; ++i) {
      const std::vector<float> before = values;
      if (i % 2 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // comes late
      Request request = request_for<float>("x", values.size());
      request.op = ReduceOp::kMax;
      const auto handle = engine.enqueue(request, {in_place(values)}, Next::kWaits);
      REQUIRE(handle.is_ok());
      const auto little = engine.wait(handle.value(), std::chrono::nanoseconds(1));
      REQUIRE(little.is_ok());
      if (little.value() == nullptr) {  // nothing here looks for it now
        while (!engine.poll(handle.value()).value()) std::this_thread::yield();
        CHECK(outcome_of(engine, handle.value()).status.message == "");
      }
    }
    CHECK(same_bytes(values, reduced<float>(first_ranks(2), 100, ReduceOp::kMax)));
  });
}

TEST_CASE("eager: several threads of a rank, and operations that are no small sums") {
  constexpr int kSize = 2;
  Engines engines = apart(kSize);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const auto work = [&](int thread) {
      for (int i = 0; i < 15; ++i) {
        const std::size_t count = i % 4 == 3 ? 100000 : 64;
        const std::string name = std::to_string(thread) + (count == 64 ? "small" : "large");
        CHECK(same_bytes(waited(engine, name, small_numbers<float>(rank, count)),
                         reduced<float>(first_ranks(kSize), count, ReduceOp::kSum)));
      }
    };
    std::thread other([&] { work(1); });
    work(0);
    other.join();
    // With a process set there are no rounds, and after it there are again.
    const int set = add_set(engine, {1});
    const std::int64_t before = eager(engine);
    for (int i = 0; i < 4; ++i) waited(engine, "x", {1.0F});
    CHECK(eager(engine) == before);
    Request removal = plain_request(Kind::kRemoveSet);
    removal.sizes = {set};
    CHECK(run(engine, removal).status.message == "");
    meet(engine);
  });
}

TEST_CASE("eager: a rank that shuts down ends the others' rounds, after those it took part in") {
  Engines engines = apart(3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (int i = 0; i < 5; ++i) {
      CHECK(same_bytes(waited(engine, "x", small_numbers<float>(rank, 10)),
                       reduced<float>(first_ranks(3), 10, ReduceOp::kSum)));
    }
    if (rank == 1) return;
    auto values = small_numbers<float>(rank, 10);
    const Outcome outcome = run(engine, request_for<float>("x", 10), {in_place(values)});
    CHECK(outcome.status.code == Code::kShutdown);
    CHECK(outcome.status.rank == 1);
  });
}

TEST_CASE("eager: a rank that fails ends the others' rounds at once") {
  Engines engines = apart(3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Status status;
    for (int i = 0; status; ++i) {
      if (rank == 1 && i == 5) engine.abort("enough");
      auto values = small_numbers<float>(rank, 10);
      status = run(engine, request_for<float>("x", 10), {in_place(values)}).status;
    }
    CHECK(status.code == Code::kAborted);
    CHECK(status.rank == 1);
  });
}

}  // namespace hvd::test
