// Agreement and fusion as pure state machines: no thread, no channel.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "engine/fusion.h"
#include "engine/mismatch.h"
#include "engine/negotiate.h"

namespace hvd::test {
namespace {

Request sum_of(const std::string& name, std::vector<std::int64_t> shape = {4},
               Dtype dtype = Dtype::kFloat32) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.name = name;
  request.tensors = {{dtype, kCpu, std::move(shape)}};
  return request;
}

Request of_kind(Kind kind, std::vector<std::int64_t> shape) {
  Request request = sum_of("x", std::move(shape));
  request.kind = kind;
  return request;
}

std::vector<std::string> names_of(const std::vector<Agreed>& agreed) {
  std::vector<std::string> names;
  for (const Agreed& one : agreed) names.push_back(one.request.name);
  return names;
}

}  // namespace

TEST_CASE("a name is agreed on when every rank has asked, in any order") {
  std::mt19937 random(11);
  for (int size = 1; size <= 5; ++size) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::pair<int, std::string>> calls;
      for (int rank = 0; rank < size; ++rank) {
        for (const char* name : {"a", "b", "c", "d"}) calls.emplace_back(rank, name);
      }
      std::shuffle(calls.begin(), calls.end(), random);
      Negotiator negotiator(size);
      std::vector<std::string> all;
      for (const auto& [rank, name] : calls) {
        negotiator.add(rank, sum_of(name), 0);
        for (const Agreed& one : negotiator.take()) {
          CHECK(one.status.is_ok());
          CHECK(std::count_if(calls.begin(), calls.end(), [&](const auto& call) {
                  return call.second == one.request.name;
                }) == size);
          all.push_back(one.request.name);
        }
      }
      CHECK(negotiator.idle());
      std::sort(all.begin(), all.end());
      CHECK(all == std::vector<std::string>{"a", "b", "c", "d"});
    }
  }
}

TEST_CASE("who is missing is known by name and rank") {
  Negotiator negotiator(4);
  negotiator.add(2, sum_of("x"), 5);
  negotiator.add(0, sum_of("x"), 9);
  REQUIRE(negotiator.waiting().size() == 1);
  CHECK(negotiator.waiting()[0].name == "x");
  CHECK(negotiator.waiting()[0].since_ns == 5);
  CHECK(negotiator.waiting()[0].missing == std::vector<int>{1, 3});
  CHECK(negotiator.take().empty());
}

TEST_CASE("a rank that leaves fails what needs it, now and later, and nothing else") {
  Negotiator negotiator(3);
  for (int rank = 0; rank < 3; ++rank) negotiator.add(rank, sum_of("complete"), 0);
  negotiator.add(0, sum_of("half"), 0);
  negotiator.add(1, sum_of("given up"), 0);
  negotiator.leave(1);
  negotiator.add(2, sum_of("later"), 0);
  const auto agreed = negotiator.take();
  REQUIRE(agreed.size() == 4);
  CHECK(names_of(agreed).front() == "complete");
  CHECK(agreed[0].status.is_ok());
  for (std::size_t i = 1; i < agreed.size(); ++i) {
    CHECK(agreed[i].status.code == Code::kShutdown);
    CHECK(agreed[i].status.rank == 1);
    CHECK(agreed[i].status.message.find("Horovod has been shut down.") == 0);
    CHECK(agreed[i].status.message.find("Rank 1") != std::string::npos);
  }
  CHECK(names_of(agreed).back() == "later");
  negotiator.leave(0);  // because of rank 1: that one stays the reason
  negotiator.add(2, sum_of("last"), 0);
  CHECK(negotiator.take().at(0).status.rank == 1);
  CHECK(negotiator.idle());
}

TEST_CASE("an allgather's response carries the rows of every rank") {
  Negotiator negotiator(3);
  for (const int rank : {2, 0, 1})
    negotiator.add(rank, of_kind(Kind::kAllgather, {rank * 10, 4}), 0);
  CHECK(negotiator.take().at(0).rows == std::vector<std::int64_t>{0, 10, 20});
}

TEST_CASE("mismatches: Horovod's words, the first check wins, the first differing rank is named") {
  const auto message = [](Request a, Request b) {
    Request same = a;
    const Status status = compare({std::move(a), std::move(same), std::move(b)});
    CHECK(status.code == Code::kMismatch);
    CHECK(status.rank == 2);
    return status.message;
  };
  CHECK(compare({sum_of("x"), sum_of("x")}).is_ok());
  CHECK(message(sum_of("x"), sum_of("x", {4}, Dtype::kInt32)) ==
        "Mismatched data types: One rank had type float32, but another rank had type int32.");
  CHECK(message(sum_of("x"), of_kind(Kind::kAllgather, {4})) ==
        "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER.");
  CHECK(message(sum_of("x", {2, 3}), sum_of("x", {2, 4})) ==
        "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [2, 3], but another "
        "rank "
        "sent a tensor of shape [2, 4].");
  CHECK(message(of_kind(Kind::kBroadcast, {2}), of_kind(Kind::kBroadcast, {})) ==
        "Mismatched BROADCAST tensor shapes: One rank sent a tensor of shape [2], but another rank "
        "sent "
        "a tensor of shape [].");
  Request scaled = sum_of("x");
  scaled.prescale = 0.5;
  CHECK(message(sum_of("x"), scaled) ==
        "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but another "
        "rank "
        "sent factors (0.5, 1).");
  Request average = sum_of("x");
  average.op = ReduceOp::kAverage;
  CHECK(message(sum_of("x"), average) ==
        "Mismatched reduction operation: One rank sent reduction op 1, but another rank sent "
        "reduction op 0.");
  CHECK(
      message(of_kind(Kind::kAllgather, {2, 3}), of_kind(Kind::kAllgather, {9, 4})) ==
      "Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal to 3, but "
      "another rank sent a tensor with dimension 1 equal to 4.");
  CHECK(message(of_kind(Kind::kAllgather, {2, 3}), of_kind(Kind::kAllgather, {2})) ==
        "Mismatched ALLGATHER tensor shapes: One rank sent a tensor of rank 2, but another rank "
        "sent a "
        "tensor of rank 1.");
  Request rooted = of_kind(Kind::kBroadcast, {2});
  rooted.root = 1;
  CHECK(message(of_kind(Kind::kBroadcast, {2}), rooted) ==
        "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank "
        "specified root rank 1.");
  Request on_device = sum_of("x");
  on_device.tensors[0].device = 0;
  CHECK(message(sum_of("x"), on_device) ==
        "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, but another "
        "rank "
        "specified device GPU.");
  Request group = sum_of("x");
  group.tensors.push_back(group.tensors[0]);
  CHECK(message(sum_of("x"), group) ==
        "Mismatched ALLREDUCE group sizes: One rank sent 1 tensors, but another rank sent 2 "
        "tensors.");
}

namespace {

Agreed agreed_on(Request request) {
  Agreed agreed;
  agreed.request = std::move(request);
  return agreed;
}

using Names = std::vector<std::vector<std::string>>;

Names fused(std::vector<Agreed> agreed, std::int64_t threshold) {
  Fuser fuser(threshold, 0);
  fuser.add(std::move(agreed), 0);
  Names names;
  for (const Response& response : fuser.take(0)) names.push_back(response.names);
  return names;
}

}  // namespace

TEST_CASE("fusion: only equals, up to the threshold, in the order of the first member") {
  Request average = sum_of("avg");
  average.op = ReduceOp::kAverage;
  Request scaled = sum_of("scaled");
  scaled.postscale = 2;
  Request mixed = sum_of("mixed");
  mixed.tensors.push_back({Dtype::kInt32, kCpu, {1}});
  Request rows = sum_of("rows");
  rows.kind = Kind::kAllgather;
  const auto make = [&] {
    std::vector<Agreed> all;
    for (const Request& request :
         {sum_of("a"), sum_of("i", {4}, Dtype::kInt32), average, sum_of("b"), scaled, mixed, rows,
          sum_of("c"), sum_of("j", {4}, Dtype::kInt32)}) {
      all.push_back(agreed_on(request));
    }
    return all;
  };
  CHECK(fused(make(), 1 << 20) ==
        Names{{"a", "b", "c"}, {"i", "j"}, {"avg"}, {"scaled"}, {"mixed"}, {"rows"}});
  CHECK(fused(make(), 32) ==
        Names{{"a", "b"}, {"i", "j"}, {"avg"}, {"scaled"}, {"mixed"}, {"rows"}, {"c"}});
  CHECK(fused(make(), 0).size() == 9);
}

TEST_CASE("fusion: an operation that failed stays alone and keeps its reason") {
  Agreed bad = agreed_on(sum_of("bad"));
  bad.status = Status::make(Code::kMismatch, "no", "test");
  Fuser fuser(1 << 20, 0);
  fuser.add({agreed_on(sum_of("a")), bad, agreed_on(sum_of("b"))}, 0);
  const auto responses = fuser.take(0);
  REQUIRE(responses.size() == 2);
  CHECK(responses[0].names == std::vector<std::string>{"a", "b"});
  CHECK(responses[1].status.message == "no");
}

TEST_CASE(
    "fusion: a cycle holds small operations back, but never past its end nor past the threshold") {
  Fuser fuser(64, 100);
  CHECK(fuser.due_in(0) < 0);
  fuser.add({agreed_on(sum_of("a"))}, 10);
  CHECK(fuser.take(50).empty());
  CHECK(fuser.due_in(50) == 60);
  fuser.add({agreed_on(sum_of("b"))}, 60);
  CHECK(fuser.take(109).empty());
  CHECK(fuser.take(110).size() == 1);
  CHECK(fuser.due_in(110) < 0);
  fuser.add({agreed_on(sum_of("big", {16}))}, 200);
  CHECK(fuser.take(200).size() == 1);
  fuser.add({agreed_on(sum_of("a"))}, 300);
  CHECK(fuser.take_all().size() == 1);
}

}  // namespace hvd::test
