// What an element becomes, on the host's build of the kernels; how work is cut into launches; what
// is refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/kernels/card.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/loops.cuh"
#include "tensor/half.h"

namespace hvd::test {
namespace {

using cuda::MoveCall;
using cuda::Piece;

// A launch as the driver was given it.
struct Launch {
  CUfunction function;
  unsigned blocks, threads;
  MoveCall call;
};
std::vector<Launch> launches;

CUresult record(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads,
                unsigned, unsigned, unsigned, CUstream, void** parameters, void**) {
  launches.push_back({function, blocks, threads, *static_cast<MoveCall*>(parameters[0])});
  return CUDA_SUCCESS;
}
CUresult refuse(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                CUstream, void**, void**) {
  return CUDA_ERROR_LAUNCH_FAILED;
}

cuda::Driver fake_that(decltype(&record) launch) {
  cuda::Driver driver = fake_driver();
  driver.cuLaunchKernel = launch;
  return driver;
}

void* address(std::uintptr_t at) { return reinterpret_cast<void*>(at); }  // of nothing

bool says(const Status& status, const std::string& words) {
  return status.message.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("kernels: all values of the 16-bit floats widen and narrow as half.h does") {
  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float half = to_float(Float16{bits}), brain = to_float(Bfloat16{bits});
    wrong += bits_of(cuda::Half::widen(bits)) != bits_of(half) ? 1 : 0;
    wrong += bits_of(cuda::Brain::widen(bits)) != bits_of(brain) ? 1 : 0;
    wrong += cuda::Half::narrow(half) != to_float16(half).bits ? 1 : 0;
    wrong += cuda::Brain::narrow(brain) != to_bfloat16(brain).bits ? 1 : 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("kernels: floats of all kinds narrow to 16 bits as half.h does") {
  std::size_t wrong = 0;
  const auto compare = [&](std::uint32_t bits) {
    const float value = float_of(bits);
    wrong += cuda::Half::narrow(value) != to_float16(value).bits ? 1 : 0;
    wrong += cuda::Brain::narrow(value) != to_bfloat16(value).bits ? 1 : 0;
  };
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFU; bits += 1021)
    compare(static_cast<std::uint32_t>(bits));
  for (std::uint32_t upper = 0; upper < 65536; ++upper)  // midpoints of both, and beside them
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x2FFFU, 0x3000U,
                                      0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      compare(upper << 16U | lower);
  CHECK(wrong == 0);
}

TEST_CASE("kernels: on which devices these tests run") {
  const auto real = cuda::load_driver("");
  if (!real) {
    MESSAGE("only on the fake one: ", real.status().message);
    CHECK(real.status().code == Code::kUnavailable);
    return;
  }
  char name[256] = {};
  CHECK(real.value()->cuDeviceGetName(name, sizeof name, 0) == CUDA_SUCCESS);
  MESSAGE("on the fake one and on ", std::string(name));
}

TEST_CASE("kernels: many pieces are one launch, shared out by their elements") {
  const cuda::Driver driver = fake_that(record);
  const Card card(driver);
  std::vector<Piece> pieces;
  for (std::uintptr_t k = 0; k < 100; ++k)
    pieces.push_back({address(0x100000 + k * 64), address(0x200000 + k * 64), 16});
  pieces.push_back({address(0x1000000), address(0x2000000), 1 << 20});  // 256 tiles
  pieces.push_back({address(0x1000000), address(0x2000000), 0});
  launches.clear();
  REQUIRE(card.kernels->prescale(card.stream, {}, pieces));
  REQUIRE(launches.size() == 1);
  CHECK(launches[0].threads == cuda::kThreads);
  CHECK(launches[0].blocks == 356);
  CHECK(launches[0].call.pieces == 101);
  CHECK(launches[0].call.tiles == 356);
  CHECK(cuda::piece_of(launches[0].call, 99) == 99);
  CHECK(cuda::piece_of(launches[0].call, 100) == 100);
  CHECK(cuda::piece_of(launches[0].call, 355) == 100);
  launches.clear();
  pieces.assign(2 * cuda::kMostMoved + 1, {address(0x1000), address(0x2000), 3});
  REQUIRE(card.kernels->prescale(card.stream, {}, pieces));
  REQUIRE(launches.size() == 3);
  CHECK(launches[2].call.pieces == 1);
}

TEST_CASE("kernels: a piece too long for one entry is cut, and the grid is bounded") {
  const cuda::Driver driver = fake_that(record);
  const Card card(driver);
  const std::size_t entry = std::size_t{1} << 30U;
  const Reduction doubled{Dtype::kComplex128, ReduceOp::kSum, {2.0, 1.0, 1.0}};
  launches.clear();
  REQUIRE(card.kernels->prescale(card.stream, doubled, {{address(16), address(64), entry + 5}}));
  REQUIRE(launches.size() == 1);
  const MoveCall& call = launches[0].call;
  REQUIRE(call.pieces == 3);  // two lanes of 8 bytes per element
  CHECK(call.piece[0].lanes == entry);
  CHECK(call.piece[1].in == address(16 + 8 * entry));
  CHECK(call.piece[1].out == address(64 + 8 * entry));
  CHECK(call.piece[2].lanes == 10);
  CHECK(call.tiles == 2 * entry * 8 / cuda::kTileBytes + 1);
  CHECK(launches[0].blocks == 65536);
}

TEST_CASE("kernels: nothing to do launches nothing") {
  const cuda::Driver driver = fake_that(record);
  const Card card(driver);
  launches.clear();
  CHECK(card.kernels->prescale(card.stream, {}, {}));
  CHECK(card.kernels->prescale(card.stream, {}, {{address(64), address(64), 100}}));
  CHECK(card.kernels->scale(card.stream, {}, {{nullptr, nullptr, 0}}));
  CHECK(card.kernels->fold(card.stream, {}, nullptr, {nullptr, nullptr}, 0));
  CHECK(card.kernels->fill_identity(card.stream, Dtype::kInt8, ReduceOp::kMin, nullptr, 0));
  CHECK(launches.empty());
}

TEST_CASE("kernels: unsupported operations are refused by name") {
  const Card card(fake_driver());
  const auto fold = [&](Dtype dtype, ReduceOp op, std::size_t inputs) {
    return card.kernels->fold(card.stream, {dtype, op, {}}, address(64),
                              std::vector<const void*>(inputs, address(64)), 4);
  };
  CHECK(says(fold(Dtype::kComplex64, ReduceOp::kMin, 2), "complex64 knows no Min"));
  CHECK(says(fold(Dtype::kFloat8E4m3, ReduceOp::kSum, 2), "float8_e4m3fn knows no Sum"));
  CHECK(says(fold(Dtype::kInt32, ReduceOp::kSum, 0), "1 to 64 inputs, not 0"));
  CHECK(says(fold(Dtype::kInt32, ReduceOp::kSum, 65), "1 to 64 inputs, not 65"));
  const Reduction halved{Dtype::kFloat8E5m2, ReduceOp::kSum, {0.5, 1.0, 1.0}};
  const Status scaled = card.kernels->prescale(card.stream, halved, {{nullptr, nullptr, 1}});
  CHECK(scaled.code == Code::kInvalidArgument);
  CHECK(says(scaled, "float8_e5m2 is moved and never scaled"));
}

TEST_CASE("kernels: a launch that fails names the kernel and the driver's error") {
  const cuda::Driver driver = fake_that(refuse);
  const Card card(driver);
  const Reduction average{Dtype::kBfloat16, ReduceOp::kAverage, {}};
  const Status status = card.kernels->fold(card.stream, average, address(64), {address(64)}, 4);
  CHECK(status.code == Code::kInternal);
  CHECK(says(status, "hvd_add_bf16"));
  CHECK(says(status, "CUDA_ERROR_LAUNCH_FAILED"));
}

}  // namespace hvd::test
