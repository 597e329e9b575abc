// The ring itself, over links in memory: exact values for every dtype, count, number of ranks and
// slot size.
#include <doctest/doctest.h>

#include <numeric>

#include "collective/cpu_backend.h"
#include "collective/ring.h"
#include "ranks.h"
#include "test_collective_values.h"
#include "transport/mesh.h"

namespace hvd::test {
namespace {

MeshOptions slots_of(std::size_t bytes, std::size_t slots) {
  MeshOptions options;
  options.slot_bytes = bytes;
  options.slots = slots;
  return options;
}

// Every rank: all tensors as one operation, each checked to the last bit.
template <typename T>
void check_allreduce(int size, const std::vector<std::size_t>& counts, const MeshOptions& options,
                     bool in_place = false, bool average = false) {
  const auto meshes = make_local_meshes(size, options);
  run_ranks(size, [&](int rank) {
    CpuBackend backend(*meshes[static_cast<std::size_t>(rank)]);
    std::vector<std::vector<T>> inputs;
    std::vector<std::vector<T>> outputs;
    for (std::size_t t = 0; t < counts.size(); ++t) {
      inputs.push_back(input_of<T>(rank, t, counts[t]));
      outputs.emplace_back(counts[t]);
    }
    std::vector<Operand> operands;
    for (std::size_t t = 0; t < counts.size(); ++t) {
      operands.push_back(
          {inputs[t].data(), in_place ? inputs[t].data() : outputs[t].data(), counts[t]});
    }
    Scaling scaling;
    if (average) scaling.divisor = size;
    const Status status = backend.allreduce(operands, KindOf<T>::kDtype, scaling);
    REQUIRE(status.message == "");
    for (std::size_t t = 0; t < counts.size(); ++t) {
      const auto& got = in_place ? inputs[t] : outputs[t];
      CHECK(same_bytes(got, expected_sums<T>(size, t, counts[t], average)));
      if (!in_place) CHECK(same_bytes(inputs[t], input_of<T>(rank, t, counts[t])));
    }
  });
}

}  // namespace

TEST_CASE_TEMPLATE("allreduce: exact for every count and number of ranks", T, std::uint8_t,
                   std::int32_t, std::int64_t, Float16, Bfloat16, float, double) {
  for (int size = 1; size <= 5; ++size) {
    const auto n = static_cast<std::size_t>(size);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, n - 1, n, n + 1,
                                    std::size_t{13}, std::size_t{1009}, std::size_t{4096}}) {
      CAPTURE(size);
      CAPTURE(count);
      check_allreduce<T>(size, {count}, slots_of(256, 4));
    }
    check_allreduce<T>(size, {2003}, slots_of(512, 3), true);
    check_allreduce<T>(size, {777}, slots_of(512, 3), false, true);
  }
}

TEST_CASE("allreduce: any slot size and number of slots gives the same bytes") {
  for (const std::size_t bytes : {64, 192, 4096, 1 << 20}) {
    for (const std::size_t slots : {2, 3, 4, 7}) {
      check_allreduce<float>(3, {5003}, slots_of(bytes, slots));
      check_allreduce<Bfloat16>(4, {2999}, slots_of(bytes, slots), true);
    }
  }
}

TEST_CASE("allreduce: fusing tensors changes no byte of any of them") {
  for (int size = 2; size <= 5; ++size) {
    check_allreduce<float>(size, {1, 0, 7, 64, 1000, 3, 2, 2049}, slots_of(256, 4));
    check_allreduce<Float16>(size, {5, 300, 1, 1, 1, 17, 0}, slots_of(64, 2), true);
    check_allreduce<std::int32_t>(size, std::vector<std::size_t>(100, 3), slots_of(128, 4));
  }
}

TEST_CASE("broadcast: every root, out of place and in place, several tensors") {
  for (int size = 1; size <= 5; ++size) {
    for (int root = 0; root < size; ++root) {
      const auto meshes = make_local_meshes(size, slots_of(128, 3));
      run_ranks(size, [&](int rank) {
        CpuBackend backend(*meshes[static_cast<std::size_t>(rank)]);
        for (const bool in_place : {false, true}) {
          auto first = input_of<std::int64_t>(rank, 0, 501);
          auto second = input_of<std::uint8_t>(rank, 1, 3);
          std::vector<std::int64_t> first_out(501);
          std::vector<std::uint8_t> second_out(3);
          auto& a = in_place ? first : first_out;
          auto& b = in_place ? second : second_out;
          const Status status = backend.broadcast(
              {{first.data(), a.data(), 501 * 8}, {second.data(), b.data(), 3}, {}}, root);
          REQUIRE(status.message == "");
          CHECK(same_bytes(a, input_of<std::int64_t>(root, 0, 501)));
          CHECK(same_bytes(b, input_of<std::uint8_t>(root, 1, 3)));
        }
      });
    }
  }
}

TEST_CASE("allgather: blocks of different sizes, some empty") {
  for (int size = 1; size <= 5; ++size) {
    const auto meshes = make_local_meshes(size, slots_of(64, 3));
    run_ranks(size, [&](int rank) {
      CpuBackend backend(*meshes[static_cast<std::size_t>(rank)]);
      std::vector<std::size_t> begins{0};
      std::vector<std::uint8_t> expected;
      for (int r = 0; r < size; ++r) {
        const auto block = input_of<std::uint8_t>(r, 0, static_cast<std::size_t>(r % 3) * 101);
        expected.insert(expected.end(), block.begin(), block.end());
        begins.push_back(expected.size());
      }
      const auto mine = static_cast<std::size_t>(rank);
      const auto input = input_of<std::uint8_t>(rank, 0, begins[mine + 1] - begins[mine]);
      std::vector<std::uint8_t> output(expected.size());
      std::vector<Operand> blocks;
      for (std::size_t r = 0; r + 1 < begins.size(); ++r) {
        blocks.push_back({r == mine ? input.data() : nullptr, output.data() + begins[r],
                          begins[r + 1] - begins[r]});
      }
      const Status status = backend.allgather(blocks);
      REQUIRE(status.message == "");
      CHECK(same_bytes(output, expected));
    });
  }
}

TEST_CASE("mixed operations follow each other on the same links without a pause") {
  const int size = 4;
  const auto meshes = make_local_meshes(size, slots_of(64, 2));
  run_ranks(size, [&](int rank) {
    CpuBackend backend(*meshes[static_cast<std::size_t>(rank)]);
    for (int round = 0; round < 50; ++round) {
      auto values = input_of<float>(rank, 0, 333);
      Status status = backend.broadcast({{values.data(), values.data(), 333 * 4}}, round % size);
      REQUIRE(status.message == "");
      CHECK(same_bytes(values, input_of<float>(round % size, 0, 333)));
      values = input_of<float>(rank, 1, 333);
      status = backend.allreduce({{values.data(), values.data(), 333}}, Dtype::kFloat32, {});
      REQUIRE(status.message == "");
      CHECK(same_bytes(values, expected_sums<float>(size, 1, 333)));
    }
  });
}

TEST_CASE("an abort ends a rank that waits inside the ring with the abort's cause") {
  const int size = 3;
  const auto meshes = make_local_meshes(size, slots_of(64, 2));
  run_ranks(size, [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    if (rank == 2) {
      mesh.raise_everywhere(Status::make(Code::kAborted, "rank 2 gave up", "test", 2));
      return;
    }
    CpuBackend backend(mesh);
    std::vector<float> values(100000);
    const Status status =
        backend.allreduce({{values.data(), values.data(), values.size()}}, Dtype::kFloat32, {});
    CHECK(status.code == Code::kAborted);
    CHECK(status.rank == 2);
    CHECK(status.message == "rank 2 gave up");
  });
}

TEST_CASE("plan: slices cover every element once and segments are never too long") {
  for (const std::size_t count : {0, 1, 2, 5, 97, 1000}) {
    for (const std::size_t chunks : {1, 2, 3, 5}) {
      std::vector<std::uint8_t> touched(count);
      const std::vector<Operand> operands{{touched.data(), touched.data(), count},
                                          {nullptr, nullptr, 0}};
      const Plan plan = Plan::sliced(operands, 1, chunks, 10);
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        for (std::size_t k = 0; k < plan.segments(); ++k) {
          std::size_t elements = 0;
          for (const Span& span : plan.segment(chunk, k)) {
            elements += span.count;
            for (std::size_t i = 0; i < span.count; ++i) {
              touched[static_cast<std::size_t>(span.in -
                                               reinterpret_cast<std::byte*>(touched.data())) +
                      i] += 1;
            }
          }
          CHECK(elements <= 10);
        }
      }
      CHECK(std::accumulate(touched.begin(), touched.end(), std::size_t{0}) == count);
    }
  }
}

}  // namespace hvd::test
