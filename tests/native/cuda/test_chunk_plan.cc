// Chunks of operations that go over host memory: every element in exactly one, and owned by whom it
// was owned before.
#include <doctest/doctest.h>

#include <vector>

#include "collective/backend/plan.h"
#include "cuda/staged/staged_backend.h"

namespace hvd::cuda {
namespace {

// How often each element of each row is in a strip.
std::vector<std::vector<int>> covered(const RowLengths& rows, const ChunkPlan& plan_chunks,
                                      std::size_t tensor) {
  std::vector<std::vector<int>> times;
  for (const std::size_t length : rows.lengths) times.emplace_back(length);
  for (const Chunk& chunk : plan_chunks.chunks) {
    for (const ChunkPart& strip : chunk) {
      if (strip.tensor != tensor) continue;
      each_part(rows, strip, 1, [&](std::size_t row, std::size_t part, std::size_t /*at*/) {
        for (std::size_t i = 0; i < part; ++i) ++times[row][strip.begin + i];
      });
    }
  }
  return times;
}

std::vector<std::vector<int>> once(const RowLengths& rows) {
  std::vector<std::vector<int>> times;
  for (const std::size_t length : rows.lengths) times.emplace_back(length, 1);
  return times;
}

}  // namespace

TEST_CASE("chunk plan: chunks hold every element once, whatever the lengths and the room") {
  const std::vector<std::vector<RowLengths>> lists{
      {RowLengths({10, 0, 3})},
      {RowLengths({5, 5, 5}), RowLengths({0, 0, 0}), RowLengths({1, 0, 0}),
       RowLengths({700, 1, 20})},
      {slices_of(1000, 3), slices_of(2, 3), slices_of(0, 3)},
      {}};
  for (const std::vector<RowLengths>& tensors : lists) {
    for (const std::size_t room : {1, 64, 100, 1000, 1 << 20}) {
      const ChunkPlan plan_chunks = hvd::cuda::plan_chunks(tensors, 4, room);
      for (std::size_t t = 0; t < tensors.size(); ++t)
        CHECK(covered(tensors[t], plan_chunks, t) == once(tensors[t]));
    }
  }
}

TEST_CASE("chunk plan: a strip of slices is cut at row boundaries") {
  for (const std::size_t group_ranks : {1, 2, 3, 5, 8}) {
    for (const std::size_t count : {1, 2, 7, 64, 1001}) {
      const RowLengths rows = slices_of(count, group_ranks);
      const ChunkPlan plan_chunks = hvd::cuda::plan_chunks({rows}, 1, 64);
      for (const Chunk& chunk : plan_chunks.chunks) {
        const ChunkPart& strip = chunk.front();
        std::size_t all = 0;
        for (const std::size_t length : rows.lengths) all += part_of(length, strip);
        each_part(rows, strip, 1, [&](std::size_t row, std::size_t part, std::size_t at) {
          CHECK(at - strip.at == slice_begin(all, row, group_ranks));
          CHECK(at - strip.at + part == slice_begin(all, row + 1, group_ranks));
        });
      }
    }
  }
}

TEST_CASE("chunk plan: chunks fill the room and do not leave it, but for a single column") {
  const ChunkPlan fitting = plan_chunks({slices_of(100000, 4)}, 8, 4096);
  CHECK(fitting.bytes == 4096);
  CHECK(fitting.chunks.size() == (std::size_t{100000} * 8 + 4095) / 4096);
  const ChunkPlan column = plan_chunks({slices_of(100, 4)}, 8, 16);
  CHECK(column.bytes == 64);  // 4 elements of 8 bytes, in whole lines
  CHECK(column.chunks.size() == 25);
}

TEST_CASE("chunk plan: strips of a chunk lie apart, at multiples of 64") {
  const std::vector<RowLengths> tensors{RowLengths({3, 3}), RowLengths({10, 9}), RowLengths({1, 1}),
                                        RowLengths({50, 50})};
  const ChunkPlan plan_chunks = hvd::cuda::plan_chunks(tensors, 2, 256);
  for (const Chunk& chunk : plan_chunks.chunks) {
    std::size_t end = 0;
    for (const ChunkPart& strip : chunk) {
      CHECK(strip.at % 64 == 0);
      CHECK(strip.at >= end);
      each_part(
          tensors[strip.tensor], strip, 2,
          [&](std::size_t /*row*/, std::size_t part, std::size_t at) { end = at + part * 2; });
    }
    CHECK(end <= plan_chunks.bytes);
  }
}

}  // namespace hvd::cuda
