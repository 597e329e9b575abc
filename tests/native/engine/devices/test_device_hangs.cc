// A device that does not complete its operations: they are pending, reported, and finally the end
// of the engine. Deadlines are tested in virtual time.
#include <doctest/doctest.h>

#include "device_engines.h"

namespace hvd::test {
namespace {

constexpr std::size_t kCount = 4;
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kStart = 77 * kSecond;

std::vector<std::string> pending_names(const Engine& engine) {
  std::vector<std::string> names;
  for (const Pending& one : engine.pending()) names.push_back(one.name);
  return names;
}

// The second device of rank 3, in an engine's eyes.
struct Watched {
  explicit Watched(const DeviceRules& rules) : outstanding(rules) {}

  Outstanding outstanding;

  // An operation that is done when its device is no longer held.
  FakeDevicePtr give(std::int64_t now_ns, bool has_inputs = true) {
    auto device = std::make_shared<FakeDevice>();
    device->held = !has_inputs;
    DeviceEventPtr ready = std::make_shared<FakeEvent>(device, "ready");
    outstanding.begin({{"x"}, Kind::kAllreduce, 0, 1, now_ns, std::move(ready), nullptr});
    device->held = true;
    DeviceEventPtr done = std::make_shared<FakeEvent>(device, "done");
    outstanding.enqueued(std::make_shared<DoneEvent>(std::move(done), std::make_shared<Mutex>()));
    return device;
  }

  // Looks until `end`, or the deadline is over; when warnings came, in seconds since kStart.
  Status look_on(std::int64_t& now_ns, std::int64_t end_ns,
                 std::vector<std::int64_t>* warned = nullptr) {
    while (now_ns < end_ns) {
      now_ns += outstanding.check_interval();
      const Outstanding::Report report = outstanding.check(now_ns);
      if (warned != nullptr && !report.warning.empty())
        warned->push_back((now_ns - kStart) / kSecond);
      if (!report.overdue) return report.overdue;
    }
    return {};
  }
};

DeviceRules rules(double warning_s, double deadline_s) {
  return {3, static_cast<std::int64_t>(warning_s * 1e9),
          static_cast<std::int64_t>(deadline_s * 1e9), "HVD_GPU_TIMEOUT"};
}

}  // namespace

TEST_CASE("device: operations that the device has not completed are pending") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    machine[rank].held = true;
    const FakeTensor<float> values(0, std::vector<float>(kCount, 1.0F));
    const auto handle =
        start(engine, device_request<float>("x", kCount, 0), {in_place(values, kCount)});
    CHECK(outcome_of(engine, handle).status.message == "");  // given
    CHECK(has(pending_names(engine), "x"));
    machine[rank].held = false;
    CHECK_FALSE(has(pending_names(engine), "x"));
    machine[rank].captures = true;  // a graph may run whenever it likes
    machine[rank].held = true;
    give(engine, device_request<float>("y", kCount, 0), {in_place(values, kCount)});
    CHECK_FALSE(has(pending_names(engine), "y"));
    machine[rank].held = false;
    CHECK(run(engine, plain_request(Kind::kBarrier, "end")).status.message == "");
  });
}

TEST_CASE("device: A23 a device that hangs ends all ranks, with the operation and the rank") {
  FakeMachine machine(2);
  Engines engines = engines_on(
      machine, 2, [](int rank) { return Table{{"gpu_timeout_s", rank == 1 ? "0.02" : "0"}}; });
  on_every_rank(engines, [&](Engine& engine, int rank) {
    machine[rank].held = true;
    const FakeTensor<float> values(0, std::vector<float>(kCount, 1.0F));
    const Outcome outcome =
        give(engine, device_request<float>("x", kCount, 0), {in_place(values, kCount)});
    CHECK(outcome.status.message == "");
    while (engine.ended().is_ok()) std::this_thread::yield();
    const Status status = engine.ended();
    CHECK(status.code == Code::kStalled);
    CHECK(status.rank == 1);  // whose inputs do not come
    CHECK(status.message.find("ALLREDUCE x is not done on device 0 of rank 1 after ") == 0);
    CHECK(status.message.find("what its inputs are computed with there does not end "
                              "(HVD_GPU_TIMEOUT)") != std::string::npos);
    const auto late = engine.enqueue(plain_request(Kind::kBarrier, "late"), {});
    if (late.is_ok()) CHECK(outcome_of(engine, late.value()).status.message == status.message);
    CHECK(has(machine[rank].calls(), "abandon"));
    CHECK(outcome.event->stream_wait(nullptr).message == status.message);
  });
}

TEST_CASE("device: an operation that does not reach its device has the same deadline") {
  FakeMachine machine(2);
  machine[1].stuck = true;
  Engines engines = engines_on(machine, 2, [](int rank) {
    return Table{{"gpu_timeout_s", "0"},
                 {"stall_warning_s", rank == 1 ? "0.01" : "60"},
                 {"stall_shutdown_s", rank == 1 ? "0.02" : "0"}};
  });
  on_every_rank(engines, [&](Engine& engine, int /*rank*/) {
    const FakeTensor<float> values(0, std::vector<float>(kCount, 1.0F));
    const auto handle =
        start(engine, device_request<float>("x", kCount, 0), {in_place(values, kCount)});
    while (engine.ended().is_ok()) std::this_thread::yield();
    const std::string text = engine.ended().message;
    CHECK(text.find("this rank is still giving it to the device "
                    "(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)") != std::string::npos);
    static_cast<void>(outcome_of(engine, handle));
  });
}

TEST_CASE("device: in flight are all operations from the first incomplete one") {
  Watched watched(rules(60, 600));
  CHECK(watched.outstanding.in_flight(kStart).operations == 0);
  std::vector<FakeDevicePtr> devices;
  for (const std::int64_t second : {0, 1, 2})
    devices.push_back(watched.give(kStart + second * kSecond));
  devices[1]->held = false;
  InFlight in_flight = watched.outstanding.in_flight(kStart + 3 * kSecond);
  CHECK(in_flight.operations == 3);
  CHECK(in_flight.since_ns == kStart);
  devices[0]->held = false;
  in_flight = watched.outstanding.in_flight(kStart + 3 * kSecond);
  CHECK(in_flight.operations == 1);
  CHECK(in_flight.since_ns == kStart + 2 * kSecond);
  devices[2]->held = false;
  CHECK(watched.outstanding.in_flight(kStart + 3 * kSecond).operations == 0);
}

TEST_CASE("device: a warning in every warning period, and an error at the deadline") {
  Watched watched(rules(60, 600));
  CHECK(watched.outstanding.check_interval() == 15 * kSecond);
  watched.give(kStart);
  std::vector<std::int64_t> warned;
  std::int64_t now = kStart;
  const Status overdue = watched.look_on(now, kStart + 3600 * kSecond, &warned);
  CHECK(warned == std::vector<std::int64_t>{60, 120, 180, 240, 300, 360, 420, 480, 540, 600});
  CHECK(now == kStart + 615 * kSecond);  // its inputs existed: other ranks get the error first
  CHECK(overdue.code == Code::kStalled);
  CHECK(overdue.rank == -1);
  CHECK(overdue.message ==
        "ALLREDUCE x is not done on device 1 of rank 3 after 615 s: it hangs there, or waits for "
        "the device of a rank where something hangs (HVD_GPU_TIMEOUT)");
}

TEST_CASE("device: the rank without inputs gets its error before the ranks that wait for it") {
  Watched watched(rules(0, 600));
  watched.give(kStart, false);
  CHECK(watched.outstanding.check(kStart + 600 * kSecond - 1).overdue.is_ok());
  const Status overdue = watched.outstanding.check(kStart + 600 * kSecond).overdue;
  CHECK(overdue.rank == 3);
  CHECK(overdue.message ==
        "ALLREDUCE x is not done on device 1 of rank 3 after 600 s: what its inputs are computed "
        "with there does not end (HVD_GPU_TIMEOUT)");
}

TEST_CASE("device: progress extends the deadline") {
  Watched watched(rules(0, 100));
  std::int64_t now = kStart;
  FakeDevicePtr before = watched.give(now);
  for (int i = 0; i < 20; ++i) {  // one is done every 75 s, the next waits behind it
    const FakeDevicePtr next = watched.give(now + 1);
    CHECK(watched.look_on(now, now + 75 * kSecond).is_ok());
    std::exchange(before, next)->held = false;
    CHECK(watched.outstanding.now(now).size() == 1);
  }
  CHECK(watched.look_on(now, now + 100 * kSecond).is_ok());
  CHECK(watched.look_on(now, now + 25 * kSecond).code == Code::kStalled);
  before->held = false;
  CHECK(watched.outstanding.now(now).empty());
}

TEST_CASE("device: F8 after the process itself was stopped the deadline starts again") {
  Watched watched(rules(0, 100));
  std::int64_t now = kStart;
  watched.give(now);
  CHECK(watched.look_on(now, now + 75 * kSecond).is_ok());
  now += 3600 * kSecond;
  CHECK(watched.look_on(now, now + 100 * kSecond).is_ok());
  CHECK(watched.look_on(now, now + 50 * kSecond).code == Code::kStalled);
}

TEST_CASE("device: completed operations are not kept if nothing queries them") {
  Watched watched(rules(60, 600));
  std::vector<FakeDevicePtr> devices;
  for (int i = 0; i < 1000; ++i) {
    devices.push_back(watched.give(kStart + i));
    devices.back()->held = false;
  }
  const auto kept = std::count_if(devices.begin(), devices.end(),
                                  [](const FakeDevicePtr& one) { return one.use_count() > 1; });
  CHECK(kept <= 64);
  CHECK(watched.outstanding.now(kStart + 1000).empty());
  CHECK(watched.outstanding.check(kStart + 3600 * kSecond).overdue.is_ok());
}

TEST_CASE("device: without limits the devices are not checked") {
  CHECK(Outstanding(rules(0, 0)).check_interval() < 0);
  CHECK(Outstanding(rules(0, 8)).check_interval() == 2 * kSecond);
  CHECK(Outstanding(rules(8, 0)).check_interval() == 2 * kSecond);
  CHECK(Outstanding(rules(8, 4)).check_interval() == kSecond);
  CHECK(Outstanding(rules(0, 1e-9)).check_interval() == kSecond / 1000);
}

}  // namespace hvd::test
