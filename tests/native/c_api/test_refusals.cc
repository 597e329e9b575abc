// What the C table refuses at once: a sentence, and `done` is not called.
#include <doctest/doctest.h>

#include <cstddef>

#include "framework.h"

namespace hvd::test {
namespace {

// A sum of six floats that is right but for what a test changes.
struct Sum {
  std::vector<float> values = std::vector<float>(6);
  std::vector<std::int64_t> shape{2, 3};
  Told told;
  DLTensor in = view(values, shape), out = in;
  hvd_request request = request_of(HVD_ALLREDUCE, "x", told);

  Sum() {
    request.count = 1;
    request.inputs = &in;
    request.outputs = &out;
  }
  std::string refused(hvd_engine* engine) {
    int code = HVD_OK;
    const std::string text = asked(engine, request, &code);
    CHECK(code == HVD_INVALID_ARGUMENT);
    CHECK(told.calls() == 0);
    return text;
  }
};

void alone(const std::function<void(hvd_engine*)>& body) {
  on_ranks(1, [&](hvd_engine* engine, int) {
    body(engine);
    check_usable(engine, "x");
  });
}

}  // namespace

TEST_CASE("table: unsupported tensors are named, with the remedy") {
  alone([](hvd_engine* engine) {
    const auto sentence = [&](const std::function<void(Sum&)>& change) {
      Sum sum;
      change(sum);
      return sum.refused(engine);
    };
    std::vector<std::int64_t> strides{1, 2};
    CHECK(sentence([&](Sum& sum) { sum.in.strides = strides.data(); }) ==
          "tensor 0 of x is not contiguous; make a contiguous copy");
    CHECK(sentence([&](Sum& sum) { sum.out.strides = strides.data(); }) ==
          "output 0 of x is not contiguous; make a contiguous copy");
    CHECK(sentence([](Sum& sum) { sum.in.dtype = {kDLUInt, 128, 1}; }) ==
          "tensor 0 of x has elements of type uint128, which the core does not know; cast it to "
          "another type");
    CHECK(sentence([](Sum& sum) { sum.in.dtype = sum.out.dtype = {kDLUInt, 32, 1}; }) ==
          "allreduce of uint32 with op Sum is not available (x): cast it to int64");
    CHECK(sentence([](Sum& sum) { sum.in.dtype = {kDLFloat, 32, 4}; }) ==
          "tensor 0 of x has elements of type float32 in vectors of 4, which the core does not "
          "know; cast it to another type");
    CHECK(sentence([](Sum& sum) { sum.in.dtype = {99, 8, 1}; }) ==
          "tensor 0 of x has elements of type code 99 of 8 bits, which the core does not know; "
          "cast it to another type");
    CHECK(sentence([](Sum& sum) { sum.in.device = {10, 3}; }) ==
          "tensor 0 of x is on device 3 of DLPack's type 10, which the core does not know; copy it "
          "to the host");
    CHECK(sentence([](Sum& sum) { sum.in.data = nullptr; }) ==
          "tensor x is not empty, but its pointer is null");
    CHECK(sentence([](Sum& sum) { sum.out.data = nullptr; }) ==
          "output 0 of x is not empty, but its pointer is null");
    CHECK(sentence([](Sum& sum) { sum.in.shape = nullptr; }) ==
          "tensor 0 of x has 2 dimensions and no shape");
    CHECK(sentence([](Sum& sum) { sum.shape[0] = -2; }) ==
          "tensor 0 of x has the shape [-2, 3], which is not one that memory can hold");
    CHECK(sentence([](Sum& sum) { sum.out.dtype = {kDLInt, 32, 1}; }) ==
          "output 0 of x is not of the type and on the device of its input");
    std::vector<std::int64_t> other{7};
    CHECK(sentence([&](Sum& sum) {
            sum.out.ndim = 1;
            sum.out.shape = other.data();
          }) == "output 0 of x has the shape [7], its input [2, 3]");
  });
}

TEST_CASE("table: requests that make no sense") {
  alone([](hvd_engine* engine) {
    const auto sentence = [&](const std::function<void(hvd_request&)>& change) {
      Sum sum;
      change(sum.request);
      return sum.refused(engine);
    };
    CHECK(sentence([](auto& request) { request.kind = 4; }) == "there is no kind 4");
    CHECK(sentence([](auto& request) { request.op = 6; }) == "reduction op 6 does not exist");
    CHECK(sentence([](auto& request) { request.done = nullptr; }) ==
          "a request needs a function `done`");
    CHECK(sentence([](auto& request) { request.inputs = nullptr; }) == "allreduce without inputs");
    CHECK(sentence([](auto& request) { request.outputs = nullptr; }) ==
          "allreduce without outputs");
    CHECK(sentence([](auto& request) { request.count = 0; }) == "x: a group of no tensors");
    CHECK(sentence([](auto& request) { request.kind = HVD_BARRIER; }) ==
          "barrier takes no tensors");
    CHECK(sentence([](auto& request) { request.set = 5; }) ==
          "Allreduce: Process set provided does not exist, or has not been registered.");
    CHECK(sentence([](auto& request) {
            request.kind = HVD_BROADCAST;
            request.root = 1;
          }) == "broadcast received invalid root rank 1 for provided process set");
    char text[32] = "";
    CHECK(core().enqueue(engine, nullptr, text, sizeof(text)) == HVD_INVALID_ARGUMENT);
    CHECK(std::string(text) == "no request was given");
  });
}

TEST_CASE("table: shares that do not fit") {
  on_ranks(2, [](hvd_engine* engine, int) {
    Told told;
    std::vector<float> values(3);
    CHECK(ask(engine, HVD_ALLTOALL, "a", values, {3}, told) ==
          "splits not provided, but first dimension of tensor is not an even multiple of the "
          "number of workers.");
    std::vector<std::int64_t> splits{3, 1};
    CHECK(ask(engine, HVD_ALLTOALL, "a", values, {3}, told, [&](hvd_request& request) {
            request.splits = splits.data();
            request.splits_count = 2;
          }) == "Sum of splits entries is greater than the first dimension of tensor.");
    std::vector<float> result(3);
    std::vector<std::int64_t> shape{3};
    const DLTensor out = view(result, shape);
    const int rank = core().rank(engine);
    CHECK(ask(engine, HVD_REDUCESCATTER, "r", values, {3}, told,
              [&](hvd_request& request) { request.outputs = &out; }) ==
          std::string("output 0 of r has the shape [3], the share of this rank ") +
              (rank == 0 ? "[2]" : "[1]"));
    CHECK(told.calls() == 0);
  });
}

TEST_CASE("table: a name that is in flight is refused, and taken once more when it has ended") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    std::vector<float> first(2, 1.0F), second(2, 1.0F);
    Told told, refused;
    if (rank == 0) {
      REQUIRE(ask_sum(engine, "x", first, told) == "");
      CHECK(ask_sum(engine, "x", second, refused).find("same name as another tensor") !=
            std::string::npos);
    }
    Told barrier;
    REQUIRE(asked(engine, request_of(HVD_BARRIER, "b", barrier)) == "");
    barrier.check();
    if (rank == 1) REQUIRE(ask_sum(engine, "x", first, told) == "");
    told.check();
    REQUIRE(ask_sum(engine, "x", second, refused) == "");
    refused.check();
    CHECK(second == std::vector<float>(2, 2.0F));
  });
}

TEST_CASE("table: a text is cut where it is too long, and may be missing") {
  alone([](hvd_engine* engine) {
    Sum sum;
    sum.request.kind = 4;
    char text[9] = "xxxxxxxx";
    CHECK(core().enqueue(engine, &sum.request, text, sizeof(text)) == HVD_INVALID_ARGUMENT);
    CHECK(std::string(text) == "there is");
    CHECK(core().enqueue(engine, &sum.request, nullptr, 0) == HVD_INVALID_ARGUMENT);
    CHECK(core().enqueue(engine, &sum.request, text, 0) == HVD_INVALID_ARGUMENT);
  });
}

TEST_CASE("table: a plugin that knows fewer fields gets nothing for the others") {
  alone([](hvd_engine* engine) {
    Sum sum;
    sum.request.struct_size = offsetof(hvd_request, done);
    CHECK(sum.refused(engine) == "a request needs a function `done`");
    // A plugin of later times, whose fields we do not know.
    struct Later {
      hvd_request request;
      char more[64];
    } later{sum.request, "unknown"};
    later.request.struct_size = sizeof(later);
    CHECK(asked(engine, later.request) == "");
    sum.told.check();
  });
}

}  // namespace hvd::test
