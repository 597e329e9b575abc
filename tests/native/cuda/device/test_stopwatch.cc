// How long operations take on a device and are waited for: at least as long as the test makes them,
// and nothing where nobody waited.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "cuda/device/event.h"
#include "cuda/rings.h"

namespace hvd::cuda::test {
namespace {

constexpr auto kWhile = std::chrono::milliseconds(5);
constexpr std::int64_t kWhileNs = 5'000'000;

std::shared_ptr<Device> opened() {
  auto device = Device::open(fake_driver(), 0, 0);
  REQUIRE(device.status().message == "");
  return device.take();
}

Device::Event timed(Device& device) {
  auto event = device.recorded(device.stream(), Device::Timing::kOn);
  REQUIRE(event.status().message == "");
  return event.take();
}

void finish(Device& device, const Device::Event& event) {
  while (!device.query(event.get()).value()) std::this_thread::yield();
}

// What the device takes this long for.
Device::Event behind_a_while(Device& device) {
  fake_cuda_hold(device.stream());
  Device::Event event = timed(device);
  std::this_thread::sleep_for(kWhile);  // what is measured
  fake_cuda_release(device.stream());
  finish(device, event);
  return event;
}

}  // namespace

TEST_CASE("stopwatch: running operations count once they are done") {
  fake_cuda_reset();
  {
    const auto device = opened();
    Stopwatch watch;
    const Device::Event begun = timed(*device);
    finish(*device, begun);
    fake_cuda_hold(device->stream());
    const Device::Event done = timed(*device);
    watch.operation(device, begun, done);
    std::this_thread::sleep_for(kWhile);  // what is measured
    CHECK(watch.times().busy_ns == 0);
    fake_cuda_release(device->stream());
    finish(*device, done);
    const std::int64_t first = watch.times().busy_ns;
    CHECK(first >= kWhileNs);
    CHECK(watch.times().busy_ns == first);  // once
    watch.operation(device, done, behind_a_while(*device));
    CHECK(watch.times().busy_ns >= first + kWhileNs);
    CHECK(watch.times().exposed_ns == 0);
  }
  check_nothing_left();
}

TEST_CASE("stopwatch: a waiting stream is exposed, a later one is not") {
  fake_cuda_reset();
  {
    const auto device = opened();
    const auto watch = std::make_shared<Stopwatch>();
    const Device::Event asked = timed(*device);
    finish(*device, asked);
    const Device::Event done = behind_a_while(*device);
    watch->wait(device, asked, done);
    const std::int64_t waited = watch->times().exposed_ns;
    CHECK(waited >= kWhileNs);
    watch->wait(device, behind_a_while(*device), done);
    CHECK(watch->times().exposed_ns == waited);
    CudaEvent event(device, done, watch);
    REQUIRE(event.stream_wait(device->stream()).message == "");
    finish(*device, timed(*device));
    CHECK(watch->times().exposed_ns == waited);
    CHECK(watch->times().busy_ns == 0);
  }
  check_nothing_left();
}

TEST_CASE("stopwatch: without queries it keeps the newest") {
  fake_cuda_reset();
  {
    const auto device = opened();
    Stopwatch watch;
    const Device::Event begun = timed(*device);
    fake_cuda_hold(device->stream());
    for (int i = 0; i < 900; ++i) watch.operation(device, begun, timed(*device));
    CHECK(counts().events < 600);
    fake_cuda_release(device->stream());
    finish(*device, timed(*device));
    CHECK(watch.times().busy_ns > 0);
  }
  check_nothing_left();
}

TEST_CASE("stopwatch: captured operations are not timed") {
  fake_cuda_reset();
  {
    const auto device = opened();
    const auto watch = std::make_shared<Stopwatch>();
    const Device::Event done = timed(*device);
    CudaEvent event(device, done, watch);
    const std::size_t events = counts().events;
    fake_cuda_set_capturing(device->stream(), 1);
    CHECK(device->captures(device->stream()));
    REQUIRE(event.stream_wait(device->stream()).message == "");
    CHECK(counts().events == events);
    fake_cuda_set_capturing(device->stream(), 0);
    finish(*device, done);
  }
  check_nothing_left();
}

TEST_CASE("measured: a device's times by the host's clock, also with a late anchor") {
  fake_cuda_reset();
  for (const bool late : {false, true}) {
    CAPTURE(late);
    const auto device = opened();
    const auto anchor = [&] {
      Device::Event event = device->instant().take();
      finish(*device, event);
      return event;
    };
    Measured measured;
    if (!late) measured.anchor = anchor();
    measured.anchor_ns = measured.enqueued_ns = now_ns();
    measured.queued = timed(*device);
    finish(*device, measured.queued);
    measured.begun = behind_a_while(*device);
    if (late) measured.anchor = anchor();
    const Device::Event done = timed(*device);
    finish(*device, done);
    MeasuredEvent event(device, done, nullptr, measured);
    const auto span = event.span();
    REQUIRE(span.has_value());
    CHECK(span->queued_ns >= measured.enqueued_ns);
    if (late) CHECK(span->queued_ns == measured.enqueued_ns);
    CHECK(span->begun_ns - span->queued_ns >= kWhileNs - 1000);  // floats of milliseconds
    CHECK(span->done_ns >= span->begun_ns);
  }
  check_nothing_left();
}

}  // namespace hvd::cuda::test
