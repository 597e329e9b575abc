// Every kind and every type through the C table: exact values on every rank, reported once.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <complex>
#include <numeric>

#include "framework.h"

namespace hvd::test {
namespace {

constexpr int kRanks = 3;

struct TypeRow {
  DLDataType type;
  std::size_t bytes;
};
constexpr std::array<TypeRow, kDtypeCount> kTypes{{{{kDLUInt, 8, 1}, 1},
                                                   {{kDLInt, 8, 1}, 1},
                                                   {{kDLUInt, 16, 1}, 2},
                                                   {{kDLInt, 16, 1}, 2},
                                                   {{kDLInt, 32, 1}, 4},
                                                   {{kDLInt, 64, 1}, 8},
                                                   {{kDLFloat, 16, 1}, 2},
                                                   {{kDLFloat, 32, 1}, 4},
                                                   {{kDLFloat, 64, 1}, 8},
                                                   {{kDLBool, 8, 1}, 1},
                                                   {{kDLBfloat, 16, 1}, 2},
                                                   {{kDLComplex, 64, 1}, 8},
                                                   {{kDLComplex, 128, 1}, 16},
                                                   {{kDLFloat8_e4m3fn, 8, 1}, 1},
                                                   {{kDLFloat8_e5m2, 8, 1}, 1},
                                                   {{kDLUInt, 32, 1}, 4},
                                                   {{kDLUInt, 64, 1}, 8},
                                                   {{kDLComplex, 32, 1}, 4},
                                                   {{kDLFloat8_e4m3fnuz, 8, 1}, 1},
                                                   {{kDLFloat8_e5m2fnuz, 8, 1}, 1},
                                                   {{kDLFloat8_e8m0fnu, 8, 1}, 1},
                                                   {{kDLFloat8_e3m4, 8, 1}, 1},
                                                   {{kDLFloat8_e4m3, 8, 1}, 1},
                                                   {{kDLFloat8_e4m3b11fnuz, 8, 1}, 1}}};

// Of rank r: 1 + r + i mod 3.
template <typename T>
void check_sum() {
  on_ranks(kRanks, [](hvd_engine* engine, int rank) {
    auto values = small_numbers<T>(rank, 257);
    Told told;
    REQUIRE(ask_sum(engine, "x", values, told) == "");
    told.check();
    CHECK(same_bytes(values, reduced<T>(first_ranks(kRanks), 257, ReduceOp::kSum)));
  });
}

std::vector<float> row_of(float value) { return {value, value + 0.5F}; }

// `rows` rows of a rank, each of two columns.
std::vector<float> rows_of(int rank, std::int64_t rows) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (const float value : row_of(static_cast<float>(rank * 100 + i))) values.push_back(value);
  }
  return values;
}

}  // namespace

TEST_CASE("table: sums of every type that has numbers") {
  check_sum<std::uint8_t>();
  check_sum<std::int8_t>();
  check_sum<std::uint16_t>();
  check_sum<std::int16_t>();
  check_sum<std::int32_t>();
  check_sum<std::int64_t>();
  check_sum<Float16>();
  check_sum<Bfloat16>();
  check_sum<float>();
  check_sum<double>();
  check_sum<std::complex<double>>();
  on_ranks(2, [](hvd_engine* engine, int rank) {
    std::vector<std::complex<float>> values(9, {static_cast<float>(rank + 1), -1.5F});
    Told told;
    REQUIRE(ask_sum(engine, "x", values, told) == "");
    told.check();
    CHECK((values == std::vector<std::complex<float>>(9, {3.0F, -3.0F})));
  });
}

TEST_CASE("table: every type is gathered unchanged, and results have their type") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    for (const TypeRow& row : kTypes) {
      CAPTURE(row.type.code);
      CAPTURE(row.type.bits);
      std::vector<std::uint8_t> bytes(row.bytes * 2);
      std::iota(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(rank * 100));
      std::vector<std::int64_t> shape{2};
      DLTensor tensor = view(bytes, shape);
      tensor.dtype = row.type;
      Told told;
      hvd_request request = request_of(HVD_ALLGATHER, "g", told);
      request.count = 1;
      request.inputs = &tensor;
      REQUIRE(asked(engine, request) == "");
      told.check();
      REQUIRE(told.outputs.size() == 1);
      const DLTensor& all = told.outputs[0].tensor;
      CHECK(all.dtype.code == row.type.code);
      CHECK(all.dtype.bits == row.type.bits);
      CHECK(all.dtype.lanes == 1);
      CHECK(all.shape[0] == 4);
      std::vector<std::uint8_t> expected(row.bytes * 4);
      std::iota(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(row.bytes * 2), 0);
      std::iota(expected.begin() + static_cast<std::ptrdiff_t>(row.bytes * 2), expected.end(), 100);
      CHECK(std::memcmp(all.data, expected.data(), expected.size()) == 0);
    }
  });
}

TEST_CASE("table: operators, scales, and a result beside the input") {
  on_ranks(kRanks, [](hvd_engine* engine, int rank) {
    const std::vector<int> all = first_ranks(kRanks);
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kAverage}) {
      auto values = small_numbers<double>(rank, 9);
      std::vector<double> result(9);
      std::vector<std::int64_t> shape{3, 3};
      const DLTensor in = view(values, shape), out = view(result, shape);
      Told told;
      hvd_request request = request_of(HVD_ALLREDUCE, "x", told);
      request.op = static_cast<int>(op);
      request.count = 1;
      request.inputs = &in;
      request.outputs = &out;
      const bool scales = op == ReduceOp::kSum || op == ReduceOp::kAverage;
      request.prescale = op == ReduceOp::kAverage ? kRanks : 1;
      request.postscale = scales ? 4 : 1;
      REQUIRE(asked(engine, request) == "");
      told.check();
      const ReduceOp same = op == ReduceOp::kAverage ? ReduceOp::kSum : op;
      CHECK(same_bytes(result, reduced<double>(all, 9, same, 1, scales ? 4 : 1)));
      CHECK(same_bytes(values, small_numbers<double>(rank, 9)));
    }
  });
}

TEST_CASE("table: a group of several types is one operation") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    std::vector<float> a(3, static_cast<float>(rank + 1));
    std::vector<std::int64_t> b(2, rank + 10);
    std::vector<std::int64_t> shape_a{3}, shape_b{2, 1};
    const std::array<DLTensor, 2> tensors{view(a, shape_a), view(b, shape_b)};
    Told told;
    hvd_request request = request_of(HVD_ALLREDUCE, "group", told);
    request.count = 2;
    request.inputs = request.outputs = tensors.data();
    REQUIRE(asked(engine, request) == "");
    told.check();
    CHECK(a == std::vector<float>(3, 3.0F));
    CHECK(b == std::vector<std::int64_t>(2, 21));

    Told gathered;
    request = request_of(HVD_ALLGATHER, "gathers", gathered);
    request.count = 2;
    request.inputs = tensors.data();
    REQUIRE(asked(engine, request) == "");
    gathered.check();
    REQUIRE(gathered.outputs.size() == 2);
    CHECK(values_of<float>(gathered.outputs[0]) == std::vector<float>(6, 3.0F));
    CHECK(values_of<std::int64_t>(gathered.outputs[1]) == std::vector<std::int64_t>(4, 21));
    CHECK(gathered.outputs[1].tensor.ndim == 2);
  });
}

TEST_CASE("table: byte offsets and strides without gaps are accepted") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    std::vector<float> values{-1, -1, 1, 2, 3, 4, 5, 6};
    std::vector<std::int64_t> shape{2, 1, 3}, strides{3, 77, 1};
    DLTensor tensor = view(values, shape);
    tensor.byte_offset = 2 * sizeof(float);
    tensor.strides = strides.data();
    Told told;
    hvd_request request = request_of(HVD_BROADCAST, "x", told);
    request.root = 1;
    request.count = 1;
    request.inputs = request.outputs = &tensor;
    if (rank == 0) std::fill(values.begin() + 2, values.end(), 0.0F);
    REQUIRE(asked(engine, request) == "");
    told.check();
    CHECK(values == std::vector<float>{-1, -1, 1, 2, 3, 4, 5, 6});
  });
}

TEST_CASE("table: a gather of uneven rows, also none; the result outlives its engine") {
  std::array<Told, kRanks> told;
  on_ranks(kRanks, [&](hvd_engine* engine, int rank) {
    std::vector<float> mine = rows_of(rank, rank);
    Told& its = told[static_cast<std::size_t>(rank)];
    REQUIRE(ask(engine, HVD_ALLGATHER, "g", mine, {rank, 2}, its) == "");
    its.check();
  });
  std::vector<float> expected = rows_of(1, 1);
  for (const float value : rows_of(2, 2)) expected.push_back(value);
  for (const Told& its : told) {
    REQUIRE(its.outputs.size() == 1);
    CHECK(its.outputs[0].tensor.ndim == 2);
    CHECK(its.outputs[0].tensor.shape[0] == 3);
    CHECK(values_of<float>(its.outputs[0]) == expected);
  }
}

TEST_CASE("table: alltoall by splits and in equal shares, with the received rows") {
  on_ranks(kRanks, [](hvd_engine* engine, int rank) {
    // Rank r gives r + p rows to rank p.
    std::vector<std::int64_t> splits;
    for (int place = 0; place < kRanks; ++place) splits.push_back(rank + place);
    const std::int64_t rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
    std::vector<float> mine = rows_of(rank, rows);
    Told told;
    REQUIRE(ask(engine, HVD_ALLTOALL, "a", mine, {rows, 2}, told, [&](hvd_request& request) {
              request.splits_count = splits.size();
              request.splits = splits.data();
            }) == "");
    told.check();
    std::vector<float> expected;
    for (int from = 0; from < kRanks; ++from) {
      std::int64_t first = 0;
      for (int place = 0; place < rank; ++place) first += from + place;
      for (std::int64_t row = first; row < first + from + rank; ++row) {
        for (const float value : row_of(static_cast<float>(from * 100 + row))) {
          expected.push_back(value);
        }
      }
    }
    REQUIRE(told.outputs.size() == 1);
    CHECK(values_of<float>(told.outputs[0]) == expected);
    CHECK(told.sizes == std::vector<std::int64_t>{rank, rank + 1, rank + 2});

    Told equal;
    std::vector<std::int64_t> numbers(6, rank);
    REQUIRE(ask(engine, HVD_ALLTOALL, "b", numbers, {6}, equal) == "");
    equal.check();
    CHECK(values_of<std::int64_t>(equal.outputs[0]) == std::vector<std::int64_t>{0, 0, 1, 1, 2, 2});
    CHECK(equal.sizes == std::vector<std::int64_t>(kRanks, 2));
  });
}

TEST_CASE("table: reducescatter into given memory, into the core's, and where a share is empty") {
  on_ranks(kRanks, [](hvd_engine* engine, int rank) {
    for (const std::int64_t rows : {std::int64_t{2}, std::int64_t{4}}) {
      std::vector<float> values(static_cast<std::size_t>(rows * 2));
      std::iota(values.begin(), values.end(), 1.0F);
      const std::int64_t share = rows / kRanks + (rank < rows % kRanks ? 1 : 0);
      const std::int64_t first =
          rank * (rows / kRanks) + std::min<std::int64_t>(rank, rows % kRanks);
      std::vector<float> expected;
      for (std::int64_t i = first * 2; i < (first + share) * 2; ++i) {
        expected.push_back(static_cast<float>((i + 1) * kRanks));
      }
      std::vector<float> result(static_cast<std::size_t>(share * 2));
      std::vector<std::int64_t> shape{share, 2};
      const DLTensor out = view(result, shape);
      Told told;
      REQUIRE(ask(engine, HVD_REDUCESCATTER, "r", values, {rows, 2}, told,
                  [&](hvd_request& request) { request.outputs = &out; }) == "");
      told.check();
      CHECK(told.outputs.empty());
      CHECK(result == expected);
      Told own;
      REQUIRE(ask(engine, HVD_REDUCESCATTER, "r", values, {rows, 2}, own) == "");
      own.check();
      REQUIRE(own.outputs.size() == 1);
      CHECK(own.outputs[0].tensor.shape[0] == share);
      CHECK(values_of<float>(own.outputs[0]) == expected);
    }
  });
}

TEST_CASE("table: a joined rank takes part, and all ranks get the last rank to join") {
  on_ranks(kRanks, [](hvd_engine* engine, int rank) {
    Told joined;
    if (rank == 0) REQUIRE(asked(engine, request_of(HVD_JOIN, nullptr, joined)) == "");
    std::vector<float> values(4, 5.0F);
    if (rank != 0) {
      Told told;
      REQUIRE(ask_sum(engine, "x", values, told) == "");
      told.check();
      CHECK(told.number == -1);
      CHECK(values == std::vector<float>(4, 10.0F));
    }
    if (rank == 1) REQUIRE(asked(engine, request_of(HVD_JOIN, nullptr, joined)) == "");
    if (rank == 2) {
      Told alone;  // rank 1 joins instead
      std::fill(values.begin(), values.end(), 5.0F);
      REQUIRE(ask_sum(engine, "y", values, alone) == "");
      alone.check();
      CHECK(values == std::vector<float>(4, 5.0F));
      REQUIRE(asked(engine, request_of(HVD_JOIN, nullptr, joined)) == "");
    }
    joined.check();
    CHECK(joined.number == 2);
  });
}

TEST_CASE("table: local and cross ranks are those of the engines' places") {
  Engines engines = connected_engines(
      2, [](int rank) { return Table{{"place", rank == 0 ? "1,0,1" : "0,1,2"}}; });
  run_ranks(2, [&](int rank) {
    auto* const engine = new hvd_engine{std::move(engines[static_cast<std::size_t>(rank)])};
    CHECK(core().rank(engine) == rank);
    CHECK(core().local_rank(engine) == 1 - rank);
    CHECK(core().local_size(engine) == 2);
    CHECK(core().cross_rank(engine) == rank);
    CHECK(core().cross_size(engine) == 1 + rank);
    core().shutdown(engine);
    core().release(engine);
  });
}

TEST_CASE("table: ranks and process sets") {
  on_ranks(kRanks, [](hvd_engine* engine, int rank) {
    CHECK(core().rank(engine) == rank);
    CHECK(core().size(engine) == kRanks);
    CHECK(core().local_rank(engine) == rank);
    CHECK(core().local_size(engine) == kRanks);
    CHECK(core().cross_rank(engine) == 0);
    CHECK(core().cross_size(engine) == 1);
    const int set = add_set(*engine->engine, {0, 2});
    const int place = rank == 1 ? -1 : rank / 2;
    CHECK(core().set_size(engine, set) == 2);
    CHECK(core().set_rank(engine, set) == place);
    CHECK(core().set_rank(engine, 0) == rank);
    std::int32_t ranks[3] = {-7, -7, -7};
    CHECK(core().set_ranks(engine, set, ranks, 3) == 2);
    CHECK((ranks[0] == 0 && ranks[1] == 2 && ranks[2] == -7));
    CHECK(core().set_ranks(engine, 0, ranks, 1) == kRanks);
    CHECK(core().set_size(engine, 99) == 0);
    CHECK(core().set_rank(engine, 99) == -1);
    std::vector<float> values(2, static_cast<float>(rank + 1));
    Told told;
    const std::string refused = ask_sum(engine, "x", values, told, set);
    if (rank == 1) {
      CHECK(refused == "Allreduce: Rank 1 is not a member of the provided process set.");
      CHECK(told.calls() == 0);
    } else {
      told.check();
      CHECK(values == std::vector<float>(2, 4.0F));
    }
  });
}

TEST_CASE("table: messages between two ranks, and which rank sends one") {
  on_ranks(kRanks, [](hvd_engine* engine, int rank) {
    for (const int source : {1, 2}) {
      if (rank != 0 && rank != source) continue;
      Told probe;
      hvd_request request = request_of(HVD_PROBE, "", probe);
      request.tag = source;
      if (rank == 0) {
        REQUIRE(asked(engine, request) == "");
        probe.check();
        CHECK(probe.number == source);
      }
      std::vector<float> values = rank == 0 ? std::vector<float>(4) : rows_of(source, 2);
      Told told;
      std::vector<std::int64_t> shape{2, 2};
      const DLTensor tensor = view(values, shape);
      request = request_of(HVD_SEND, "", told);
      request.count = 1;
      request.inputs = request.outputs = &tensor;
      request.root = source;
      request.destination = 0;
      request.tag = source;
      REQUIRE(asked(engine, request) == "");
      told.check();
      CHECK(values == rows_of(source, 2));
    }
    Told last;
    REQUIRE(asked(engine, request_of(HVD_BARRIER, "end", last)) == "");
    last.check();
  });
}

}  // namespace hvd::test
