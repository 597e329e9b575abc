// Kernels::fold_shared against hvd::prescale and hvd::fold: the same bits, in every member's
// memory, and nothing written beside it.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kernels/card.h"
#include "tensor/tensor_reference.h"

namespace hvd::test {
namespace {

using cuda::Stretch;

// The memories of all members, each of the same elements, and a fold by the one at `group_rank`.
template <typename T>
class Members {
 public:
  // beyond: elements beyond a boundary of 256 bytes, by member.
  Members(const Card& card, std::size_t count, const std::vector<std::size_t>& beyond)
      : card_(card), count_(count) {
    for (std::size_t k = 0; k < beyond.size(); ++k) {
      inputs_.push_back(bits<T>(count, 41 + k, true));
      places_.emplace_back(card, inputs_[k], beyond[k] * sizeof(T));
    }
  }

  // Stretches {begin, end} of the member's memory; the rest stays as it is.
  void check(const Reduction& reduction, std::size_t group_rank,
             const std::vector<std::pair<std::size_t, std::size_t>>& cuts) {
    std::vector<Stretch> stretches;
    for (const auto& [begin, end] : cuts)
      stretches.push_back({places_[group_rank].data() + begin, end - begin});
    const Status status =
        card_.kernels->fold_shared(card_.stream, reduction, stretches, offsets_of(group_rank));
    REQUIRE(status.message == "");
    const std::vector<T> folded = on_host(reduction, group_rank);
    for (std::size_t k = 0; k < places_.size(); ++k) {
      std::vector<T> expected = inputs_[k];
      for (const auto& [begin, end] : cuts)
        for (std::size_t i = begin; i < end; ++i) expected[i] = folded[i];
      CHECK(differences(places_[k].values(), expected) == 0);
    }
  }

 private:
  // In the order of the fold: the next group rank first, the own one last.
  std::vector<std::ptrdiff_t> offsets_of(std::size_t group_rank) const {
    std::vector<std::ptrdiff_t> offsets;
    for (std::size_t step = 1; step <= places_.size(); ++step) {
      const auto* const theirs =
          reinterpret_cast<const std::byte*>(places_[(group_rank + step) % places_.size()].data());
      offsets.push_back(theirs - reinterpret_cast<const std::byte*>(places_[group_rank].data()));
    }
    return offsets;
  }

  std::vector<T> on_host(const Reduction& reduction, std::size_t group_rank) const {
    std::vector<std::vector<T>> ready(inputs_.size(), std::vector<T>(count_));
    std::vector<const void*> pointers;
    for (std::size_t step = 1; step <= inputs_.size(); ++step) {
      const std::size_t k = (group_rank + step) % inputs_.size();
      prescale(reduction, ready[k].data(), inputs_[k].data(), count_);
      pointers.push_back(ready[k].data());
    }
    std::vector<T> out(count_);
    fold(reduction, out.data(), nullptr, 0, pointers.data(), pointers.size(), count_);
    return out;
  }

  const Card& card_;
  std::size_t count_;
  std::vector<std::vector<T>> inputs_;
  std::vector<Placed<T>> places_;
};

template <typename T>
Reduction sum_of(const Scaling& scaling) {
  return {Traits<T>::kDtype, ReduceOp::kSum, scaling};
}

}  // namespace

TEST_CASE_TEMPLATE("kernels shared: exact, into every member's memory, with factors", T, Float16,
                   Bfloat16, float, double) {
  on_every_card([](const Card& card) {
    for (const std::size_t size : {1, 2, 3, 4, 9}) {
      for (const Scaling& scaling :
           {Scaling{}, Scaling{1.0, 1.0, 3.0}, Scaling{1.0 / 3, 2.5, 3.0}}) {
        Members<T> members(card, 40'011, std::vector<std::size_t>(size, 0));
        members.check(sum_of<T>(scaling), size / 2,
                      {{0, 1}, {7, 1021}, {1021, 1021}, {5000, 40'011}});
      }
    }
  });
}

TEST_CASE_TEMPLATE("kernels shared: wherever the members' memories lie", T, Float16, Bfloat16,
                   float, double) {
  on_every_card([](const Card& card) {
    for (std::size_t beyond = 0; beyond < 9; ++beyond) {
      CAPTURE(beyond);
      Members<T> alike(card, 9000, {beyond, beyond, beyond});
      alike.check(sum_of<T>({}), 1, {{3, 8999}});
      Members<T> apart(card, 9000, {0, beyond, 1});
      apart.check(sum_of<T>({}), 2, {{0, 9000}});
    }
  });
}

TEST_CASE("kernels shared: more ranges than fit into one launch") {
  on_every_card([](const Card& card) {
    Members<float> members(card, 5000, {0, 0});
    std::vector<std::pair<std::size_t, std::size_t>> cuts;
    for (std::size_t at = 0; at + 10 < 5000; at += 10) cuts.emplace_back(at + at % 3, at + 9);
    members.check(sum_of<float>({1.0, 1.0, 2.0}), 0, cuts);
  });
}

TEST_CASE("kernels shared: everything but sums of floats is refused") {
  on_every_card([](const Card& card) {
    const Reduction most{Dtype::kFloat32, ReduceOp::kMax, {}};
    const Reduction whole{Dtype::kInt32, ReduceOp::kSum, {}};
    for (const Reduction& reduction : {most, whole}) {
      CHECK_FALSE(cuda::Kernels::sums_floats(reduction));
      CHECK(card.kernels->fold_shared(card.stream, reduction, {}, {0}).code ==
            Code::kInvalidArgument);
    }
  });
}

}  // namespace hvd::test
