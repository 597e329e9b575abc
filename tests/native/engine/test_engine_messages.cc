// Messages between two ranks, with whole engines on one host and on several.
#include <doctest/doctest.h>

#include <random>

#include "engines.h"

namespace hvd::test {
namespace {

Engines apart(int size) {
  return connected_engines(size,
                           [](int rank) { return Table{{"host", "h" + std::to_string(rank)}}; });
}

template <typename T>
std::int64_t start(Engine& engine, int source, int destination, std::vector<T>& values,
                   std::int64_t tag = 0, Next next = Next::kBegins) {
  Request request = send_request(source, destination, tag, engine.topology().size);
  request.tensors = {meta_of<T>({static_cast<std::int64_t>(values.size())})};
  const auto task = engine.enqueue_task(std::move(request), {in_place(values)}, next);
  REQUIRE(task.status().message == "");
  if (next == Next::kBegins) engine.begin(task.value());
  return task.value()->handle;
}

template <typename T>
void send(Engine& engine, int destination, std::vector<T> values, std::int64_t tag = 0) {
  const std::int64_t handle =
      start(engine, engine.topology().rank, destination, values, tag, Next::kWaits);
  CHECK(outcome_of(engine, handle).status.message == "");
}

template <typename T>
std::vector<T> received(Engine& engine, int source, std::size_t count, std::int64_t tag = 0) {
  std::vector<T> values(count);
  const std::int64_t handle =
      start(engine, source, engine.topology().rank, values, tag, Next::kWaits);
  CHECK(outcome_of(engine, handle).status.message == "");
  return values;
}

}  // namespace

TEST_CASE("messages: from every rank to every other, in order, of any size") {
  for (const bool one_host : {true, false}) {
    for (const int size : {2, 3, 4}) {
      Engines engines = one_host ? engines_of(size) : apart(size);
      on_every_rank(engines, [&](Engine& engine, int rank) {
        for (int source = 0; source < size; ++source) {
          for (int destination = 0; destination < size; ++destination) {
            for (const std::size_t count : {0U, 1U, 1000U, 300'000U}) {
              const auto values = input_of<double>(source, 7, count);
              if (source == rank && destination != rank) send(engine, destination, values, 3);
              if (destination == rank && source != rank)
                CHECK(same_bytes(received<double>(engine, source, count, 3), values));
            }
          }
        }
        check_usable(engine, "end");
      });
    }
  }
}

TEST_CASE("messages: several in flight, tags in any order, and in both directions at once") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const int peer = 1 - rank;
    std::vector<std::vector<float>> out, in(6, std::vector<float>(50));
    std::vector<std::int64_t> handles;
    for (int i = 0; i < 6; ++i) out.push_back(input_of<float>(rank, i, 50));
    for (const int i : {0, 1, 2, 3, 4, 5})
      handles.push_back(start(engine, rank, peer, out[static_cast<std::size_t>(i)], i % 3));
    for (const int i : {5, 0, 1, 2, 3, 4})  // tag 2: in the order of the calls, first 5, then 2
      handles.push_back(start(engine, peer, rank, in[static_cast<std::size_t>(i)], i % 3));
    for (const std::int64_t handle : handles)
      CHECK(outcome_of(engine, handle).status.message == "");
    const std::vector<int> sent{0, 1, 5, 3, 4, 2};
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(same_bytes(in[i], input_of<float>(peer, sent[i], 50)));
  });
}

TEST_CASE("messages: any number between sums of all ranks, which stay fast and correct") {
  for (const bool one_host : {true, false}) {
    for (const int size : {2, 3, 4}) {
      Engines engines = one_host ? engines_of(size) : apart(size);
      on_every_rank(engines, [&](Engine& engine, int rank) {
        std::mt19937 shared(7), own(static_cast<unsigned>(rank));  // what all do, and what one does
        for (int round = 0; round < 60; ++round) {
          const int source = static_cast<int>(shared() % static_cast<unsigned>(size));
          const int step = 1 + static_cast<int>(shared() % static_cast<unsigned>(size - 1));
          const int destination = (source + step) % size;
          const std::size_t count = shared() % 3 == 0 ? 20'000 : 5;
          const bool before = own() % 2 == 0;  // this rank begins it before the sum
          const bool takes_part = rank == source || rank == destination;
          auto values = input_of<float>(rank == source ? source : size, round, count);
          std::int64_t handle = -1;
          const auto begin = [&] { handle = start(engine, source, destination, values, 1); };
          if (takes_part && before) begin();
          auto sum = input_of<float>(rank, round, 33);
          Request request = request_for<float>("sum", sum.size());
          request.op = ReduceOp::kSum;
          CHECK(run(engine, request, {in_place(sum)}).status.message == "");
          CHECK(same_bytes(sum, expected_sums<float>(size, round, 33)));
          if (takes_part && !before) begin();
          if (!takes_part) continue;
          CHECK(outcome_of(engine, handle).status.message == "");
          CHECK(same_bytes(values, input_of<float>(source, round, count)));
        }
        check_usable(engine, "end");
      });
    }
  }
}

TEST_CASE("messages: the next sum is negotiated, because other ranks may be before the message") {
  Engines engines = engines_of(2);  // as many as there are cores: then ranks look for each other
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const auto fast_paths = [&] { return engine.counters().fast_paths.load(); };
    const auto sum = [&] {
      std::vector<float> values{1};
      Request request = request_for<float>("sum", 1);
      request.op = ReduceOp::kSum;
      CHECK(run(engine, request, {in_place(values)}).status.message == "");
      CHECK(values.front() == 2);
    };
    sum();
    for (int round = 0; round < 100; ++round) {
      if (rank == 0) send(engine, 1, input_of<float>(0, 1, 3));
      if (rank == 1) CHECK(same_bytes(received<float>(engine, 0, 3), input_of<float>(0, 1, 3)));
      const std::int64_t before = fast_paths();
      sum();
      CHECK(fast_paths() == before);
    }
  });
}

TEST_CASE("messages: a receiver finds out which rank sends") {
  const int size = 4;
  Engines engines = engines_of(size);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::vector<int> sources;
    if (rank != 2) send(engine, 2, input_of<float>(rank, 1, 10), 5);
    for (int i = 0; rank == 2 && i < size - 1; ++i) {
      const Outcome probe = run(engine, probe_request(5));
      CHECK(probe.status.message == "");
      const int source = static_cast<int>(probe.number);
      sources.push_back(source);
      CHECK(same_bytes(received<float>(engine, source, 10, 5), input_of<float>(source, 1, 10)));
    }
    std::sort(sources.begin(), sources.end());
    if (rank == 2) CHECK(sources == std::vector<int>{0, 1, 3});
    check_usable(engine, "end");
  });
}

TEST_CASE("messages: to the rank itself or to a missing rank they are refused, and do not count") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::vector<float> values(3);
    for (const int destination : {rank, 2, -1}) {
      Request request = send_request(rank, destination, 0, 2);
      request.tensors = {meta_of<float>({3})};
      const Status status = engine.enqueue(request, {in_place(values)}).status();
      CHECK(status.code == Code::kInvalidArgument);
      CHECK(status.message ==
            "Send: source and destination must be different ranks from 0 to 1, in a job of at most "
            "32768 ranks");
    }
    CHECK(engine.enqueue(send_request(0, 1, 0, 2), {}).status().code == Code::kInvalidArgument);
    Request sum = request_for<float>("x", 3);
    sum.set = pair_id(0, 1, 2);
    CHECK(engine.enqueue(sum, {in_place(values)}).status().code == Code::kInvalidArgument);
    if (rank == 0) send(engine, 1, input_of<float>(0, 1, 3));
    if (rank == 1) CHECK(same_bytes(received<float>(engine, 0, 3), input_of<float>(0, 1, 3)));
  });
}

TEST_CASE("messages: a receiver of another size gets an error, and the engine continues") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::vector<float> values(rank == 0 ? 3 : 4);
    const Outcome outcome = outcome_of(engine, start(engine, 0, 1, values));
    CHECK(outcome.status.code == Code::kMismatch);
    if (rank == 0) send(engine, 1, input_of<float>(0, 1, 3));
    if (rank == 1) CHECK(same_bytes(received<float>(engine, 0, 3), input_of<float>(0, 1, 3)));
    check_usable(engine, "end");
  });
}

}  // namespace hvd::test
