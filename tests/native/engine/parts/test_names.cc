// How long the name of an operation is taken: until its caller knows that it has ended.
#include <doctest/doctest.h>

#include "engine/engines.h"

namespace hvd::test {
namespace {

Result<std::int64_t> start(Engine& engine, float& value, Next next = Next::kContinues) {
  return engine.enqueue(request_for<float>("one name", 1), {{&value, &value, 1}}, next);
}

bool refused(const Result<std::int64_t>& handle) {
  return handle.status().message.find("with the same name as another tensor") != std::string::npos;
}

}  // namespace

TEST_CASE("names: a name in use is refused on every rank, every time") {
  const int size = 3;
  Engines engines = engines_of(size);
  run_ranks(size, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    for (int round = 0; round < 50; ++round) {
      float first = static_cast<float>(rank), second = 0;
      if (rank != 0)
        check_usable(engine, "before");  // rank 0 comes at another time than the others
      const auto handle = start(engine, first);
      REQUIRE(handle.status().message == "");
      if (rank == 0) check_usable(engine, "before");
      check_usable(engine, "after");  // every rank has submitted it: it has most likely ended
      const auto again = start(engine, second), at_once = start(engine, second, Next::kWaits);
      CAPTURE(rank);
      CAPTURE(round);
      CAPTURE(again.status().message);
      CHECK(refused(again));
      CAPTURE(at_once.status().message);
      CHECK(refused(at_once));
      check_usable(engine, "checked");  // nobody has shut down before
      CHECK(outcome_of(engine, handle.value()).status.is_ok());
      CHECK(first == 3.0F);
    }
    engine.shutdown();
  });
}

TEST_CASE("names: a name is free when poll() has reported the end of its operation") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    float first = 1, second = 2;
    const auto handle = start(engine, first);
    REQUIRE(handle.status().message == "");
    while (!engine.poll(handle.value()).value()) std::this_thread::yield();
    const auto again = start(engine, second);
    REQUIRE(again.status().message == "");
    CHECK(outcome_of(engine, again.value()).status.is_ok());
    CHECK(second == 4.0F);
    CHECK(outcome_of(engine, handle.value()).status.is_ok());
    CHECK(first == 2.0F);
  });
}

TEST_CASE("names: a name of a blocking call is free when the operation has ended") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    for (int round = 0; round < 3; ++round) {
      float value = 1;
      const auto handle = start(engine, value, Next::kWaits);
      REQUIRE(handle.status().message == "");
      CHECK(outcome_of(engine, handle.value()).status.is_ok());
      CHECK(value == 2.0F);
    }
  });
}

}  // namespace hvd::test
