// One call of the handler, from XLA's frame to its result or error.
#include "jax/call.h"
#include "jax/fake_xla.h"

namespace hvd::jax::test {
namespace {

using Floats = std::vector<float>;

TEST_CASE("the metadata say version 0.1, and promise nothing of CUDA graphs") {
  Metadata metadata{};
  metadata.traits = 7;
  MetadataExtension extension{{sizeof(MetadataExtension), kMetadata, nullptr}, &metadata};
  Frame frame{};
  frame.extension = &extension.base;
  CHECK(run(&frame) == nullptr);
  CHECK(metadata.version.major == 0);
  CHECK(metadata.version.minor == 1);
  CHECK(metadata.traits == 0);
}

TEST_CASE("the functions of futures are found where this XLA has them, by trying") {
  const FakeXla xla;
  const Futures* const found = futures(&xla.api);
  REQUIRE(found != nullptr);
  CHECK((found->create == xla.api.after_schedule[1]));
  CHECK((found->fail == xla.api.after_schedule[3]));
}

TEST_CASE("other stages than execution are ignored") {
  const FakeXla xla;
  FakeCore core;
  Floats in{1}, out{0};
  FrameOf call(xla, "allreduce.a", &in, &out);
  call.frame.stage = 0;
  CHECK(run(&call.frame) == nullptr);
  CHECK(core.requests.empty());
}

TEST_CASE("an operation that ends within enqueue needs no future") {
  const FakeXla xla;
  FakeCore core;
  core.is_quick = true;
  Floats in{1, 2}, out{0, 0};
  FrameOf call(xla, "allreduce.a", &in, &out);
  CHECK(run(&call.frame) == nullptr);
  CHECK(call.frame.future == nullptr);
  REQUIRE(core.requests.size() == 1);
  CHECK(core.names[0] == "allreduce.a");
  CHECK_FALSE(any_under_way());
}

TEST_CASE("a later end sets its future, on a thread outside the core") {
  const FakeXla xla;
  FakeCore core;
  Floats in{1, 2}, out{0, 0};
  FrameOf call(xla, "allreduce.a", &in, &out);
  CHECK(run(&call.frame) == nullptr);
  REQUIRE(call.frame.future != nullptr);
  CHECK_FALSE(call.frame.future->is_set);
  CHECK(any_under_way());
  core.end(0);
  CHECK(call.frame.future->wait() == nullptr);
}

TEST_CASE("a failure has the class and the rank that it has in Python") {
  const FakeXla xla;
  FakeCore core;
  Floats in{1}, out{0};
  FrameOf call(xla, "allreduce.a", &in, &out);
  REQUIRE(run(&call.frame) == nullptr);
  core.end(0, HVD_RANK_DIED, "rank 1 has died", 1);
  const Error* const why = call.frame.future->wait();
  REQUIRE(why != nullptr);
  CHECK(why->code == static_cast<std::int32_t>(Code::kAborted));
  CHECK(why->text == "rank 1 has died [hvd_kernel.errors.RankDied, rank 1]");
}

TEST_CASE("an immediate refusal is an error of the call") {
  const FakeXla xla;
  FakeCore core;
  Floats in{1}, out{0};
  FrameOf call(xla, "allreduce.a", &in, &out);
  SUBCASE("by the core") {
    core.refusal = "no such set";
    const Error* const why = run(&call.frame);
    REQUIRE(why != nullptr);
    CHECK(why->text == "no such set");
    CHECK(why->code == static_cast<std::int32_t>(Code::kInvalidArgument));
  }
  SUBCASE("before init") {
    core.engine = false;
    const Error* const why = run(&call.frame);
    REQUIRE(why != nullptr);
    CHECK(why->text ==
          "Horovod has not been initialized; use hvd.init(). "
          "[hvd_kernel.errors.HorovodInternalError]");
  }
  SUBCASE("a type that no rank can send") {
    call.type(21);
    const Error* const why = run(&call.frame);
    REQUIRE(why != nullptr);
    CHECK(why->text ==
          "allreduce.a: arrays of XLA's type 21 cannot be sent to other ranks; use astype(...)");
  }
  SUBCASE("a program for another number of ranks") {
    call.traced_for(3);
    const Error* const why = run(&call.frame);
    REQUIRE(why != nullptr);
    CHECK(
        why->text ==
        "allreduce.a was compiled for 3 ranks, and there are 2 now: call jax.clear_caches() after "
        "the number of ranks has changed [hvd_kernel.errors.Mismatch]");
  }
  CHECK(call.frame.future == nullptr);
  CHECK_FALSE(any_under_way());
}

TEST_CASE("a name in flight is refused: ranks could mix up the operations") {
  const FakeXla xla;
  FakeCore core;
  Floats in{1}, out{0}, in2{1}, out2{0};
  FrameOf first(xla, "allreduce.a", &in, &out), second(xla, "allreduce.a", &in2, &out2);
  REQUIRE(run(&first.frame) == nullptr);
  const Error* const why = run(&second.frame);
  REQUIRE(why != nullptr);
  CHECK(why->text.rfind("allreduce.a is under way twice, so ranks could take the one for the other",
                        0) == 0);
  core.end(0);
  CHECK(first.frame.future->wait() == nullptr);
  CHECK_FALSE(any_under_way());
  core.is_quick = true;
  FrameOf third(xla, "allreduce.a", &in2, &out2);
  CHECK(run(&third.frame) == nullptr);
}

TEST_CASE("results of the core's memory are copied into XLA's, and given back") {
  const FakeXla xla;
  FakeCore core;
  Floats in{1}, out{0, 0};
  FrameOf call(xla, "allgather.a", &in, &out, HVD_ALLGATHER);
  REQUIRE(run(&call.frame) == nullptr);
  Floats rows{3, 4};
  std::int64_t shape = 2;
  hvd_output output{sizeof(hvd_output), {}, nullptr};
  output.tensor = {rows.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &shape, nullptr, 0};
  SUBCASE("of the shape that was compiled") {
    core.end(0, HVD_OK, "", -1, {output});
    CHECK(call.frame.future->wait() == nullptr);
    CHECK(out == rows);
  }
  SUBCASE("of another one: a rank has more rows") {
    shape = 1;
    core.end(0, HVD_OK, "", -1, {output});
    const Error* const why = call.frame.future->wait();
    REQUIRE(why != nullptr);
    CHECK(why->text.find("1 rows came, and the program was compiled for 2") != std::string::npos);
  }
  CHECK(core.kept == 0);
}

TEST_CASE("a result for one rank only is zero on the others") {
  const FakeXla xla;
  FakeCore core;
  core.is_quick = true;
  core.rank = 1;
  Floats in{1}, out{5};
  FrameOf call(xla, "allreduce.a", &in, &out);
  call.only(0);
  SUBCASE("alone") {}
  SUBCASE("beside the one of no elements that programs of an old XLA have") { call.with_nothing(); }
  CHECK(run(&call.frame) == nullptr);
  CHECK(out == Floats{0});
}

TEST_CASE("a program that computes long after one result blocks no other") {
  const FakeXla xla;
  FakeCore core;
  std::deque<Floats> memory(8, Floats{1});
  std::deque<FrameOf> calls;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    calls.emplace_back(xla, "allreduce." + std::to_string(i), &memory[i], &memory[i]);
    REQUIRE(run(&calls[i].frame) == nullptr);
  }
  const std::unique_lock<std::mutex> held(calls[0].frame.future->lock);  // its thread waits in set
  for (std::size_t i = 0; i < memory.size(); ++i) core.end(i);
  for (std::size_t i = 1; i < memory.size(); ++i) CHECK(calls[i].frame.future->wait() == nullptr);
}

TEST_CASE("gradients that are all there are given back as they are") {
  const FakeXla xla;
  Floats in{1, 2}, out{0, 0};
  FrameOf call(xla, "", &in, &out);
  SUBCASE("when XLA asks what the handler is, nothing is") {
    call.frame.stage = 0;
    CHECK(together(&call.frame) == nullptr);
    CHECK(out == Floats{0, 0});
  }
  SUBCASE("elsewhere") {
    CHECK(together(&call.frame) == nullptr);
    CHECK(out == Floats{1, 2});
  }
  SUBCASE("where they lie") {
    FrameOf there(xla, "", &in, &in);
    CHECK(together(&there.frame) == nullptr);
    CHECK(in == Floats{1, 2});
  }
  SUBCASE("of a type that no rank can send") {
    call.type(21);
    const Error* const why = together(&call.frame);
    REQUIRE(why != nullptr);
    CHECK(why->text == "gradients of XLA's type 21 cannot be reduced");
  }
}

}  // namespace
}  // namespace hvd::jax::test
