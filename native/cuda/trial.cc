#include "cuda/trial.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "cuda/patience.h"
#include "cuda/pinned.h"

namespace hvd::cuda {
namespace {

constexpr std::size_t kMostCount = std::size_t{1} << 20U;  // floats
constexpr std::size_t kArenaShare = 16;  // a lap has that part of an arena: a few rounds at most
constexpr int kLaps = 4;                 // of each form; the first one warms up
constexpr double kEndSeconds = 5;
constexpr std::size_t kMostForms = 2;

using Seconds = std::array<double, kMostForms>;  // of a form's fastest lap

// Small whole numbers: their sums are exact in any order.
float number_of(std::size_t place, std::size_t i) {
  return static_cast<float>((i * 7 + place * 13) % 251);
}

class Trial {
 public:
  Trial(DeviceBackend& backend, const Party& party, double lap_seconds)
      : backend_(backend),
        party_(party),
        device_(*party.device),
        count_(std::min(kMostCount, least_arena(party.members) / kArenaShare / sizeof(float))),
        lap_seconds_(lap_seconds),
        numbers_(count_) {}

  Status prepare() {
    for (std::shared_ptr<void>* const memory : {&in_, &out_}) {
      auto allocated = device_.allocate(count_ * sizeof(float));
      if (!allocated) return allocated.status();
      *memory = allocated.take();
    }
    for (std::size_t i = 0; i < count_; ++i)
      numbers_[i] = number_of(static_cast<std::size_t>(party_.team.place), i);
    Status status = catch_up();  // a copy of memory that is not pinned waits for the stream
    if (status) status = copy(in_.get(), numbers_.data());
    return status ? catch_up() : status;
  }

  // Every form.
  Status run(Seconds& seconds) {
    seconds.fill(std::numeric_limits<double>::infinity());
    for (std::size_t form = 0; form < backend_.forms(); ++form) {
      backend_.take(form);
      Status status = clear();
      for (int lap = 0; lap < kLaps && status; ++lap) {
        double took = 0;
        status = run_lap(took);
        if (lap > 0) seconds[form] = std::min(seconds[form], took);
      }
      if (status) status = check();
      if (!status) return status;
    }
    return Status::ok();
  }

  // Behind a failure nobody's device waits for anybody any more.
  void give_up() {
    const Deadline deadline = Deadline::after_seconds(kEndSeconds);
    for (Patience patience; !deadline.expired(); patience.pause()) {
      const Result<bool> idle = device_.idle();
      if (!idle || idle.value()) return;
      if (!backend_.let_go()) return;
    }
  }

 private:
  Status copy(void* to, const void* from) {
    Copies copies(device_);
    copies.add(to, from, count_ * sizeof(float));
    return copies.finish();
  }

  // What another form has summed must not pass for this one's.
  Status clear() {
    const Driver& driver = device_.driver();
    return driver.check(driver.cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(out_.get()), 0,
                                                count_, device_.stream()),
                        "cuMemsetD32Async of a trial's sums");
  }

  Status run_lap(double& seconds) {
    auto begun = device_.recorded(device_.stream(), Device::Timing::kOn);
    if (!begun) return begun.status();
    Status status = backend_.allreduce(party_.team, {{in_.get(), out_.get(), count_}},
                                       {Dtype::kFloat32, ReduceOp::kSum, {}});
    if (!status) return status;
    auto done = device_.recorded(device_.stream(), Device::Timing::kOn);
    if (!done) return done.status();
    status = reach(done.value());
    if (!status) return status;
    float milliseconds = 0;
    status = device_.driver().check(
        device_.driver().cuEventElapsedTime(&milliseconds, begun.value().get(), done.value().get()),
        "cuEventElapsedTime of a trial");
    seconds = static_cast<double>(milliseconds) / 1e3;
    return status;
  }

  Status reach(const Device::Event& event) {
    const Deadline deadline = Deadline::after_seconds(lap_seconds_);
    for (Patience patience;; patience.pause()) {
      const Result<bool> reached = device_.reached(event.get());
      if (!reached) return reached.status();
      if (reached.value()) return Status::ok();
      if (party_.mesh->abort().raised()) return party_.mesh->abort().cause();
      if (deadline.expired())
        return failed("a first sum did not come within " +
                          std::to_string(static_cast<int>(lap_seconds_)) + " s",
                      -1);  // who it waits for knows why
    }
  }

  Status catch_up() {
    auto here = device_.recorded(device_.stream());
    return here ? reach(here.value()) : here.status();
  }

  Status check() {
    Status status = copy(numbers_.data(), out_.get());
    if (status) status = catch_up();
    for (std::size_t i = 0; i < count_ && status; ++i) {
      float expected = 0;
      for (std::size_t place = 0; place < party_.members.size(); ++place)
        expected += number_of(place, i);
      if (numbers_[i] != expected) status = failed("a first sum was wrong", device_.site().rank);
    }
    return status;
  }

  Status failed(const std::string& what, int rank) const {
    return Status::make(Code::kUnavailable, device_.site().name + ": " + what, "cuda/trial", rank);
  }

  DeviceBackend& backend_;
  const Party& party_;
  Device& device_;
  const std::size_t count_;  // of a lap
  const double lap_seconds_;
  // Not pinned: giving that back would wait for the whole device, and so for ranks that are threads
  // of this process.
  std::vector<float> numbers_;
  std::shared_ptr<void> in_, out_;
};

bool anybody(const std::vector<std::int32_t>& told) {
  return std::any_of(told.begin(), told.end(), [](std::int32_t word) { return word != 0; });
}

// The same on all members.
std::size_t fastest(const std::vector<Seconds>& all) {
  Seconds slowest{};
  for (const Seconds& member : all)
    for (std::size_t form = 0; form < kMostForms; ++form)
      slowest[form] = std::max(slowest[form], member[form]);
  return static_cast<std::size_t>(std::min_element(slowest.begin(), slowest.end()) -
                                  slowest.begin());
}

}  // namespace

Status pass_trial(DeviceBackend& backend, const Party& party, double lap_seconds) {
  const Current current(*party.device);
  const auto captures = tell_all(
      party, std::int32_t{current && party.device->captures(party.device->stream()) ? 1 : 0});
  if (!captures) return captures.status();
  if (anybody(captures.value())) return Status::ok();
  Trial trial(backend, party, lap_seconds);
  Status status = all_went_well(party, current ? trial.prepare() : current.status());
  if (!status) return status;
  Seconds seconds{};
  status = trial.run(seconds);
  if (!status) trial.give_up();
  status = all_went_well(party, status);
  if (!status) return status;
  const auto all = tell_all(party, seconds);
  if (!all) return all.status();
  backend.take(fastest(all.value()));
  return Status::ok();
}

}  // namespace hvd::cuda
