// Every kind of operation through whole engines: exact values on every rank.
#include <doctest/doctest.h>

#include "engines.h"

namespace hvd::test {
namespace {

const std::vector<int> kSizes{1, 2, 3, 4, 5, 8};

template <typename T>
std::vector<T> bytes_as(const Buffer& buffer) {
  REQUIRE(buffer.dtype == KindOf<T>::kDtype);
  std::vector<T> values(buffer.bytes / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), buffer.data(), buffer.bytes);
  return values;
}

// Row r of rank p's tensor: p * 100 + r, in every column.
template <typename T>
std::vector<T> rows_of(int rank, std::int64_t first, std::int64_t rows, std::int64_t columns) {
  std::vector<T> values;
  for (std::int64_t row = first; row < first + rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      values.push_back(of_real<T>(static_cast<double>(rank * 100 + row)));
    }
  }
  return values;
}

template <typename T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

TEST_CASE_TEMPLATE("engine: allreduce is exact for every operator", T, float, Float16, std::int64_t,
                   double) {
  for (const int size : kSizes) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      const std::vector<int> all = first_ranks(size);
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1009}}) {
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          auto values = small_numbers<T>(rank, count);
          Request request = request_for<T>(std::string("x.") + name_of(op), count);
          request.op = op;
          CHECK(run(engine, request, {in_place(values)}).status.message == "");
          CHECK(same_bytes(values, reduced<T>(all, count, op)));
        }
        auto values = small_numbers<T>(rank, count);
        Request request = request_for<T>("average", count);
        request.op = ReduceOp::kAverage;
        request.prescale = size;
        CHECK(run(engine, request, {in_place(values)}).status.message == "");
        CHECK(same_bytes(values, reduced<T>(all, count, ReduceOp::kSum)));
      }
    });
  }
}

TEST_CASE("engine: Adasum of equal vectors is that vector; of orthogonal ones their sum") {
  for (const int size : kSizes) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      std::vector<float> equal(64, 2.0F);
      Request request = request_for<float>("equal", 64);
      request.op = ReduceOp::kAdasum;
      CHECK(run(engine, request, {in_place(equal)}).status.message == "");
      CHECK(same_bytes(equal, std::vector<float>(64, 2.0F)));
      std::vector<float> own(8, 0.0F);
      own[static_cast<std::size_t>(rank)] = 3.0F;
      request.name = "orthogonal";
      request.tensors = {meta_of<float>({8})};
      CHECK(run(engine, request, {in_place(own)}).status.message == "");
      for (std::size_t i = 0; i < 8; ++i) {
        CHECK(own[i] == (i < static_cast<std::size_t>(size) ? 3.0F : 0.0F));
      }
    });
  }
}

TEST_CASE_TEMPLATE("engine: allgather with different rows, single and grouped", T, float,
                   std::int64_t, Float16) {
  for (const int size : kSizes) {
    Engines engines = engines_of(size, {{"slot_bytes", "128"}});
    on_every_rank(engines, [&](Engine& engine, int rank) {
      // Tensor 0: `rank` rows of 3; tensor 1: one row of 2 on every second rank.
      const std::int64_t odd = rank % 2;
      auto a = rows_of<T>(rank, 0, rank, 3);
      auto b = rows_of<T>(rank, 0, odd, 2);
      Request request = plain_request(Kind::kAllgather, "g");
      request.tensors = {meta_of<T>({rank, 3}), meta_of<T>({odd, 2})};
      const Outcome outcome =
          run(engine, request, {{a.data(), nullptr, a.size()}, {b.data(), nullptr, b.size()}});
      CHECK(outcome.status.message == "");
      REQUIRE(outcome.outputs.size() == 2);
      std::vector<T> all_a;
      std::vector<T> all_b;
      for (int r = 0; r < size; ++r) {
        append(all_a, rows_of<T>(r, 0, r, 3));
        append(all_b, rows_of<T>(r, 0, r % 2, 2));
      }
      CHECK(outcome.outputs[0]->shape == std::vector<std::int64_t>{size * (size - 1) / 2, 3});
      CHECK(outcome.outputs[1]->shape == std::vector<std::int64_t>{size / 2, 2});
      CHECK(same_bytes(bytes_as<T>(*outcome.outputs[0]), all_a));
      CHECK(same_bytes(bytes_as<T>(*outcome.outputs[1]), all_b));
    });
  }
}

TEST_CASE("engine: broadcast from every root, in place and into other memory, grouped") {
  for (const int size : kSizes) {
    Engines engines = engines_of(size, {{"slot_bytes", "128"}});
    on_every_rank(engines, [&](Engine& engine, int rank) {
      for (int root = 0; root < size; ++root) {
        auto a = input_of<double>(rank, 0, 50);
        const auto b = input_of<std::int32_t>(rank, 1, 7);
        std::vector<std::int32_t> out(7);
        Request request = plain_request(Kind::kBroadcast, "b");
        request.tensors = {meta_of<double>({50}), meta_of<std::int32_t>({7})};
        request.root = root;
        const Outcome outcome = run(engine, request, {in_place(a), {b.data(), out.data(), 7}});
        CHECK(outcome.status.message == "");
        CHECK(same_bytes(a, input_of<double>(root, 0, 50)));
        CHECK(same_bytes(out, input_of<std::int32_t>(root, 1, 7)));
        CHECK(same_bytes(b, input_of<std::int32_t>(rank, 1, 7)));
      }
    });
  }
}

TEST_CASE_TEMPLATE("engine: alltoall with uneven splits tells what came from whom", T, float,
                   std::int32_t) {
  for (const int size : kSizes) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      // Rank p sends (p + q) % 3 rows to q.
      const auto split = [](int from, int to) { return std::int64_t{(from + to) % 3}; };
      const auto first = [&](int from, int to) {
        std::int64_t row = 0;
        for (int q = 0; q < to; ++q) row += split(from, q);
        return row;
      };
      auto in = rows_of<T>(rank, 0, first(rank, size), 2);
      Request request = plain_request(Kind::kAlltoall, "a");
      request.tensors = {meta_of<T>({first(rank, size), 2})};
      std::vector<T> expected;
      std::vector<std::int64_t> received;
      for (int q = 0; q < size; ++q) {
        request.sizes.push_back(split(rank, q));
        received.push_back(split(q, rank));
        append(expected, rows_of<T>(q, first(q, rank), split(q, rank), 2));
      }
      const Outcome outcome = run(engine, request, {{in.data(), nullptr, in.size()}});
      CHECK(outcome.status.message == "");
      CHECK(outcome.sizes == received);
      REQUIRE(outcome.outputs.size() == 1);
      CHECK(same_bytes(bytes_as<T>(*outcome.outputs[0]), expected));
      CHECK(outcome.outputs[0]->shape ==
            std::vector<std::int64_t>{static_cast<std::int64_t>(expected.size()) / 2, 2});
    });
  }
}

TEST_CASE_TEMPLATE("engine: reducescatter, uneven, several tensors, memory given or not", T, float,
                   std::int64_t) {
  for (const int size : kSizes) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      const std::vector<int> all = first_ranks(size);
      for (const std::int64_t rows : {0, 1, 7, 16}) {
        const auto begin = [&](int place) {
          return 3 * slice_begin(static_cast<std::size_t>(rows), static_cast<std::size_t>(place),
                                 static_cast<std::size_t>(size));
        };
        auto a = small_numbers<T>(rank, static_cast<std::size_t>(rows) * 3);
        auto b = a;
        std::vector<T> given(begin(rank + 1) - begin(rank));
        std::vector<T> room(1);  // a place that is not null, also for nothing
        Request request = plain_request(Kind::kReducescatter, "r");
        request.tensors = {meta_of<T>({rows, 3}), meta_of<T>({rows, 3})};
        const Outcome outcome =
            run(engine, request,
                {{a.data(), nullptr, a.size()},
                 {b.data(), given.empty() ? room.data() : given.data(), b.size()}});
        CHECK(outcome.status.message == "");
        const auto sum = reduced<T>(all, a.size(), ReduceOp::kSum);
        const std::vector<T> share(sum.begin() + static_cast<std::ptrdiff_t>(begin(rank)),
                                   sum.begin() + static_cast<std::ptrdiff_t>(begin(rank + 1)));
        REQUIRE(outcome.outputs.size() == 1);
        CHECK(same_bytes(bytes_as<T>(*outcome.outputs[0]), share));
        CHECK(outcome.outputs[0]->shape[0] == static_cast<std::int64_t>(share.size() / 3));
        CHECK(same_bytes(given, share));
      }
    });
  }
}

TEST_CASE("engine: a barrier returns on no rank before all ranks have entered") {
  for (const int size : kSizes) {
    Engines engines = engines_of(size);
    std::atomic<int> inside{0};
    on_every_rank(engines, [&](Engine& engine, int) {
      for (int round = 0; round < 20; ++round) {
        inside.fetch_add(1);
        CHECK(run(engine, plain_request(Kind::kBarrier)).status.is_ok());
        CHECK(inside.load() >= size * (round + 1));
      }
    });
  }
}

TEST_CASE("engine: a group of mixed dtypes is one operation, all or nothing") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto a = input_of<float>(rank, 0, 100);
    auto b = input_of<std::int64_t>(rank, 1, 7);
    auto c = input_of<float>(rank, 2, 3);
    Request request = request_for<float>("group", 100);
    request.tensors.push_back(meta_of<std::int64_t>({7}));
    request.tensors.push_back(meta_of<float>({3}));
    CHECK(run(engine, request, {in_place(a), in_place(b), in_place(c)}).status.message == "");
    CHECK(same_bytes(a, expected_sums<float>(2, 0, 100)));
    CHECK(same_bytes(b, expected_sums<std::int64_t>(2, 1, 7)));
    CHECK(same_bytes(c, expected_sums<float>(2, 2, 3)));
    // One member differs: no member is touched.
    const auto before = input_of<float>(rank, 0, 100);
    a = before;
    request.name = "bad group";
    request.tensors[1].shape = {rank == 0 ? 7 : 6};
    const Outcome bad =
        run(engine, request, {in_place(a), {b.data(), b.data(), rank == 0 ? 7U : 6U}, in_place(c)});
    CHECK(bad.status.code == Code::kMismatch);
    CHECK(same_bytes(a, before));
    check_usable(engine, "after");
  });
}

TEST_CASE("engine: shared regions: reduced in place without a copy, by address, and released") {
  for (const int size : {2, 3, 4}) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      Request allocate = plain_request(Kind::kAllocate);
      allocate.sizes = {4 * 1000};
      const Outcome given = run(engine, allocate);
      REQUIRE(given.status.message == "");
      const SharedPart part = engine.part_of(given.number);
      REQUIRE((part.data != nullptr));
      CHECK(part.bytes == 4000);
      auto* const values = reinterpret_cast<float*>(part.data);
      for (int round = 0; round < 3; ++round) {
        const auto mine = input_of<float>(rank, 4, 1000);
        std::copy(mine.begin(), mine.end(), values);
        // Two views of one bucket, at the same places everywhere.
        Request request = request_for<float>("view", 300);
        request.tensors.push_back(meta_of<float>({700}));
        const Outcome outcome =
            run(engine, request, {{values, values, 300}, {values + 300, values + 300, 700}});
        CHECK(outcome.status.message == "");
        std::vector<float> whole(values, values + 1000);
        // Each view is cut into slices of its own, so is compared with a private one of its own.
        std::vector<float> first(mine.begin(), mine.begin() + 300);
        std::vector<float> second(mine.begin() + 300, mine.end());
        Request same = request_for<float>("copy", 300);
        same.tensors.push_back(meta_of<float>({700}));
        CHECK(run(engine, same, {in_place(first), in_place(second)}).status.message == "");
        append(first, second);
        CHECK(same_bytes(whole, first));
        CHECK(run(engine, plain_request(Kind::kBarrier)).status.is_ok());
      }
      // Here at one place and there at another: moved like private memory.
      const std::size_t at = rank == 0 ? 0 : 100;
      const auto mine = small_numbers<float>(rank, 50);
      std::copy(mine.begin(), mine.end(), values + at);
      CHECK(run(engine, request_for<float>("elsewhere", 50), {{values + at, values + at, 50}})
                .status.message == "");
      CHECK(same_bytes(std::vector<float>(values + at, values + at + 50),
                       reduced<float>(first_ranks(size), 50, ReduceOp::kSum)));
      Request release = plain_request(Kind::kRelease);
      release.sizes = {given.number};
      CHECK(run(engine, release).status.message == "");
      CHECK((engine.part_of(given.number).data == nullptr));
      // More than there is: refused on every rank, and nothing else suffers.
      allocate.sizes = {std::int64_t{1} << 60};
      CHECK(run(engine, allocate).status.code == Code::kUnavailable);
      check_usable(engine, "after");
    });
  }
}

}  // namespace hvd::test
