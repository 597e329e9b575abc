// The persistent ring: ranks as streams of one device, each with its own memory, and the kernels of
// all of them at the same time. The bytes are hvd::fold's, in the order of
// collective/backend/backend.h.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/backend/plan.h"
#include "cuda/kernels/card.h"
#include "tensor/tensor_reference.h"

namespace hvd::test {
namespace {

using cuda::RingPart;
using cuda::RingShape;

// Small, so that there are many segments; the blocks must fit a device four times.
constexpr RingShape kShape{3, 2, 512};

// A stream and a zeroed memory per rank.
class RingOfRanks {
 public:
  RingOfRanks(const Card& card, std::size_t size) : card_(card) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      memories_.emplace_back(card, std::vector<unsigned char>(kShape.bytes()), 0);
      streams_.emplace_back();
      REQUIRE(card.driver.cuStreamCreateWithPriority(&streams_.back(), CU_STREAM_NON_BLOCKING, 0) ==
              CUDA_SUCCESS);
    }
  }
  ~RingOfRanks() {
    for (const CUstream stream : streams_) card_.driver.cuStreamDestroy(stream);
  }
  RingOfRanks(const RingOfRanks&) = delete;
  RingOfRanks& operator=(const RingOfRanks&) = delete;

  std::size_t size() const { return memories_.size(); }
  Status start(std::size_t rank, const Reduction& reduction, const void* in, void* out,
               std::size_t count) const {
    const RingPart part{in,
                        out,
                        count,
                        static_cast<int>(rank),
                        static_cast<int>(size()),
                        memories_[rank].data(),
                        memories_[(rank + size() - 1) % size()].data(),
                        memories_[(rank + 1) % size()].data()};
    return card_.kernels->ring_allreduce(streams_[rank], reduction, kShape, part);
  }
  void finish(std::size_t rank) const {
    REQUIRE(card_.driver.cuStreamSynchronize(streams_[rank]) == CUDA_SUCCESS);
  }
  void abort(std::size_t rank) const {
    CUstreamBatchMemOpParams one{};
    one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = reinterpret_cast<CUdeviceptr>(memories_[rank].data());
    one.writeValue.value = 1;
    REQUIRE(card_.driver.cuStreamBatchMemOp(card_.stream, 1, &one, 0) == CUDA_SUCCESS);
    REQUIRE(card_.driver.cuStreamSynchronize(card_.stream) == CUDA_SUCCESS);
  }

 private:
  const Card& card_;
  std::vector<Placed<unsigned char>> memories_;
  std::vector<CUstream> streams_;
};

// Slice o is folded over the members o + 1, ..., o.
template <typename T>
std::vector<T> expected_of(const Reduction& reduction, const std::vector<std::vector<T>>& inputs) {
  const std::size_t n = inputs.size(), count = inputs[0].size();
  std::vector<T> out(count);
  for (std::size_t owner = 0; owner < n; ++owner) {
    const std::size_t begin = slice_begin(count, owner, n);
    const std::size_t length = slice_begin(count, owner + 1, n) - begin;
    std::vector<std::vector<T>> ready(n, std::vector<T>(length));
    std::vector<const void*> pointers;
    for (std::size_t k = 1; k <= n; ++k) {
      prescale(reduction, ready[k - 1].data(), inputs[(owner + k) % n].data() + begin, length);
      pointers.push_back(ready[k - 1].data());
    }
    fold(reduction, out.data() + begin, nullptr, 0, pointers.data(), n, length);
  }
  return out;
}

template <typename T>
void check_operation(const Card& card, const RingOfRanks& ring, const Scaling& scaling,
                     std::size_t count, std::size_t offset, bool in_place) {
  const Reduction reduction{Traits<T>::kDtype, ReduceOp::kAverage, scaling};
  std::vector<std::vector<T>> inputs;
  std::vector<Placed<T>> in, out;
  for (std::size_t rank = 0; rank < ring.size(); ++rank) {
    inputs.push_back(bits<T>(count, 61 + rank, true));
    in.emplace_back(card, inputs.back(), offset * sizeof(T));
    out.emplace_back(card, inputs.back(), 0);
  }
  for (std::size_t rank = 0; rank < ring.size(); ++rank)
    REQUIRE(ring.start(rank, reduction, in[rank].data(),
                       in_place ? in[rank].data() : out[rank].data(), count));
  const auto expected = expected_of(reduction, inputs);
  for (std::size_t rank = 0; rank < ring.size(); ++rank) {
    ring.finish(rank);
    CHECK(differences((in_place ? in : out)[rank].values(), expected) == 0);
    CHECK(differences(in[rank].values(), in_place ? expected : inputs[rank]) == 0);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("kernels ring: the bytes of the fixed order, for any length and number of ranks",
                   T, Float16, Bfloat16, float, double) {
  on_every_card([](const Card& card) {
    for (const std::size_t size : {2, 3, 4}) {
      CAPTURE(size);
      const RingOfRanks ring(card, size);  // one for all of them: counters go on
      for (const std::size_t count : {0, 1, 2, 5, 100, 1024, 5003}) {
        CAPTURE(count);
        check_operation<T>(card, ring, {}, count, 0, false);
        check_operation<T>(card, ring, {0.3, 1.7, static_cast<double>(size)}, count, 1, false);
        check_operation<T>(card, ring, {1.0, 1.0, static_cast<double>(size)}, count, 0, true);
      }
    }
  });
}

TEST_CASE("kernels ring: the abort word ends a rank whose neighbour is missing") {
  on_every_card([](const Card& card) {
    const RingOfRanks ring(card, 2);
    const Placed<float> values(card, std::vector<float>(5000, 1.0F), 0);
    REQUIRE(ring.start(0, {}, values.data(), values.data(), 5000));
    ring.abort(0);
    ring.finish(0);
    ring.abort(1);
    REQUIRE(ring.start(1, {}, values.data(), values.data(), 5000));  // now there is nobody
    ring.finish(1);
  });
}

TEST_CASE("kernels ring: unsupported reductions are refused by name") {
  const Card card(fake_driver());
  const Status maximum = card.kernels->ring_allreduce(
      card.stream, {Dtype::kFloat32, ReduceOp::kMax, {}}, kShape, RingPart{});
  CHECK(maximum.code == Code::kInvalidArgument);
  CHECK(maximum.message == "Max of float32 does not go by the persistent ring");
  CHECK(!card.kernels->ring_allreduce(card.stream, {Dtype::kInt32, ReduceOp::kSum, {}}, kShape,
                                      RingPart{}));
}

}  // namespace hvd::test
