// Over host memory: the bytes of CpuBackend, in one chunk and in many; what goes wrong on the way.
#include <doctest/doctest.h>

#include <string>

#include "cuda/ring/ring_cases.h"
#include "cuda/staged/staged_backend.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;
using hvd::test::group_of;

std::unique_ptr<DeviceBackend> staged(Rank& rank, const Group& group, std::size_t chunk_bytes) {
  auto made = make_staged_backend(rank.bootstrap(group), chunk_bytes);
  REQUIRE(made.status().message == "");
  return made.take();
}

std::vector<Reduction> all_reductions(int size) {
  std::vector<Reduction> all;
  for (int number = 0; number < kDtypeCount; ++number) {
    for (const ReduceOp op :
         {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      Reduction reduction{static_cast<Dtype>(number), op, {}};
      if (op == ReduceOp::kAverage) reduction.scaling.divisor = size;
      if (can_reduce(reduction.dtype, op)) all.push_back(reduction);
    }
  }
  return all;
}

// The same on every rank, different between members; every third nothing.
std::vector<std::size_t> uneven(int size, std::size_t unit) {
  std::vector<std::size_t> shares;
  for (int group_rank = 0; group_rank < size; ++group_rank)
    shares.push_back(static_cast<std::size_t>((group_rank + 2) % 3) * unit);
  return shares;
}

// What the driver says when there is no room.
constexpr int kOutOfMemory = CUDA_ERROR_OUT_OF_MEMORY;

}  // namespace

TEST_CASE("staged: every type and operation, in one chunk and in many") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    on_rings({size, 1}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto whole = staged(rank, group, kStagedChunk);
      const auto plan_chunks = staged(rank, group, 256);
      bool in_place = false;
      for (const Reduction& reduction : all_reductions(size)) {
        INFO(name_of(reduction.dtype), " ", name_of(reduction.op));
        check_allreduce(rank, *whole, group, {reduction, {301, 0, 1, 77, 5}, in_place});
        check_allreduce(rank, *plan_chunks, group, {reduction, {301, 0, 1, 77, 5}, in_place});
        check_allreduce(rank, *plan_chunks, group, {reduction, {1403}, !in_place});
        in_place = !in_place;
      }
      CHECK(plan_chunks->last_algorithm() == std::string(size == 1 ? "LOCAL" : "STAGED"));
    });
  }
}

TEST_CASE("staged: factors before and after; a rank that has joined scales nothing") {
  for (const int size : {1, 3}) {
    CAPTURE(size);
    on_rings({size, 1}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = staged(rank, group, 512);
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kInt32}) {
        Reduction reduction{dtype, ReduceOp::kSum, {0.7, 3.0, 1.0 * size}};
        check_allreduce(rank, *backend, group, {reduction, {300, 41}, false});
        if (rank.number() == 1) reduction.scaling.before = 1.0;
        check_allreduce(rank, *backend, group, {reduction, {300, 41}, true});
      }
    });
  }
}

TEST_CASE("staged: Adasum sees whole tensors") {
  on_rings({4, 1}, [&](Rank& rank) {
    const Group group = everybody(4, rank.number());
    const auto backend = staged(rank, group, 256);
    const Reduction reduction{Dtype::kFloat32, ReduceOp::kAdasum, {}};
    check_allreduce(rank, *backend, group, {reduction, {1000, 3, 77}, false});
    check_allreduce(rank, *backend, group, {reduction, {500}, true});
  });
}

TEST_CASE("staged: reducescatter, uneven shares, some of them nothing") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    on_rings({size, 1}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = staged(rank, group, 256);
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kInt64}) {
        const Reduction reduction{dtype, ReduceOp::kAverage, {0.5, 1.0, 1.0 * size}};
        check_reducescatter(rank, *backend, group, reduction, {uneven(size, 333)});
        check_reducescatter(rank, *backend, group, reduction,
                            {uneven(size, 20), uneven(size, 0), uneven(size, 7)});
      }
    });
  }
}

TEST_CASE("staged: broadcast, allgather and alltoall move every byte") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    on_rings({size, 1}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto backend = staged(rank, group, 512);
      for (int root = 0; root < size; ++root) {
        check_broadcast(rank, *backend, group, root, {1, 4000, 0, 129}, root % 2 == 0);
        check_broadcast(rank, *backend, group, root, {3}, root % 2 == 1);
      }
      for (const bool in_place : {false, true}) {
        check_allgather(rank, *backend, group, {1000, 0, 1, 17}, in_place);
        check_allgather(rank, *backend, group, {5}, in_place);
      }
      for (std::uint64_t seed = 0; seed < 6; ++seed) check_alltoall(rank, *backend, group, seed);
    });
  }
}

TEST_CASE("staged: teams of some ranks, on several devices") {
  on_rings({4, 4}, [&](Rank& rank) {
    const Reduction sum{Dtype::kFloat32, ReduceOp::kSum, {}};
    const Group all = everybody(4, rank.number());
    const auto backend = staged(rank, all, 256);
    check_allreduce(rank, *backend, all, {sum, {400}, false});
    if (rank.number() % 2 == 1) {
      const Group odd = group_of({1, 3}, rank.number(), 7);
      const auto part = staged(rank, odd, 256);
      check_allreduce(rank, *part, odd, {sum, {1001, 2}, true});
    }
    check_allreduce(rank, *backend, all, {sum, {77}, true});
  });
}

TEST_CASE("staged: buffers grow with the operations and are kept") {
  on_rings({2, 1}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = staged(rank, group, kStagedChunk);
    const Reduction sum{Dtype::kFloat64, ReduceOp::kSum, {}};
    for (const std::size_t count : {10, 5000, 100, 20000, 7})
      check_allreduce(rank, *backend, group, {sum, {count}, true});
    CHECK(counts().pinned <= 2);  // one piece for each rank
  });
  CHECK(counts().pinned == 0);
}

TEST_CASE("staged: no pinned memory on one rank is its error, which names rank and device") {
  on_rings({1, 1}, [&](Rank& rank) {
    BootstrapGroup bootstrap = rank.bootstrap(everybody(1, 0));
    bootstrap.group.ranks = {0, 1};  // alone it would need none
    auto backend = make_staged_backend(bootstrap);
    REQUIRE(backend.status().message == "");
    const OnDevice tensor(rank, Bytes(64));
    fake_cuda_fail("cuMemHostAlloc", 1, kOutOfMemory);
    const Status status =
        backend.value()->broadcast(bootstrap.group, {{tensor.data(), tensor.data(), 64}}, 0);
    CHECK(status.code == Code::kUnavailable);
    CHECK(status.rank == 0);
    CHECK(status.message.find("rank 0, device 0") != std::string::npos);
    CHECK(status.message.find("pinned") != std::string::npos);
    fake_cuda_fail_nothing();
  });
}

TEST_CASE("staged: a wait for the device ends with the abort") {
  on_rings({2, 1}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = staged(rank, group, kStagedChunk);
    const OnDevice tensor(rank, Bytes(4096));
    const std::vector<Operand> operands{{tensor.data(), tensor.data(), 1024}};
    if (rank.number() == 0) {
      fake_cuda_hold(rank.device().stream());  // its inputs never come
      std::thread other([&] {
        rank.bootstrap(group).mesh->raise_everywhere(
            Status::make(Code::kAborted, "rank 1 raised", "test", 1));
      });
      const Status status = backend->allreduce(group, operands, {});
      other.join();
      CHECK(status.message == "rank 1 raised");
      CHECK(status.rank == 1);
      fake_cuda_release(rank.device().stream());
      rank.synchronize();
    } else {
      CHECK(backend->allreduce(group, operands, {}).message == "rank 1 raised");
      rank.synchronize();
    }
  });
}

TEST_CASE("staged: a captured step is refused with the reason") {
  on_rings({2, 1}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto backend = staged(rank, group, kStagedChunk);
    const OnDevice tensor(rank, Bytes(64));
    fake_cuda_set_capturing(rank.device().stream(), 1);
    const Status status = backend->allreduce(group, {{tensor.data(), tensor.data(), 16}}, {});
    fake_cuda_set_capturing(rank.device().stream(), 0);
    CHECK(status.code == Code::kInvalidArgument);
    CHECK(status.message.find("captured (CUDA graph)") != std::string::npos);
  });
}

}  // namespace hvd::cuda::test
