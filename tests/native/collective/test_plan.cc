// Plans: slices, lists and segments.
#include <doctest/doctest.h>

#include <cstdint>

#include "collective/backend/plan.h"

namespace hvd::test {
namespace {

using Touched = std::vector<std::uint8_t>;

// Counts every element of a segment; how many there were.
std::size_t touch(Touched& touched, const Segment& segment) {
  for (const Span& span : segment) {
    const auto begin =
        static_cast<std::size_t>(span.in - reinterpret_cast<std::byte*>(touched.data()));
    CHECK(span.out == span.in);
    for (std::size_t i = 0; i < span.count; ++i) touched[begin + i] += 1;
  }
  return elements_of(segment);
}

std::vector<std::size_t> lengths(const Plan& plan, std::size_t chunk) {
  std::vector<std::size_t> lengths;
  for (std::size_t k = 0; k < plan.segments(); ++k)
    lengths.push_back(elements_of(plan.segment(chunk, k)));
  return lengths;
}

}  // namespace

TEST_CASE("plan: slices cover every element once and segments are never too long") {
  for (const std::size_t count : {0, 1, 2, 5, 97, 1000}) {
    for (const std::size_t chunks : {1, 2, 3, 5}) {
      Touched touched(count);
      const std::vector<Operand> operands{{touched.data(), touched.data(), count},
                                          {nullptr, nullptr, 0}};
      const Plan plan = Plan::sliced(operands, 1, chunks, 10);
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        std::size_t covered = 0;
        for (std::size_t k = 0; k < plan.segments(); ++k) {
          const std::size_t elements = touch(touched, plan.segment(chunk, k));
          CHECK(elements <= 10);
          covered += elements;
        }
        CHECK(covered == slice_begin(count, chunk + 1, chunks) - slice_begin(count, chunk, chunks));
      }
      CHECK(touched == Touched(count, 1));
    }
  }
}

TEST_CASE("plan: a list continues in the segment of the previous operand") {
  Touched memory(100);
  const auto piece = [&](std::size_t begin, std::size_t count) {
    return Operand{memory.data() + begin, memory.data() + begin, count};
  };
  const Plan plan =
      Plan::listed({{piece(0, 7), piece(10, 0), piece(20, 15)}, {}, {piece(50, 10)}}, 1, 10);
  CHECK(plan.segments() == 3);
  CHECK(lengths(plan, 0) == std::vector<std::size_t>{10, 10, 2});
  CHECK(lengths(plan, 1) == std::vector<std::size_t>{0, 0, 0});
  CHECK(lengths(plan, 2) == std::vector<std::size_t>{10, 0, 0});
  CHECK(plan.segment(0, 0).end() - plan.segment(0, 0).begin() == 2);
}

TEST_CASE("plan: no operands, no segments") {
  CHECK(Plan::sliced({}, 4, 3, 10).segments() == 0);
  CHECK(Plan::listed({{}, {}}, 4, 10).segments() == 0);
}

}  // namespace hvd::test
