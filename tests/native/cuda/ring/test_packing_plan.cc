// Where elements lie in a half: all of them, none twice, each as its tensor has it to 16 bytes.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>

#include "cuda/ring/arena.h"

namespace hvd::cuda::test {
namespace {

std::byte* address(std::size_t number) {
  return reinterpret_cast<std::byte*>(number);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

TEST_CASE("packing plan: a tensor that is longer than the room goes through in several rounds") {
  PackingPlan layout(4, 2, 32);
  layout.add(0, address(1000), address(2000), 0, 20);
  CHECK(layout.rounds() == 3);
  CHECK(layout.rounds(0) == 3);
  CHECK(layout.rounds(1) == 0);
  CHECK(layout.shares(0, 0).at(0).count == 8);
  CHECK(layout.shares(0, 1).at(0).in == address(1032));
  CHECK(layout.shares(0, 2).at(0).out == address(2064));
  CHECK(layout.extent(0, 2) == 16);
  CHECK(layout.shares(1, 0).empty());
  CHECK(layout.shares(0, 3).empty());
}

TEST_CASE(
    "packing plan: a share lies to 16 bytes as in its tensor, so behind the last one is a gap") {
  PackingPlan layout(2, 1, 64);
  layout.add(0, address(16), nullptr, 0, 5);    // bytes 0 to 10
  layout.add(0, address(102), nullptr, 3, 4);   // 6 bytes into its tensor: at 22
  layout.add(0, address(100), nullptr, 8, 16);  // at 32, all 32 bytes of it
  layout.add(0, address(100), nullptr, 1, 1);
  REQUIRE(layout.rounds() == 2);
  REQUIRE(layout.shares(0, 0).size() == 3);
  CHECK(layout.shares(0, 0)[1].at == 22);
  CHECK(layout.shares(0, 0)[2].at == 32);
  CHECK(layout.extent(0, 0) == 64);
  CHECK(layout.shares(0, 1)[0].at == 2);
  CHECK(layout.shares(0, 0)[1].out == nullptr);
}

TEST_CASE("packing plan: every element has one place") {
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 200; ++turn) {
    const std::size_t width = std::size_t{1} << random() % 5;
    const std::size_t room = 16 * (1 + random() % 20);
    PackingPlan layout(width, 1, room);
    struct Tensor {
      std::size_t begin, before, count, seen;
    };
    std::vector<Tensor> tensors;
    for (std::size_t k = random() % 8; k > 0; --k) {
      const Tensor one{std::size_t{1} << (20 + k), random() % 40, random() % 200, 0};
      tensors.push_back(one);
      layout.add(0, address(one.begin + one.before * width), nullptr, one.before, one.count);
    }
    std::size_t number = 0;
    for (std::size_t round = 0; round < layout.rounds(); ++round) {
      std::size_t filled = 0;
      REQUIRE(!layout.shares(0, round).empty());
      for (const PackedPiece& share : layout.shares(0, round)) {
        while (tensors[number].seen == tensors[number].count) ++number;
        Tensor& tensor = tensors[number];
        const std::size_t in_tensor = (tensor.before + tensor.seen) * width;
        CHECK(share.in == address(tensor.begin + in_tensor));
        CHECK(share.at % 16 == in_tensor % 16);
        CHECK(share.at >= filled);
        CHECK(share.at < filled + 16);
        filled = share.at + share.count * width;
        tensor.seen += share.count;
      }
      CHECK(filled == layout.extent(0, round));
      CHECK(filled <= room);
    }
    for (const Tensor& tensor : tensors) CHECK(tensor.seen == tensor.count);
  }
}

}  // namespace hvd::cuda::test
