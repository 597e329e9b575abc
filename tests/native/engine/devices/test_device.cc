// Tensors on devices through whole engines: every kind of operation, without the host ever touching
// their memory or waiting for a device.
#include <doctest/doctest.h>

#include "device_engines.h"

namespace hvd::test {
namespace {

const std::vector<int> kSizes{1, 2, 3, 5};
constexpr std::size_t kCount = 257;

void check_given(const Outcome& outcome) {
  CHECK(outcome.status.message == "");
  REQUIRE((outcome.event != nullptr));
  const Result<bool> reached = outcome.event->query();
  REQUIRE(reached.is_ok());
  CHECK(reached.value());
}

}  // namespace

TEST_CASE("device: allreduce, in place and into other memory, every operator") {
  for (const int size : kSizes) {
    FakeMachine machine(size);
    Engines engines = engines_on(machine, size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kProduct}) {
        const FakeTensor<float> values(0, small_numbers<float>(rank, kCount));
        const FakeTensor<float> result(0, std::vector<float>(kCount));
        Request request = device_request<float>(std::string("x.") + name_of(op), kCount, 0);
        request.op = op;
        request.prescale = op == ReduceOp::kSum ? 2 : 1;
        check_given(give(engine, request, {{values.data(), result.data(), kCount}}));
        const double factor = request.prescale;
        const auto expected = reduced<float>(first_ranks(size), kCount, op, 1, factor);
        CHECK(same_bytes(result.values(), expected));
        CHECK(same_bytes(values.values(), small_numbers<float>(rank, kCount)));
        check_given(give(engine, request, {in_place(values, kCount)}));
        CHECK(same_bytes(values.values(), expected));
      }
    });
  }
}

TEST_CASE("device: allgather returns device memory, also of no rows, single and grouped") {
  for (const int size : kSizes) {
    FakeMachine machine(size);
    Engines engines = engines_on(machine, size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      const auto rows = static_cast<std::size_t>(rank);
      const FakeTensor<float> some(1, std::vector<float>(rows, static_cast<float>(rank)));
      const FakeTensor<float> none(1, {});
      Request request = plain_request(Kind::kAllgather, "g");
      request.tensors = {meta_of<float>({rank}), meta_of<float>({0, 3})};
      const Outcome outcome =
          give(engine, on_device(request, 1),
               {{some.data(), nullptr, rows}, {none.data(), nullptr, std::size_t{0}}});
      check_given(outcome);
      REQUIRE(outcome.outputs.size() == 2);
      std::vector<float> expected;
      for (int r = 0; r < size; ++r) {
        expected.insert(expected.end(), static_cast<std::size_t>(r), static_cast<float>(r));
      }
      CHECK(outcome.outputs[0]->device == 1);
      CHECK(outcome.outputs[0]->shape == std::vector<std::int64_t>{size * (size - 1) / 2});
      CHECK(values_of<float>(*outcome.outputs[0]) == expected);
      CHECK(outcome.outputs[1]->shape == std::vector<std::int64_t>{0, 3});
      CHECK(values_of<float>(*outcome.outputs[1]).empty());
    });
  }
}

TEST_CASE("device: broadcast, alltoall and reducescatter") {
  for (const int size : kSizes) {
    FakeMachine machine(size);
    Engines engines = engines_on(machine, size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      const auto n = static_cast<std::size_t>(size), mine = static_cast<std::size_t>(rank);
      const FakeTensor<std::int32_t> sent(0, input_of<std::int32_t>(rank, 0, kCount));
      Request request = device_request<std::int32_t>("b", kCount, 0, Kind::kBroadcast);
      request.root = size - 1;
      check_given(give(engine, request, {in_place(sent, kCount)}));
      CHECK(sent.values() == input_of<std::int32_t>(size - 1, 0, kCount));

      // r + 1 rows to rank r.
      std::vector<float> rows;
      request = plain_request(Kind::kAlltoall, "a");
      for (int to = 0; to < size; ++to) {
        request.sizes.push_back(to + 1);
        rows.insert(rows.end(), static_cast<std::size_t>(to + 1), static_cast<float>(rank));
      }
      request.tensors = {meta_of<float>({static_cast<std::int64_t>(rows.size())})};
      const FakeTensor<float> all(0, rows);
      const Outcome outcome =
          give(engine, on_device(request, 0), {{all.data(), nullptr, rows.size()}});
      check_given(outcome);
      std::vector<float> expected;
      for (int from = 0; from < size; ++from) {
        expected.insert(expected.end(), mine + 1, static_cast<float>(from));
      }
      CHECK(outcome.sizes == std::vector<std::int64_t>(n, rank + 1));
      REQUIRE(outcome.outputs.size() == 1);
      CHECK(values_of<float>(*outcome.outputs[0]) == expected);

      // The core's memory for the share, where the caller gives none.
      const FakeTensor<float> whole(0, small_numbers<float>(rank, 3 * n));
      const Outcome scattered =
          give(engine, device_request<float>("r", 3 * n, 0, Kind::kReducescatter),
               {{whole.data(), nullptr, 3 * n}});
      check_given(scattered);
      const auto sums = reduced<float>(first_ranks(size), 3 * n, ReduceOp::kSum);
      REQUIRE(scattered.outputs.size() == 1);
      CHECK(values_of<float>(*scattered.outputs[0]) ==
            std::vector<float>(sums.begin() + 3 * rank, sums.begin() + 3 * rank + 3));
    });
  }
}

TEST_CASE("device: operations wait for the events of their tensors, and for nothing else") {
  FakeMachine machine(2);
  Engines engines =
      engines_on(machine, 2, {{"cycle_time_ms", "60000"}, {"fusion_threshold", "64"}});
  on_every_rank(engines, [&](Engine& engine, int rank) {
    // Held back until their 64 bytes are there: carried out together.
    const FakeTensor<float> a(0, std::vector<float>(8, 1.0F));
    const FakeTensor<float> b(0, std::vector<float>(8, 2.0F));
    const auto first = start(engine, device_request<float>("a", 8, 0), {in_place(a, 8)}, 17);
    const auto second = start(engine, device_request<float>("b", 8, 0), {in_place(b, 8)}, 18);
    const Outcome outcome = outcome_of(engine, first);
    check_given(outcome);
    check_given(outcome_of(engine, second));
    CHECK(a.values() == std::vector<float>(8, 2.0F));
    CHECK(b.values() == std::vector<float>(8, 4.0F));
    CHECK(machine[rank].calls() ==
          std::vector<std::string>{"open",
                                   "begin 0 set 0 bytes 64: device 0 stream 17 device 0 stream 18",
                                   "allreduce of 2 on 0", "end"});
    CHECK(outcome.event->stream_wait(stream_of(19)).is_ok());
    CHECK(machine[rank].calls() == std::vector<std::string>{"stream 19 follows operation 0"});
  });
}

TEST_CASE(
    "device: wait() returns when the operation has been given, poll() tells when it is done") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    machine[rank].held = true;
    const FakeTensor<float> values(0, std::vector<float>(4, 1.0F));
    const Request request = device_request<float>("x", 4, 0);
    const auto handle = start(engine, request, {in_place(values, 4)});
    const auto other = start(engine, device_request<float>("y", 4, 0), {in_place(values, 4)});
    const Outcome outcome = outcome_of(engine, other);
    CHECK_FALSE(outcome.event->query().value());
    CHECK(engine.poll(handle, false).value());  // given
    CHECK_FALSE(query(engine, handle));
    machine[rank].held = false;
    CHECK(query(engine, handle));
    CHECK(outcome.event->query().value());
    CHECK(outcome_of(engine, handle).status.message == "");
    CHECK(engine.poll(handle).status().code == Code::kInvalidArgument);
  });
}

TEST_CASE("device: a device's failure is reported where its result is awaited") {
  FakeMachine machine(1);
  Engines engines = engines_on(machine, 1);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> values(0, std::vector<float>(4, 1.0F));
    const auto handle = start(engine, device_request<float>("x", 4, 0), {in_place(values, 4)});
    while (!engine.poll(handle, false).value()) std::this_thread::yield();
    machine[rank].failed = true;
    CHECK(query(engine, handle));  // it will never be; wait() does not wait for it
    const Outcome outcome = outcome_of(engine, handle);
    CHECK(outcome.event->query().status().message == "the fake device has failed");
  });
}

TEST_CASE("device: host tensors do not use it, and only the background thread starts device work") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    check_usable(engine, "host");
    auto values = small_numbers<float>(rank, 5);
    const Outcome outcome = run(engine, request_for<float>("h", 5), {in_place(values)});
    CHECK((outcome.event == nullptr));
    CHECK(machine[rank].calls().empty());  // not even loaded
    const auto by_callers = engine.counters().caller_runs.load();
    const auto fast_paths = engine.counters().fast_paths.load();
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, 5));
    for (int i = 0; i < 10; ++i) {
      const auto handle = engine.enqueue(device_request<float>("d", 5, 0), {in_place(tensor, 5)},
                                         Next::kWaits, stream_of(1));
      REQUIRE(handle.is_ok());
      check_given(outcome_of(engine, handle.value()));
    }
    CHECK(engine.counters().caller_runs.load() == by_callers);
    CHECK(engine.counters().fast_paths.load() == fast_paths);
  });
}

TEST_CASE("device: the timeline's phases name the backend") {
  FakeMachine machine(1);
  Engines engines = engines_on(machine, 1);
  on_every_rank(engines, [&](Engine& engine, int /*rank*/) {
    const FakeTensor<float> values(0, std::vector<float>(4, 1.0F));
    check_given(give(engine, device_request<float>("x", 4, 0), {in_place(values, 4)}));
    std::uint64_t cursor = 0;
    std::vector<std::string> phases;
    for (const TraceRecord& record : traced(engine, cursor)) phases.emplace_back(record.phase);
    CHECK(phases == std::vector<std::string>{"READY", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE",
                                             "INIT_DEVICES", "FAKE_RING"});
  });
}

TEST_CASE("device: a timeline's bars end when the device is done, not at the submission") {
  constexpr std::int64_t kStep = 1'000'000'000;
  FakeMachine machine(1);
  machine[0].span_ns = kStep;
  Engines engines = engines_on(machine, 1);
  Engine& engine = *engines[0];
  const FakeTensor<float> values(0, std::vector<float>(4, 1.0F));
  check_given(give(engine, device_request<float>("x", 4, 0), {in_place(values, 4)}));
  REQUIRE(engine.start_timeline("/dev/null", false).message == "");
  std::uint64_t cursor = 0;
  (void)traced(engine, cursor);
  machine[0].held = true;
  const std::int64_t before = now_ns();
  const Outcome outcome = give(engine, device_request<float>("x", 4, 0), {in_place(values, 4)});
  const std::int64_t after = now_ns();
  const auto records = traced(engine, cursor);
  REQUIRE(records.size() == 1);  // it is not done
  CHECK(std::string(records[0].phase) == "READY");
  machine[0].held = false;
  engine.stop_timeline();
  const auto rest = traced(engine, cursor);
  REQUIRE(rest.size() == 5);
  const auto end = [](const TraceRecord& one) { return one.start_ns + one.duration_ns; };
  const TraceRecord &op = rest[1], &queue = rest[2], &data = rest[3], &ring = rest[4];
  CHECK(std::string(op.phase) == "ALLREDUCE");
  CHECK(std::string(op.dtype) == "float32");
  CHECK(op.shape == "[4]");
  CHECK(end(rest[0]) == op.start_ns);
  CHECK(std::string(queue.phase) == "QUEUE");
  CHECK(queue.start_ns == op.start_ns);
  CHECK(std::string(data.phase) == "WAIT_FOR_DATA");
  CHECK(data.start_ns == end(queue));
  CHECK(data.duration_ns == kStep);
  CHECK(std::string(ring.phase) == "FAKE_RING");
  CHECK(ring.start_ns == end(data));
  CHECK(ring.duration_ns == kStep);
  CHECK(end(op) == end(ring));
  CHECK(end(op) >= before + 3 * kStep);
  CHECK(end(op) <= after + 3 * kStep);
  CHECK_FALSE(machine[0].aborted);
}

TEST_CASE("device: the bar of a captured operation lasts as long as its submission") {
  FakeMachine machine(1);
  machine[0].span_ns = 1'000'000'000;
  Engines engines = engines_on(machine, 1);
  Engine& engine = *engines[0];
  const FakeTensor<float> values(0, std::vector<float>(4, 1.0F));
  REQUIRE(engine.start_timeline("/dev/null", false).message == "");
  machine[0].captures = true;
  check_given(give(engine, device_request<float>("x", 4, 0), {in_place(values, 4)}));
  std::uint64_t cursor = 0;
  const auto records = traced(engine, cursor);
  REQUIRE(records.size() == 6);  // at once
  CHECK(std::string(records.back().phase) == "FAKE_RING");
  CHECK(records.back().start_ns + records.back().duration_ns <= now_ns());
  engine.stop_timeline();
}

TEST_CASE("device: times that devices report are counted, also after shutdown") {
  FakeMachine machine(1);
  machine[0].busy_ns = 700;
  machine[0].exposed_ns = 300;
  Engines engines = engines_on(machine, 1);
  Engine& engine = *engines[0];
  CHECK(engine.counters().on_device_ns.load() == 0);  // no device has been used
  const FakeTensor<float> tensor(0, small_numbers<float>(0, kCount));
  check_given(give(engine, device_request<float>("x", kCount, 0), {in_place(tensor, kCount)}));
  CHECK(engine.counters().on_device_ns.load() == 700);
  CHECK(engine.counters().exposed_ns.load() == 300);
  CHECK(engine.counters().busy_ns.load() == 0);
  machine[0].busy_ns = 900;
  engine.shutdown();
  CHECK(engine.counters().on_device_ns.load() == 900);
}

}  // namespace hvd::test
