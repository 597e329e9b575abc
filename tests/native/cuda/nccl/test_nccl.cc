// Values over NCCL, a fake one: every operation, type and number of ranks.
#include <doctest/doctest.h>

#include <cstdlib>

#include "cuda/nccl/nccl.h"
#include "cuda/nccl/nccl_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;
using hvd::test::group_of;

constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

Reduction reduction_of(Dtype dtype, ReduceOp op, int size) {
  Reduction reduction{dtype, op, {}};
  if (op == ReduceOp::kAverage) reduction.scaling.divisor = size;
  return reduction;
}

std::vector<std::size_t> shares_of(int size, std::size_t unit, bool even) {
  std::vector<std::size_t> shares;
  for (int group_rank = 0; group_rank < size; ++group_rank)
    shares.push_back(even ? unit : static_cast<std::size_t>((group_rank + 2) % 3) * unit);
  return shares;
}

}  // namespace

TEST_CASE("nccl: a loaded library is found, an old one is refused") {
  // A spelling of its own: what was found to be new enough is not asked again.
  std::string file = HVD_FAKE_NCCL;
  file.insert(file.find_last_of('/'), "/.");
  FakeNccl::get().set_version(21803);
  const Result<const Nccl*> old = load_nccl(file);
  CHECK(old.status().code == Code::kUnavailable);
  CHECK(old.status().message.find("version 2.18.3, older than 2.19.1") != std::string::npos);
  CHECK(old.status().message.find("pip install nvidia-nccl-cu13") != std::string::npos);
  FakeNccl::get().reset();
  CHECK(nccl_version() == 22803);
  ::setenv("NCCL_COMM_BLOCKING", "1", 1);
  CHECK(nccl_version() == 0);
  ::unsetenv("NCCL_COMM_BLOCKING");
  const Result<const Nccl*> nccl = load_nccl("");
  REQUIRE(nccl.status().message == "");
  CHECK(nccl.value()->file.find("libfake_nccl.so") != std::string::npos);
  CHECK(load_nccl("").value() == nccl.value());
}

TEST_CASE("nccl: a missing file and an unrelated library are reported") {
  const Status none = load_nccl("/nowhere/libnccl.so.2").status();
  CHECK(none.code == Code::kUnavailable);
  CHECK(none.message.find("/nowhere/libnccl.so.2") != std::string::npos);
  const Status other = load_nccl(HVD_FAKE_CUDA).status();
  CHECK(other.code == Code::kUnavailable);
  CHECK(other.message.find("has no ncclGetVersion") != std::string::npos);
}

TEST_CASE("nccl: supported reductions, and their types") {
  const auto kind = [](Dtype dtype, ReduceOp op) { return nccl_kind(dtype, op); };
  CHECK(kind(Dtype::kFloat16, ReduceOp::kAverage)->op == NcclOp::kSum);
  CHECK(kind(Dtype::kBool, ReduceOp::kSum)->op == NcclOp::kMax);
  CHECK(kind(Dtype::kBool, ReduceOp::kProduct)->op == NcclOp::kMin);
  CHECK(kind(Dtype::kComplex128, ReduceOp::kSum)->parts == 2);
  CHECK_FALSE(kind(Dtype::kComplex64, ReduceOp::kProduct).has_value());
  CHECK_FALSE(kind(Dtype::kInt16, ReduceOp::kSum).has_value());
  CHECK_FALSE(kind(Dtype::kUint16, ReduceOp::kMax).has_value());
  CHECK_FALSE(kind(Dtype::kFloat32, ReduceOp::kAdasum).has_value());
  CHECK_FALSE(kind(Dtype::kFloat8E4m3, ReduceOp::kSum).has_value());
}

TEST_CASE("nccl: allreduce of every type and operation; unsupported ones use the host") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    on_nccl(size, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = nccl(rank, group);
      bool in_place = false;
      for (int number = 0; number < kDtypeCount; ++number) {
        for (const ReduceOp op : kOps) {
          const auto dtype = static_cast<Dtype>(number);
          if (!can_reduce(dtype, op)) continue;
          INFO(name_of(dtype), " ", name_of(op));
          const Reduction reduction = reduction_of(dtype, op, size);
          check_exact_allreduce(rank, *backend, group, {reduction, {301, 0, 1, 77}, in_place});
          in_place = !in_place;
          if (size == 1) continue;
          const bool native = nccl_kind(dtype, op).has_value() && !folds_exactly(reduction);
          CHECK(backend->last_algorithm() == std::string(native ? "NCCL_ALLREDUCE" : "STAGED"));
        }
      }
    });
  }
}

TEST_CASE("nccl: Adasum goes over the host") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = nccl(rank, group);
    check_allreduce(rank, *backend, group,
                    {{Dtype::kFloat32, ReduceOp::kAdasum, {}}, {300, 20}, false});
    CHECK(backend->last_algorithm() == std::string("STAGED"));
  });
}

TEST_CASE("nccl: factors before and after; a joined rank scales nothing") {
  for (const int size : {2, 3}) {
    CAPTURE(size);
    on_nccl(size, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = nccl(rank, group);
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt32}) {
        for (const bool in_place : {false, true}) {
          Reduction reduction{dtype, ReduceOp::kSum, {0.5, 0.7, 1.0 * size}};
          check_exact_allreduce(rank, *backend, group, {reduction, {130, 5}, in_place});
          if (rank.number() == 1) reduction.scaling.before = 1.0;
          check_exact_allreduce(rank, *backend, group, {reduction, {130, 5}, in_place});
        }
      }
    });
  }
}

TEST_CASE("nccl: a list longer than a group") {
  on_nccl(2, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = nccl(rank, group);
    const Reduction sum{Dtype::kInt32, ReduceOp::kSum, {}};
    check_exact_allreduce(rank, *backend, group, {sum, std::vector<std::size_t>(1100, 2), false});
  });
}

TEST_CASE("nccl: reducescatter, even and uneven shares") {
  for (const int size : {2, 3, 4}) {
    CAPTURE(size);
    on_nccl(size, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = nccl(rank, group);
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kInt64, Dtype::kInt16, Dtype::kComplex64}) {
        for (const bool even : {true, false}) {
          Reduction reduction = reduction_of(dtype, ReduceOp::kAverage, size);
          check_exact_reducescatter(rank, *backend, group, reduction,
                                    {shares_of(size, 33, even), shares_of(size, 0, even)});
          reduction.scaling.before = 0.5;
          check_exact_reducescatter(rank, *backend, group, reduction, {shares_of(size, 129, even)});
        }
      }
    });
  }
}

TEST_CASE("nccl: broadcast, allgather and alltoall move every byte") {
  for (const int size : {2, 3, 4}) {
    CAPTURE(size);
    on_nccl(size, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = nccl(rank, group);
      for (int root = 0; root < size; ++root)
        check_broadcast(rank, *backend, group, root, {1, 4000, 0, 129}, root % 2 == 0);
      for (const bool in_place : {false, true})
        check_allgather(rank, *backend, group, {1000, 0, 1, 17}, in_place);
      for (std::uint64_t seed = 0; seed < 6; ++seed) check_alltoall(rank, *backend, group, seed);
    });
  }
}

TEST_CASE("nccl: blocks of equal length are one allgather") {
  on_nccl(3, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    const auto backend = nccl(rank, group);
    const OnDevice out(rank, Bytes(30));
    const OnDevice in(rank, Bytes(10, std::byte(rank.number() + 1)));
    const std::size_t before = FakeNccl::get().calls("ncclBroadcast");
    Gather gather{in.data(), {out.data(), out.data() + 10, out.data() + 20}, {10, 10, 10}};
    REQUIRE(backend->allgather(group, {gather}).message == "");
    Bytes expected;
    for (const int block : {1, 2, 3}) expected.insert(expected.end(), 10, std::byte(block));
    CHECK(out.read() == expected);
    CHECK(FakeNccl::get().calls("ncclBroadcast") == before);
  });
}

TEST_CASE("nccl: a communicator for every team") {
  on_nccl(4, [&](Rank& rank) {
    const Reduction sum{Dtype::kFloat32, ReduceOp::kSum, {}};
    const Group all = everybody(4, rank.number());
    const auto backend = nccl(rank, all);
    check_exact_allreduce(rank, *backend, all, {sum, {400}, false});
    const bool odd = rank.number() % 2 == 1;
    const Group half =
        group_of(odd ? std::vector<int>{1, 3} : std::vector<int>{0, 2}, rank.number(), odd ? 2 : 1);
    const auto part = nccl(rank, half);
    check_exact_allreduce(rank, *part, half, {sum, {1001, 2}, true});
    check_exact_allreduce(rank, *backend, all, {sum, {77}, true});
  });
}

}  // namespace hvd::cuda::test
