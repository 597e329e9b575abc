// The order of calls of one name, and how all of them end.
#include <atomic>
#include <thread>

#include "mxnet/core_of_tests.h"

namespace hvd::mxnet::test {
namespace {

using fake_mxnet::operation;
using Names = std::vector<std::string>;

void check_all_ended(const std::string& error) {
  for (std::size_t number = 0; number < fake_mxnet::pushed(); ++number) {
    CAPTURE(number);
    CHECK(operation(number).error == error);
    CHECK(operation(number).ended == 1);
    CHECK(operation(number).dropped == 1);
  }
  CHECK(fake_mxnet::arrays() == 0);
}

}  // namespace

TEST_CASE("mxnet: calls of one name are passed on in push order, one at a time") {
  begin();
  FakeCore core;
  for (int set = 0; set < 2; ++set) {
    for (int i = 0; i < 3; ++i) ask_in_place("x", set);
  }
  ask_in_place("y");
  for (const std::size_t number : {2, 1, 4, 6}) fake_mxnet::run(number);
  CHECK(core.names() == Names{"y"});  // those before them are not ready
  fake_mxnet::run(0);
  CHECK(core.names() == Names{"y", "x"});
  CHECK(core.all[1].request.set == 0);
  const auto written = [&](std::size_t number) {
    return operation(number).writes[0]->words.data() == core.all.back().outputs[0].data;
  };
  CHECK(written(0));
  core.end(1);
  CHECK(written(1));
  fake_mxnet::run(3);  // another set is another queue
  CHECK(core.all.back().request.set == 1);
  CHECK(written(3));
  core.end(2);
  CHECK(written(2));
  core.end(3);
  CHECK(written(4));
  fake_mxnet::run(5);
  for (const std::size_t number : {4, 5, 6, 0}) core.end(number);
  check_all_ended("");
}

TEST_CASE("mxnet: a call that MXNet drops without a run releases the next one") {
  begin();
  FakeCore core;
  for (int i = 0; i < 4; ++i) ask_in_place("x");
  fake_mxnet::run(1);
  fake_mxnet::run(3);
  CHECK(core.names().empty());
  fake_mxnet::forget(2);  // not the first
  CHECK(core.names().empty());
  fake_mxnet::forget(0);
  REQUIRE(core.names() == Names{"x"});
  core.end(0);
  REQUIRE(core.names() == Names{"x", "x"});
  core.end(1);
  for (const std::size_t number : {0, 2}) {
    CHECK(operation(number).ended == 0);
    CHECK(operation(number).dropped == 1);
  }
  for (const std::size_t number : {1, 3}) {
    CHECK(operation(number).ended == 1);
    CHECK(operation(number).dropped == 1);
  }
  CHECK(fake_mxnet::arrays() == 0);
}

TEST_CASE("mxnet: a queue whose operations end immediately empties automatically") {
  begin();
  FakeCore core;
  constexpr std::size_t kCalls = 500;
  for (std::size_t i = 0; i < kCalls; ++i) ask_in_place("x");
  for (std::size_t number = kCalls - 1; number > 0; --number) fake_mxnet::run(number);
  CHECK(core.names().empty());
  core.ends_at_once = HVD_OK;
  fake_mxnet::run(0);
  CHECK(core.names().size() == kCalls);
  check_all_ended("");
}

TEST_CASE("mxnet: an abort ends running, queued and later operations") {
  begin();
  FakeCore core;
  for (int i = 0; i < 3; ++i) ask_in_place("x");
  ask_in_place("y");
  for (const std::size_t number : {0, 1, 3}) fake_mxnet::run(number);
  REQUIRE(core.names() == Names{"x", "y"});
  core.ends_at_once = HVD_ABORTED;  // from now on
  core.end(0, HVD_ABORTED, "why", 1);
  core.end(1, HVD_ABORTED, "why", 1);
  fake_mxnet::run(2);
  ask_in_place("x");
  fake_mxnet::run(4);
  check_all_ended("hvd_kernel.errors.RankFailed: [rank 1] why");
}

TEST_CASE("mxnet: after a shutdown queued operations fail with no engine") {
  begin();
  FakeCore core;
  for (int i = 0; i < 3; ++i) ask_in_place("x");
  for (const std::size_t number : {0, 1, 2}) fake_mxnet::run(number);
  core.initialized = false;
  core.end(0, HVD_SHUTDOWN, "it has been shut down");
  CHECK(operation(0).error == "hvd_kernel.errors.HorovodInternalError: it has been shut down");
  for (const std::size_t number : {1, 2}) {
    CHECK(operation(number).error ==
          "hvd_kernel.errors.HorovodInternalError: " + std::string(plugin::kNotInitialized));
    CHECK(operation(number).ended == 1);
    CHECK(operation(number).dropped == 1);
  }
  CHECK(fake_mxnet::arrays() == 0);
  CHECK(core.engines == 0);
}

TEST_CASE("mxnet: threads that push and run while others end leave no call behind") {
  begin();
  FakeCore core;
  constexpr int kThreads = 3, kCalls = 200;
  std::vector<std::thread> threads;
  std::atomic<std::size_t> next{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&next] {
      for (int i = 0; i < kCalls; ++i) {
        ask_in_place("x");
        fake_mxnet::run(next++);
      }
    });
  }
  for (std::size_t ended = 0; ended < kThreads * kCalls;) {
    if (ended < core.names().size()) {
      core.end(ended++);
    } else {
      std::this_thread::yield();
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(core.names().size() == kThreads * kCalls);
  check_all_ended("");
}

}  // namespace hvd::mxnet::test
