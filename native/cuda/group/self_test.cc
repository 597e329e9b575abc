#include "cuda/group/self_test.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "base/backoff.h"
#include "base/deadline.h"
#include "cuda/device/pinned.h"

namespace hvd::cuda {

namespace {

constexpr int kAnyGroup = std::numeric_limits<int>::max();
constexpr int kMostPaired = 64;
const Reduction kSum{Dtype::kFloat32, ReduceOp::kSum, {}};

std::size_t members_of(const Group& group) { return static_cast<std::size_t>(group.size()); }
std::size_t own_rank(const Group& group) { return static_cast<std::size_t>(group.group_rank); }
std::size_t share_of(const Group& group, std::size_t count) { return count / members_of(group); }
std::size_t last_of(const Group& group) { return members_of(group) - 1; }

std::byte* at(void* numbers, std::size_t i) {
  return static_cast<std::byte*>(numbers) + i * sizeof(float);
}

float sum(const Group& group, std::size_t /*count*/, std::size_t i) {
  float sum = 0;
  for (std::size_t group_rank = 0; group_rank < members_of(group); ++group_rank)
    sum += number_of(group_rank, i);
  return sum;
}

Status enqueue_sum(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  return backend.allreduce(group, {{numbers.in, numbers.out, numbers.count}}, kSum);
}

Status enqueue_broadcast(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  return backend.broadcast(group, {{numbers.in, numbers.out, numbers.count * sizeof(float)}},
                           static_cast<int>(last_of(group)));
}

float broadcast(const Group& group, std::size_t /*count*/, std::size_t i) {
  return number_of(last_of(group), i);
}

Status enqueue_gather(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  const std::size_t share = share_of(group, numbers.count);
  Gather gather;
  gather.in = at(numbers.in, 0);
  for (std::size_t group_rank = 0; group_rank < members_of(group); ++group_rank) {
    gather.out.push_back(at(numbers.out, group_rank * share));
    gather.bytes.push_back(share * sizeof(float));
  }
  return backend.allgather(group, {gather});
}

float gather(const Group& group, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(group, count);
  return number_of(i / share, i % share);
}

Status enqueue_exchange(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  const std::size_t share = share_of(group, numbers.count);
  Exchange exchange;
  for (std::size_t group_rank = 0; group_rank < members_of(group); ++group_rank) {
    exchange.in.push_back(at(numbers.in, group_rank * share));
    exchange.out.push_back(at(numbers.out, group_rank * share));
  }
  exchange.in_bytes.assign(members_of(group), share * sizeof(float));
  exchange.out_bytes = exchange.in_bytes;
  return backend.alltoall(group, exchange);
}

float exchange(const Group& group, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(group, count);
  return number_of(i / share, own_rank(group) * share + i % share);
}

Status enqueue_scatter(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  Scatter scatter{numbers.in, numbers.out, {}};
  for (std::size_t group_rank = 0; group_rank <= members_of(group); ++group_rank)
    scatter.begins.push_back(group_rank * share_of(group, numbers.count));
  return backend.reducescatter(group, {scatter}, kSum);
}

float scatter(const Group& group, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(group, count);
  return i < share ? sum(group, count, own_rank(group) * share + i) : 0;
}

}  // namespace

float number_of(std::size_t group_rank, std::size_t i) {
  return static_cast<float>((i * 7 + group_rank * 13) % 251);
}

const std::vector<SelfTestCase>& self_test_cases() {
  static const std::vector<SelfTestCase> kAll = {
      {"sum", kAnyGroup, enqueue_sum, sum},
      {"broadcast", kAnyGroup, enqueue_broadcast, broadcast},
      {"gather", kAnyGroup, enqueue_gather, gather},
      {"exchange", kMostPaired, enqueue_exchange, exchange},
      {"reducescatter", kAnyGroup, enqueue_scatter, scatter},
  };
  return kAll;
}

namespace {

constexpr std::size_t kMostCount = std::size_t{1} << 20U;  // floats
constexpr std::size_t kArenaShare = 16;  // a lap has that part of an arena: a few rounds at most
constexpr int kLaps = 4;                 // of each algorithm; the first one warms up
constexpr double kEndSeconds = 5;
constexpr std::size_t kMostForms = 2;
constexpr double kLong = std::numeric_limits<double>::infinity();

using Seconds = std::array<double, kMostForms>;  // of a algorithm's fastest lap

// Of a lap: the same on all members, with a share for each.
std::size_t count_of(const BootstrapGroup& bootstrap) {
  const std::size_t members = bootstrap.members.size();
  const std::size_t most = least_arena(bootstrap.members) / kArenaShare / sizeof(float);
  return std::max<std::size_t>(1, std::min(kMostCount, most) / members) * members;
}

class SelfTest {
 public:
  SelfTest(DeviceBackend& backend, const BootstrapGroup& bootstrap, const LapSeconds& seconds_of)
      : backend_(backend),
        bootstrap_(bootstrap),
        device_(*bootstrap.device),
        seconds_of_(seconds_of),
        host_(count_of(bootstrap)) {
    backend_.set_self_test(bootstrap.self_test_seconds);
  }
  ~SelfTest() { backend_.set_self_test(0); }
  SelfTest(const SelfTest&) = delete;
  SelfTest& operator=(const SelfTest&) = delete;

  Status prepare() {
    for (std::shared_ptr<void>* const memory : {&in_, &out_}) {
      auto allocated = device_.allocate(bytes());
      if (!allocated) return allocated.status();
      *memory = allocated.take();
    }
    for (std::size_t i = 0; i < host_.size(); ++i)
      host_[i] = number_of(static_cast<std::size_t>(bootstrap_.group.group_rank), i);
    Status status = catch_up();  // a copy of memory that is not pinned waits for the stream
    if (status) status = copy(in_.get(), host_.data());
    return status ? catch_up() : status;
  }

  // Every algorithm, every collective. The same on all members.
  Status run(Seconds& seconds) {
    seconds.fill(kLong);
    for (std::size_t algorithm = 0; algorithm < backend_.algorithms(); ++algorithm) {
      backend_.take(algorithm);
      Status status = met(pass(self_test_cases().front(), kLaps, seconds[algorithm]));
      if (!status) return status;
    }
    for (auto next = self_test_cases().begin() + 1; next != self_test_cases().end(); ++next) {
      if (bootstrap_.group.size() > next->most_members) continue;
      double ignored = kLong;
      Status status = met(pass(*next, 1, ignored));
      if (!status) return status;
    }
    return Status::ok();
  }

 private:
  std::size_t bytes() const { return host_.size() * sizeof(float); }

  // After a failure no device waits for another any more.
  void give_up() {
    const Deadline deadline = Deadline::after_seconds(kEndSeconds);
    for (Polling polling = Polling::of_device(); !deadline.expired(); polling.pause()) {
      const Result<bool> idle = device_.idle();
      if (!idle || idle.value()) return;
      if (!backend_.abort_waits()) return;
    }
  }

  // The members exchange failures before they continue, so none waits for a failed one.
  Status met(const Status& mine) {
    if (!mine) give_up();
    return all_went_well(bootstrap_, mine);
  }

  // fastest: of the laps but the first.
  Status pass(const SelfTestCase& test_case, int laps, double& fastest) {
    Status status = clear();
    for (int lap = 0; lap < laps && status; ++lap) {
      const Result<double> took = run_lap(test_case);
      if (!took) return took.status();
      if (lap > 0) fastest = std::min(fastest, took.value());
    }
    return status ? check(test_case) : status;
  }

  Status copy(void* to, const void* from) {
    Copies copies(device_);
    copies.add(to, from, bytes());
    return copies.finish();
  }

  // What one has brought about must not pass for the next one's.
  Status clear() {
    const Driver& driver = device_.driver();
    return driver.check(driver.cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(out_.get()), 0,
                                                host_.size(), device_.stream()),
                        "cuMemsetD32Async of a self-test's results");
  }

  Result<double> run_lap(const SelfTestCase& test_case) {
    auto begun = device_.recorded(device_.stream(), Device::Timing::kOn);
    if (!begun) return begun.status();
    Status status =
        test_case.enqueue(backend_, bootstrap_.group, {in_.get(), out_.get(), host_.size()});
    if (!status) return status;
    auto done = device_.recorded(device_.stream(), Device::Timing::kOn);
    if (!done) return done.status();
    status = reach(done.value());
    if (!status) return status;
    return seconds_of_(device_, begun.value(), done.value());
  }

  Status reach(const Device::Event& event) {
    Status status = wait_for(device_, event.get(), bootstrap_.mesh->abort(),
                             Deadline::after_seconds(bootstrap_.self_test_seconds));
    if (status.code != Code::kTimeout) return status;
    if (Status known = backend_.health(); !known) return known;
    return failed("a first operation did not come to its end within " +
                      std::to_string(static_cast<int>(bootstrap_.self_test_seconds)) + " s",
                  -1);  // who it waits for knows why
  }

  Status catch_up() {
    auto here = device_.recorded(device_.stream());
    return here ? reach(here.value()) : here.status();
  }

  Status check(const SelfTestCase& test_case) {
    Status status = copy(host_.data(), out_.get());
    if (status) status = catch_up();
    if (!status) return status;
    for (std::size_t i = 0; i < host_.size(); ++i)
      if (host_[i] != test_case.result(bootstrap_.group, host_.size(), i))
        return failed(std::string("a first ") + test_case.what + " was wrong", device_.site().rank);
    return status;
  }

  Status failed(const std::string& what, int rank) const {
    return Status::make(Code::kUnavailable, device_.site().name + ": " + what, "cuda/self_test",
                        rank);
  }

  DeviceBackend& backend_;
  const BootstrapGroup& bootstrap_;
  Device& device_;
  const LapSeconds& seconds_of_;
  // Not pinned: giving that back would wait for the whole device, and so for ranks that are threads
  // of this process.
  std::vector<float> host_;
  std::shared_ptr<void> in_, out_;
};

bool anybody(const std::vector<std::int32_t>& told) {
  return std::any_of(told.begin(), told.end(), [](std::int32_t word) { return word != 0; });
}

// Of each algorithm the slowest member; the same on all of them.
Seconds slowest_of(const std::vector<Seconds>& all) {
  Seconds slowest{};
  for (const Seconds& member : all)
    for (std::size_t algorithm = 0; algorithm < kMostForms; ++algorithm)
      slowest[algorithm] = std::max(slowest[algorithm], member[algorithm]);
  return slowest;
}

}  // namespace

Result<double> seconds_of_lap(const Device& device, const Device::Event& begun,
                              const Device::Event& done) {
  const auto took = device.seconds_between(begun, done);
  if (!took) return took.status();
  return took.value().value_or(kLong);
}

Result<double> run_self_test(DeviceBackend& backend, const BootstrapGroup& bootstrap,
                             const LapSeconds& seconds_of) {
  const Current current(*bootstrap.device);
  const auto captures = bootstrap_allgather(
      bootstrap,
      std::int32_t{current && bootstrap.device->captures(bootstrap.device->stream()) ? 1 : 0});
  if (!captures) return captures.status();
  if (anybody(captures.value())) return 0.0;
  Seconds seconds{};
  {
    SelfTest self_test(backend, bootstrap, seconds_of);
    Status status = all_went_well(bootstrap, current ? self_test.prepare() : current.status());
    if (status) status = self_test.run(seconds);
    if (!status) return status;
  }
  const auto all = bootstrap_allgather(bootstrap, seconds);
  if (!all) return all.status();
  const Seconds slowest = slowest_of(all.value());
  const auto* const fastest = std::min_element(slowest.begin(), slowest.end());
  backend.take(static_cast<std::size_t>(fastest - slowest.begin()));
  return *fastest;
}

}  // namespace hvd::cuda
