// The real core beneath a fake MXNet: what is small is worked at, and ends, while it is taken.
#include <doctest/doctest.h>

#include "c_api/framework.h"
#include "mxnet/core_of_tests.h"

namespace hvd::mxnet::test {
namespace {

// A rank alone, whose engine is the process's meanwhile.
void with_engine(const std::function<void(hvd_engine*)>& body) {
  begin();
  hvd::test::on_ranks(1, [&](hvd_engine* engine, int) {
    plugin::table() = hvd_core_table();
    plugin::core()->make_current(engine);
    body(engine);
    plugin::core()->make_current(nullptr);
    plugin::table() = nullptr;
  });
  fake_mxnet::clear();
}

}  // namespace

TEST_CASE("mxnet: the core reduces an array in MXNet's memory") {
  with_engine([](hvd_engine*) {
    Held held;
    void* const array = held.array({2, 2});
    fake_mxnet::of(array).memory().words = {1, 2, 3, 4};
    Asked asked;
    asked.prescale = 3;
    for (std::size_t number = 0; number < 3; ++number) {
      REQUIRE(ask(asked, {array}, {array}) == "");
      fake_mxnet::run(number);
      hvd::test::check_usable(plugin::Engine().get(), "after");
      CHECK(fake_mxnet::operation(number).error == "");
      CHECK(fake_mxnet::operation(number).ended == 1);
    }
    CHECK(fake_mxnet::of(array).memory().words == std::vector<double>{27, 54, 81, 108});
  });
}

TEST_CASE("mxnet: the core's abort and shutdown end operations with their sentences") {
  with_engine([](hvd_engine* engine) {
    plugin::core()->abort(engine, "the reason");
    ask_in_place("x");
    fake_mxnet::run(0);
    plugin::core()->shutdown(engine);
    ask_in_place("x");
    fake_mxnet::run(1);
    CHECK(fake_mxnet::operation(0).error ==
          "hvd_kernel.errors.RankFailed: [rank 0] Rank 0 failed: the reason");
    for (const std::size_t number : {0, 1}) {
      CHECK(fake_mxnet::operation(number).ended == 1);
      CHECK(fake_mxnet::operation(number).dropped == 1);
    }
    CHECK(fake_mxnet::operation(1).error.find("hvd_kernel.errors.") == 0);
    CHECK(fake_mxnet::arrays() == 0);
  });
}

}  // namespace hvd::mxnet::test
