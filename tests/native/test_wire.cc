// The control channel's format: what goes in comes out; nothing that comes in can crash.
#include <doctest/doctest.h>

#include <random>

#include "engine/wire.h"

namespace hvd::test {
namespace {

Request sample_request() {
  Request request;
  request.kind = Kind::kAllreduce;
  request.name = "layer.weight";
  request.op = ReduceOp::kAverage;
  request.prescale = 0.5;
  request.postscale = -3.25;
  request.root = 2;
  request.tensors = {{Dtype::kBfloat16, kCpu, {3, 0, 5}}, {Dtype::kInt64, 1, {}}};
  return request;
}

Response sample_response() {
  Response response;
  response.kind = Kind::kAllgather;
  response.status = Status::make(Code::kMismatch, "they differ", "engine/mismatch", 3);
  response.names = {"a", "", "a long name with \xc3\xa9"};
  response.rows = {0, 7, -1};
  response.rank = 4;
  return response;
}

}  // namespace

TEST_CASE("wire: requests survive the way") {
  Request barrier;
  barrier.name = "b";
  const auto got = decode_requests(encode(std::vector<Request>{sample_request(), barrier}));
  REQUIRE(got.is_ok());
  REQUIRE(got.value().size() == 2);
  const Request& request = got.value()[0];
  CHECK(request.kind == Kind::kAllreduce);
  CHECK(request.name == "layer.weight");
  CHECK(request.op == ReduceOp::kAverage);
  CHECK(request.prescale == 0.5);
  CHECK(request.postscale == -3.25);
  CHECK(request.root == 2);
  REQUIRE(request.tensors.size() == 2);
  CHECK(request.tensors[0].dtype == Dtype::kBfloat16);
  CHECK(request.tensors[0].shape == std::vector<std::int64_t>{3, 0, 5});
  CHECK(request.tensors[1].device == 1);
  CHECK(request.tensors[1].shape.empty());
  CHECK(got.value()[1].kind == Kind::kBarrier);
}

TEST_CASE("wire: responses survive the way") {
  const auto got = decode_responses(encode(std::vector<Response>{sample_response()}));
  REQUIRE(got.is_ok());
  const Response& response = got.value().at(0);
  CHECK(response.kind == Kind::kAllgather);
  CHECK(response.status.code == Code::kMismatch);
  CHECK(response.status.message == "they differ");
  CHECK(response.status.where == "engine/mismatch");
  CHECK(response.status.rank == 3);
  CHECK(response.names == sample_response().names);
  CHECK(response.rows == std::vector<std::int64_t>{0, 7, -1});
  CHECK(response.rank == 4);
}

TEST_CASE("wire: every truncation and every wrong tag is refused") {
  const std::string requests = encode(std::vector<Request>{sample_request()});
  const std::string responses = encode(std::vector<Response>{sample_response()});
  for (std::size_t n = 0; n < requests.size(); ++n) {
    CHECK_FALSE(decode_requests(requests.substr(0, n)).is_ok());
  }
  for (std::size_t n = 0; n < responses.size(); ++n) {
    CHECK_FALSE(decode_responses(responses.substr(0, n)).is_ok());
  }
  CHECK_FALSE(decode_requests(responses).is_ok());
  CHECK_FALSE(decode_responses(requests).is_ok());
  CHECK_FALSE(decode_requests(requests + "x").is_ok());
  CHECK(decode_requests(requests.substr(0, 1)).status().code == Code::kInternal);
}

TEST_CASE("wire: random and damaged bytes are refused or read, never a crash") {
  std::mt19937 random(7);
  const std::string good = encode(std::vector<Request>{sample_request(), sample_request()});
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (int i = 0; i < 1 + round % 4; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto got = decode_requests(bytes);
    if (!got) continue;
    for (const Request& request : got.value()) {
      CHECK((request.kind == Kind::kBarrier || request.kind == Kind::kLeave ||
             !request.tensors.empty()));
    }
    const auto as_responses = decode_responses(bytes);
    CHECK_FALSE(as_responses.is_ok());
  }
}

}  // namespace hvd::test
