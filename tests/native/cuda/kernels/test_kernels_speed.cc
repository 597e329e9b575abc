// How fast many tensors are packed, against one copy of as many bytes within the device, in turns
// in the same run: a figure for docs/gpu-results.md, and a warning below nine tenths. On the fake
// driver, where speed means nothing, it is only seen to run, with small tensors.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cuda/kernels/card.h"

namespace hvd::test {
namespace {

using cuda::Piece;

constexpr int kRounds = 15;

// Elements of 161 tensors: as many, and together as long, as ResNet-50's gradients (25.6 million).
std::vector<std::size_t> lengths(std::size_t unit) {
  std::vector<std::size_t> all;
  for (std::size_t layer = 0; layer < 53; ++layer) {
    all.push_back((16 + layer * 18) * 64 * unit);  // a convolution
    all.insert(all.end(), 2, 8 * unit + layer);    // its normalization
  }
  all.insert(all.end(), {32'000 * unit, 16 * unit});  // the last layer
  return all;
}

// Seconds of what `give` gives to the stream.
template <typename Give>
double seconds(const Card& card, const Give& give) {
  std::array<CUevent, 2> events{};
  for (CUevent& event : events)
    REQUIRE(card.driver.cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(card.driver.cuEventRecord(events[0], card.stream) == CUDA_SUCCESS);
  give();
  REQUIRE(card.driver.cuEventRecord(events[1], card.stream) == CUDA_SUCCESS);
  REQUIRE(card.driver.cuEventSynchronize(events[1]) == CUDA_SUCCESS);
  float milliseconds = 0;
  REQUIRE(card.driver.cuEventElapsedTime(&milliseconds, events[0], events[1]) == CUDA_SUCCESS);
  for (const CUevent event : events) card.driver.cuEventDestroy(event);
  return static_cast<double>(milliseconds) / 1e3;
}

double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
  return all[all.size() / 2];
}

// GB/s that are read and written.
struct Speeds {
  double pack, copy;
};

Speeds measure(const Card& card, std::size_t unit) {
  const std::vector<std::size_t> counts = lengths(unit);
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  const Placed<float> tensors(card, std::vector<float>(total, 1.0F), 0);
  const Placed<float> buffer(card, std::vector<float>(total), 0);
  std::vector<Piece> pieces;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    pieces.push_back({tensors.data() + at, buffer.data() + at, count});
    at += count;
  }
  const Reduction halved{Dtype::kFloat32, ReduceOp::kSum, {0.5, 1.0, 1.0}};
  std::vector<double> packing, copying;
  for (int round = 0; round < kRounds; ++round) {
    packing.push_back(seconds(
        card, [&] { REQUIRE(card.kernels->prescale(card.stream, halved, pieces).message == ""); }));
    copying.push_back(seconds(card, [&] {
      REQUIRE(card.driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(buffer.data()),
                                        reinterpret_cast<CUdeviceptr>(tensors.data()),
                                        total * sizeof(float), card.stream) == CUDA_SUCCESS);
    }));
  }
  CHECK(buffer.values() == std::vector<float>(total, 1.0F));  // the last copy's
  const double bytes = 2.0 * static_cast<double>(total) * sizeof(float) / 1e9;
  return {bytes / median(packing), bytes / median(copying)};
}

}  // namespace

TEST_CASE("speed: packing and scaling 161 tensors, against a copy within the device") {
  measure(Card(fake_driver()), 1);
  const auto real = cuda::load_driver("");
  if (!real) return;  // "kernels: on which devices" says so
  const Speeds speeds = measure(Card(*real.value()), 14);
  MESSAGE("packing and scaling 161 tensors: " << speeds.pack << " GB/s, a copy: " << speeds.copy
                                              << " GB/s, " << 100 * speeds.pack / speeds.copy
                                              << " %");
  WARN(speeds.pack >= 0.9 * speeds.copy);
}

}  // namespace hvd::test
