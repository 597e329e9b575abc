// The control channel's format: what goes in comes out; nothing that comes in can crash.
#include <doctest/doctest.h>

#include <random>

#include "engine/controller/response_cache.h"
#include "engine/message/wire.h"

namespace hvd::test {
namespace {

Request sample_request() {
  Request request;
  request.kind = Kind::kAllreduce;
  request.set = 3;
  request.name = "layer.weight";
  request.op = ReduceOp::kAverage;
  request.prescale = 0.5;
  request.postscale = -3.25;
  request.root = 2;
  request.tensors.resize(2);
  request.tensors[0].dtype = Dtype::kBfloat16;
  request.tensors[0].shape = {3, 0, 5};
  request.tensors[0].place = 7 * kRegionSpan + 64;
  request.tensors[1].dtype = Dtype::kInt64;
  request.tensors[1].device = 1;
  request.sizes = {4, 5};
  return request;
}

RequestList sample_asks() {
  RequestList requests;
  requests.assignments = 77;
  requests.changes = 3;
  requests.slots = {0, 0, 5};
  Request leave;
  leave.kind = Kind::kLeave;
  requests.full = {{sample_request(), {1, 4}}, {leave, {2}}};
  return requests;
}

ResponseMessage sample_message() {
  ResponseMessage message;
  Response& response = message.response;
  response.kind = Kind::kAllgather;
  response.set = 2;
  response.status = Status::make(Code::kStalled, "they wait", "engine/stall", 3);
  response.names = {"a", "", "a long name with \xc3\xa9"};
  response.sizes = {0, 7, 9};
  response.rank = 4;
  response.shared = true;
  response.absent = {sample_request(), sample_request(), sample_request()};
  message.only = {0, 5};
  message.slots = {3, -1, 4};
  message.version = 12;
  return message;
}

std::string sample_responses() {
  std::string items;
  append_cached(items, {4, 1, 1000});
  append_again(items, 6, 99);
  append_response(items, sample_message());
  return response_list_of(items, 3);
}

}  // namespace

TEST_CASE("wire: a request list is read as it was written") {
  const auto got = decode_requests(encode(sample_asks()));
  REQUIRE(got.is_ok());
  const RequestList& requests = got.value();
  CHECK(requests.assignments == 77);
  CHECK(requests.changes == 3);
  CHECK(requests.slots == std::vector<std::uint64_t>{0, 0, 5});
  REQUIRE(requests.full.size() == 2);
  CHECK(requests.full[0].ranks == std::vector<int>{1, 4});
  const Request& request = requests.full[0].request;
  CHECK(same(request, sample_request()));
  CHECK(request.name == "layer.weight");
  CHECK(request.tensors[0].place == 7 * kRegionSpan + 64);
  CHECK(request.tensors[1].place == kPrivate);
  CHECK(requests.full[1].request.kind == Kind::kLeave);
}

TEST_CASE("wire: a repeated request takes one bit") {
  RequestList requests;
  const std::size_t nothing = encode(requests).size();
  requests.slots = {1};
  const std::size_t one = encode(requests).size();
  requests.slots = {~std::uint64_t{0}};
  CHECK(one == nothing + 8);
  CHECK(encode(requests).size() == one);  // 64 of them
  requests.slots.insert(requests.slots.begin(), 500, 0);
  CHECK(encode(requests).size() == one);  // wherever they lie
}

TEST_CASE("wire: a response list is read as it was written") {
  const auto got = decode_responses(sample_responses());
  REQUIRE(got.is_ok());
  REQUIRE(got.value().size() == 3);
  CHECK(got.value()[0].sort == Item::Sort::kCached);
  CHECK(got.value()[0].slots == std::vector<int>{4, 1, 1000});
  CHECK(got.value()[1].sort == Item::Sort::kAgain);
  CHECK(got.value()[1].slot == 6);
  CHECK(got.value()[1].version == 99);
  const Item& item = got.value()[2];
  CHECK(item.sort == Item::Sort::kResponse);
  CHECK(item.begin == got.value()[1].end);
  CHECK(item.end == sample_responses().size());
  const Response& response = item.message.response;
  CHECK(response.kind == Kind::kAllgather);
  CHECK(response.set == 2);
  CHECK(response.status.code == Code::kStalled);
  CHECK(response.status.message == "they wait");
  CHECK(response.status.where == "engine/stall");
  CHECK(response.status.rank == 3);
  CHECK(response.names == sample_message().response.names);
  CHECK(response.sizes == std::vector<std::int64_t>{0, 7, 9});
  CHECK(response.rank == 4);
  CHECK(response.shared);
  REQUIRE(response.absent.size() == 3);
  CHECK(same(response.absent[2], sample_request()));
  CHECK(item.message.only == std::vector<int>{0, 5});
  CHECK(item.message.slots == std::vector<int>{3, -1, 4});
  CHECK(item.message.version == 12);
}

TEST_CASE("wire: new parameters are read as they were written") {
  ResponseMessage message;
  message.response.kind = Kind::kTune;
  message.response.tunables = {1 << 20, 2500, false, true, false};
  std::string items;
  append_response(items, message);
  const auto got = decode_responses(response_list_of(items, 1));
  REQUIRE(got.is_ok());
  const Tunables& tunables = got.value()[0].message.response.tunables;
  CHECK(tunables.fusion_threshold == 1 << 20);
  CHECK(tunables.cycle_ns == 2500);
  CHECK_FALSE(tunables.hierarchical_allreduce);
  CHECK(tunables.hierarchical_allgather);
  CHECK_FALSE(tunables.cache);
}

TEST_CASE("wire: every truncation, wrong tag and trailing byte is refused") {
  const std::string requests = encode(sample_asks());
  const std::string responses = sample_responses();
  for (std::size_t n = 0; n < requests.size(); ++n)
    CHECK_FALSE(decode_requests(requests.substr(0, n)));
  for (std::size_t n = 0; n < responses.size(); ++n) {
    CHECK_FALSE(decode_responses(responses.substr(0, n)));
  }
  CHECK_FALSE(decode_requests(responses));
  CHECK_FALSE(decode_responses(requests));
  CHECK_FALSE(decode_requests(requests + "x"));
  CHECK_FALSE(decode_responses(responses + "x"));
  CHECK(decode_requests(requests.substr(0, 1)).status().code == Code::kInternal);
}

TEST_CASE("wire: requests with invalid fields are refused") {
  const auto refused = [](const Request& request) {
    RequestList requests;
    requests.full = {{request, {}}};
    return !decode_requests(encode(requests));
  };
  Request request = sample_request();
  CHECK_FALSE(refused(request));
  request.name.clear();
  CHECK(refused(request));
  request = sample_request();
  request.set = -1;
  CHECK(refused(request));
  request = sample_request();
  request.tensors.clear();
  CHECK(refused(request));
  request = sample_request();
  request.tensors[0].shape = {-1};
  CHECK(refused(request));
  request.tensors[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  CHECK(refused(request));
  request = sample_request();
  request.tensors[0].place = -2;
  CHECK(refused(request));
  for (const Kind kind : {Kind::kAllgather, Kind::kReducescatter, Kind::kAlltoall}) {
    request = sample_request();
    request.kind = kind;
    request.tensors = {TensorMeta()};  // a scalar
    CHECK(refused(request));
    request.tensors[0].shape = {2};
    CHECK_FALSE(refused(request));
  }
  request.kind = Kind::kAlltoall;
  request.sizes = {1, -1};
  CHECK(refused(request));
  for (const Kind kind : {Kind::kAddSet, Kind::kRemoveSet, Kind::kAllocate, Kind::kRelease}) {
    request = Request();
    request.name = "x";
    request.kind = kind;
    CHECK(refused(request));
    request.sizes = {1};
    CHECK_FALSE(refused(request));
    request.set = 1;
    CHECK(refused(request));
  }
  request = Request();
  request.name = "x";
  request.kind = Kind::kTune;
  CHECK(refused(request));
}

TEST_CASE("wire: slots outside the cache are refused") {
  std::string items;
  append_cached(items, {kMostSlots});
  CHECK_FALSE(decode_responses(response_list_of(items, 1)));
  items.clear();
  append_cached(items, {-1});
  CHECK_FALSE(decode_responses(response_list_of(items, 1)));
  items.clear();
  append_cached(items, {});
  CHECK_FALSE(decode_responses(response_list_of(items, 1)));
  RequestList requests;
  requests.slots.resize(kMostSlots / 64 + 1, 1);
  CHECK_FALSE(decode_requests(encode(requests)));
}

TEST_CASE("wire: random and damaged bytes are refused or read, never a crash") {
  std::mt19937 random(7);
  const std::string requests = encode(sample_asks());
  const std::string responses = sample_responses();
  int read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = round % 2 == 0 ? requests : responses;
    for (int i = 0; i < 1 + round % 4; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto as_asks = decode_requests(bytes);
    const auto as_response_list = decode_responses(bytes);
    CHECK_FALSE((as_asks.is_ok() && as_response_list.is_ok()));
    read += static_cast<int>(as_asks.is_ok()) + static_cast<int>(as_response_list.is_ok());
  }
  CHECK(read > 1000);  // the damage was not all in the first bytes
}

}  // namespace hvd::test
