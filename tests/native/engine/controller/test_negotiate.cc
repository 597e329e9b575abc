// Responses of ranks that agree, and errors of ranks that do not.
#include <doctest/doctest.h>

#include <memory>

#include "engine/controller/negotiate.h"
#include "engine/controller/world.h"

namespace hvd::test {
namespace {

Status compared(const std::vector<Request>& by_rank) {
  Variants variants;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    Variant one{std::make_shared<const Request>(by_rank[rank]), {}};
    one.ranks.add(static_cast<int>(rank));
    merge(variants, one);
  }
  return compare(variants);
}

Request changed(Request request, void (*change)(Request&)) {
  change(request);
  return request;
}

}  // namespace

TEST_CASE(
    "mismatches: Horovod's message, then each rank's value; the first differing rank is named") {
  const auto message = [](const Request& a, const Request& b) {
    const Status status = compared({a, a, b, b, a});
    CHECK(status.code == Code::kMismatch);
    CHECK(status.rank == 2);
    return status.message;
  };
  const Request x = sum_of("x");
  const Request rows = of_kind(Kind::kAllgather, "x", {2, 3});
  const Request sent = of_kind(Kind::kBroadcast, "x", {2});
  CHECK(compared({x, x}).is_ok());
  CHECK(message(x, sum_of("x", {4}, Dtype::kInt32)) ==
        "Mismatched data types: One rank had type float32, but another rank had type int32. "
        "(ranks 0, 1, 4: float32; ranks 2, 3: int32)");
  CHECK(message(x, of_kind(Kind::kAllgather, "x", {4})) ==
        "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER. "
        "(ranks 0, 1, 4: ALLREDUCE; ranks 2, 3: ALLGATHER)");
  CHECK(message(sum_of("x", {2, 3}), sum_of("x", {2, 4})) ==
        "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [2, 3], but another "
        "rank sent a tensor of shape [2, 4]. (ranks 0, 1, 4: [2, 3]; ranks 2, 3: [2, 4])");
  CHECK(message(sent, of_kind(Kind::kBroadcast, "x", {})) ==
        "Mismatched BROADCAST tensor shapes: One rank sent a tensor of shape [2], but another rank "
        "sent a tensor of shape []. (ranks 0, 1, 4: [2]; ranks 2, 3: [])");
  CHECK(message(x, changed(x, [](Request& r) { r.prescale = 0.5; })) ==
        "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but another "
        "rank sent factors (0.5, 1). (ranks 0, 1, 4: (1, 1); ranks 2, 3: (0.5, 1))");
  CHECK(message(x, changed(x, [](Request& r) { r.op = ReduceOp::kAverage; })) ==
        "Mismatched reduction operation: One rank sent reduction op 1, but another rank sent "
        "reduction op 0. (ranks 0, 1, 4: Sum; ranks 2, 3: Average)");
  CHECK(message(rows, of_kind(Kind::kAllgather, "x", {9, 4})) ==
        "Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal to 3, "
        "but another rank sent a tensor with dimension 1 equal to 4. (ranks 0, 1, 4: [2, 3]; ranks "
        "2, 3: [9, 4])");
  CHECK(message(rows, of_kind(Kind::kAllgather, "x", {2})) ==
        "Mismatched ALLGATHER tensor shapes: One rank sent a tensor of rank 2, but another rank "
        "sent a tensor of rank 1. (ranks 0, 1, 4: [2, 3]; ranks 2, 3: [2])");
  CHECK(message(of_kind(Kind::kAlltoall, "x", {2, 3}), of_kind(Kind::kAlltoall, "x", {2})) ==
        "Mismatched ALLTOALL tensor shapes: One rank sent a tensor of rank 2, but another rank "
        "sent a tensor of rank 1. (ranks 0, 1, 4: [2, 3]; ranks 2, 3: [2])");
  CHECK(message(sent, changed(sent, [](Request& r) { r.root = 1; })) ==
        "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank "
        "specified root rank 1. (ranks 0, 1, 4: root 0; ranks 2, 3: root 1)");
  CHECK(message(x, changed(x, [](Request& r) { r.tensors[0].device = 0; })) ==
        "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, but another "
        "rank specified device GPU. (ranks 0, 1, 4: CPU; ranks 2, 3: GPU)");
  CHECK(message(x, changed(x, [](Request& r) { r.tensors.push_back(r.tensors[0]); })) ==
        "Mismatched ALLREDUCE group sizes: One rank sent 1 tensors, but another rank sent 2 "
        "tensors. (ranks 0, 1, 4: 1 tensors; ranks 2, 3: 2 tensors)");
}

TEST_CASE("mismatches: dtypes before shapes, and more than two values are all listed") {
  const Status status = compared({sum_of("x"), sum_of("x", {5}), sum_of("x", {4}, Dtype::kInt8),
                                  sum_of("x", {4}, Dtype::kInt16), sum_of("x", {6}, Dtype::kInt8)});
  CHECK(status.message ==
        "Mismatched data types: One rank had type float32, but another rank had type int8. (ranks "
        "0, 1: float32; ranks 2, 4: int8; rank 3: int16)");
  CHECK(status.rank == 2);
}

TEST_CASE("mismatches: rows of an allgather, splits of an alltoall and addresses may differ") {
  CHECK(compared({of_kind(Kind::kAllgather, "x", {2, 3}), of_kind(Kind::kAllgather, "x", {0, 3})})
            .is_ok());
  Request split = of_kind(Kind::kAlltoall, "x", {2, 3});
  Request other = of_kind(Kind::kAlltoall, "x", {3, 3});
  split.sizes = {1, 1};
  other.sizes = {2, 1};
  CHECK(compared({split, other}).is_ok());
  CHECK(compared({sum_of("x"), changed(sum_of("x"), [](Request& r) { r.tensors[0].place = 64; })})
            .is_ok());
}

TEST_CASE("ranks as text") {
  CHECK(ranks_text({3}) == "rank 3");
  CHECK(ranks_text({0, 1}) == "ranks 0, 1");
  CHECK(ranks_text({0, 1, 2, 5, 7, 8, 9}) == "ranks 0-2, 5, 7-9");
}

TEST_CASE("an allgather's response carries every rank's rows, tensor by tensor") {
  World world(3);
  for (const int rank : {2, 0, 1}) {
    Request request = of_kind(Kind::kAllgather, "x", {rank * 10, 4});
    request.tensors.push_back(request.tensors[0]);
    request.tensors[1].shape = {rank + 1};
    world.submit(rank, request);
  }
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(only_response(world, rank).sizes == std::vector<std::int64_t>{0, 10, 20, 1, 2, 3});
  }
}

TEST_CASE("an alltoall's response carries every rank's splits") {
  World world(2);
  for (const int rank : {1, 0}) {
    Request request = of_kind(Kind::kAlltoall, "x", {10});
    request.sizes = {rank, 10 - rank};
    world.submit(rank, request);
  }
  world.deliver_all();
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(only_response(world, rank).sizes == std::vector<std::int64_t>{0, 10, 1, 9});
  }
}

TEST_CASE("an allreduce is shared only if all ranks name the same place") {
  const auto shared = [](std::int64_t a, std::int64_t b, ReduceOp op = ReduceOp::kSum) {
    World world(2);
    for (int rank = 0; rank < 2; ++rank) {
      Request request = sum_of("x");
      request.op = op;
      request.tensors.push_back(request.tensors[0]);
      request.tensors[0].place = 64;
      request.tensors[1].place = rank == 0 ? a : b;
      world.submit(rank, request);
    }
    world.deliver_all();
    const Response received = only_response(world, 1);
    CHECK(received.status.is_ok());
    CHECK(only_response(world, 0).shared == received.shared);
    return received.shared;
  };
  CHECK(shared(128, 128));
  CHECK_FALSE(shared(128, 192));
  CHECK_FALSE(shared(kPrivate, kPrivate));
  CHECK_FALSE(shared(128, 128, ReduceOp::kAdasum));
}

TEST_CASE(
    "a mismatch reaches every rank, other operations complete, and the name can be used again") {
  for (const int fanout : {2, 64}) {
    ControllerOptions options;
    options.fanout = fanout;
    World world(7, options);
    world.submit(0, sum_of("other"));
    for (int rank = 0; rank < 7; ++rank) world.submit(rank, sum_of("x", {rank == 5 ? 3 : 2}));
    world.deliver_all();
    for (int rank = 0; rank < 7; ++rank) {
      const Response received = only_response(world, rank);
      CHECK(received.status.code == Code::kMismatch);
      CHECK(received.status.rank == 5);
      CHECK(received.status.message.find("(ranks 0-4, 6: [2]; rank 5: [3])") != std::string::npos);
    }
    world.submit_all(sum_of("x"));
    for (int rank = 1; rank < 7; ++rank) world.submit(rank, sum_of("other"));
    world.deliver_all();
    for (int rank = 0; rank < 7; ++rank) {
      const std::vector<Response> received = world.responses(rank);
      REQUIRE(received.size() == 2);
      CHECK(received[0].status.is_ok());
      CHECK(received[1].names == std::vector<std::string>{"other"});
    }
  }
}

}  // namespace hvd::test
