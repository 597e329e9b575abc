// Operations are given to the streams one after the other, the host is as far ahead as
// device.h (InFlightLimiter) lets it be: right results, however the streams get on.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;
using hvd::test::filled_with;

constexpr std::size_t kElements = 48;
constexpr int kSize = 3;

Bytes numbers(int first) {
  int next = first;
  return filled_with<std::int32_t>(kElements, [&] { return next++; });
}

// What the sum over all ranks of numbers(rank + number) is.
Bytes summed(int number) {
  int next = kSize * number + kSize * (kSize - 1) / 2;
  return filled_with<std::int32_t>(kElements, [&] {
    const int sum = next;
    next += kSize;
    return sum;
  });
}

// Opens and closes a stream's proxy at odd moments, until it must leave it open.
class Stutter {
 public:
  Stutter(CUstream stream, unsigned seed) : stream_(stream) {
    thread_ = std::thread([this, seed] { run(seed); });
  }
  ~Stutter() {
    ended_.store(true);
    thread_.join();
  }
  Stutter(const Stutter&) = delete;
  Stutter& operator=(const Stutter&) = delete;

 private:
  void run(unsigned seed) {
    std::mt19937 random(seed);
    while (!ended_.load()) {
      fake_cuda_hold(stream_);
      for (auto turn = random() % 50; turn > 0; --turn) std::this_thread::yield();
      fake_cuda_release(stream_);
      for (auto turn = random() % 50; turn > 0; --turn) std::this_thread::yield();
    }
    fake_cuda_release(stream_);
  }

  CUstream stream_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Each operation reads what the one before has written, so none may be early or late.
void go_round(Backend& backend, const Group& group, int round, std::byte* x, std::byte* y,
              std::byte* z) {
  constexpr std::size_t kShare = kElements / kSize, kPart = kShare * sizeof(std::int32_t);
  const Reduction sum{Dtype::kInt32, ReduceOp::kSum, {}};
  Exchange exchange;
  Gather gather;
  gather.in = z;
  std::vector<std::size_t> begins{0};
  for (std::size_t group_rank = 0; group_rank < kSize; ++group_rank) {
    exchange.in.push_back(x + group_rank * kPart);
    exchange.out.push_back(y + group_rank * kPart);
    exchange.in_bytes.push_back(kPart);
    exchange.out_bytes.push_back(kPart);
    gather.out.push_back(y + group_rank * kPart);
    gather.bytes.push_back(kPart);
    begins.push_back(begins.back() + kShare);
  }
  REQUIRE(backend.alltoall(group, exchange).message == "");
  REQUIRE(backend.reducescatter(group, {{y, z, begins}}, sum).message == "");
  REQUIRE(backend.allgather(group, {gather}).message == "");
  REQUIRE(backend.broadcast(group, {{y, y, kSize * kPart}}, round % kSize).message == "");
  REQUIRE(backend.allreduce(group, {{y, x, kElements}}, sum).message == "");
}

}  // namespace

TEST_CASE("ring: allreduces are queued while no stream moves, then 1000 of them are right") {
  constexpr int kOperations = 1000;
  constexpr int kHeld = 30;  // fewer steps than the host may be ahead
  on_rings({kSize, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(kSize, rank.number());
    const auto ring = rank.ring(group);
    const Reduction sum{Dtype::kInt32, ReduceOp::kSum, {}};
    std::vector<OnDevice> tensors;
    for (int number = 0; number < kOperations; ++number)
      tensors.emplace_back(rank, numbers(number + rank.number()));
    fake_cuda_hold(rank.device().stream());
    for (int number = 0; number < kOperations; ++number) {
      std::byte* const data = tensors[static_cast<std::size_t>(number)].data();
      REQUIRE(ring->allreduce(group, {{data, data, kElements}}, sum).is_ok());
      if (number + 1 != kHeld) continue;
      CHECK(!rank.device().idle().value());
      fake_cuda_release(rank.device().stream());
    }
    for (int number = 0; number < kOperations; ++number) {
      INFO("operation ", number);
      CHECK(tensors[static_cast<std::size_t>(number)].read() == summed(number));
    }
  });
}

TEST_CASE("ring: a chain of operations of all kinds, through streams that stutter") {
  on_rings({kSize, 1, 1024}, [&](Rank& rank) {
    const Group group = everybody(kSize, rank.number());
    const auto ring = rank.ring(group);
    Bytes x = numbers(rank.number()), y(x.size()), z(x.size());
    const OnDevice at_x(rank, x), at_y(rank, y), at_z(rank, z);
    const Stutter stutter(rank.device().stream(), static_cast<unsigned>(rank.number()));
    for (int round = 0; round < 60; ++round) {
      go_round(*ring, group, round, at_x.data(), at_y.data(), at_z.data());
      go_round(rank.cpu(), group, round, x.data(), y.data(), z.data());
    }
    CHECK(at_x.read() == x);
    CHECK(at_y.read() == y);
    CHECK(at_z.read() == z);
  });
}

}  // namespace hvd::cuda::test
