// A candidate is tested before it is taken: results that are wrong or do not come, on one rank, are
// everybody's reason not to take it; of several algorithms the fastest is taken.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <string>

#include "cuda/group/self_test.h"
#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

// A collective that the self-test asks for.
struct Call {
  std::string what;  // as the self-test calls it
  std::size_t algorithm;
  void* out;
  std::function<Status()> go;  // does it, as the ring does
};
using Trickery = std::function<Status(const Call&)>;

// A ring, and what is put in front of it.
class Trick final : public DeviceBackend {
 public:
  Trick(std::unique_ptr<DeviceBackend> ring, std::size_t algorithms, Trickery trickery)
      : ring_(std::move(ring)), algorithms_(algorithms), trickery_(std::move(trickery)) {}

  std::size_t taken() const { return algorithm_; }
  std::size_t algorithms() const override { return algorithms_; }
  void take(std::size_t algorithm) override { algorithm_ = algorithm; }
  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override {
    return call("sum", operands[0].out,
                [&] { return ring_->allreduce(group, operands, reduction); });
  }
  Status broadcast(const Group& group, const std::vector<Operand>& operands, int root) override {
    return call("broadcast", operands[0].out,
                [&] { return ring_->broadcast(group, operands, root); });
  }
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override {
    return call("gather", tensors[0].out[0], [&] { return ring_->allgather(group, tensors); });
  }
  Status alltoall(const Group& group, const Exchange& exchange) override {
    return call("exchange", exchange.out[0], [&] { return ring_->alltoall(group, exchange); });
  }
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override {
    return call("reducescatter", tensors[0].out,
                [&] { return ring_->reducescatter(group, tensors, reduction); });
  }
  const char* last_algorithm() const override { return ring_->last_algorithm(); }
  Status abort_waits() override { return ring_->abort_waits(); }
  Status finalize() override { return ring_->finalize(); }

 private:
  Status call(const char* what, void* out, const std::function<Status()>& go) {
    return trickery_({what, algorithm_, out, go});
  }

  std::unique_ptr<DeviceBackend> ring_;
  std::size_t algorithms_;
  std::size_t algorithm_ = 99;
  Trickery trickery_;
};

constexpr RingSetup kSetup{3, 2, 1 << 20};

// What the self-test says on a rank of three whose ring is played a trick on.
Status tried(Rank& rank, double seconds, const Trickery& trickery) {
  const Group group = everybody(3, rank.number());
  Trick trick(rank.ring(group), 1, trickery);
  BootstrapGroup bootstrap = rank.bootstrap(group);
  bootstrap.self_test_seconds = seconds;
  Status status = run_self_test(trick, bootstrap).status();
  if (status) REQUIRE(trick.finalize().message == "");
  if (status) rank.synchronize();
  return status;
}

void spoil(Rank& rank, void* out) {
  const Current current(rank.device());
  REQUIRE(rank.device().driver().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(out), 0x40000000, 1,
                                                  rank.device().stream()) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("self-test: a working ring passes, after every collective") {
  on_rings(kSetup, [&](Rank& rank) {
    std::vector<std::string> asked;
    const Status status = tried(rank, 20, [&](const Call& call) {
      CHECK(call.algorithm == 0);
      if (asked.empty() || asked.back() != call.what) asked.push_back(call.what);
      return call.go();
    });
    CHECK(status.message == "");
    CHECK(asked ==
          std::vector<std::string>{"sum", "broadcast", "gather", "exchange", "reducescatter"});
  });
}

TEST_CASE("self-test: a result that is wrong on one rank is named on all") {
  for (const std::string wrong : {"sum", "broadcast", "gather", "exchange", "reducescatter"}) {
    CAPTURE(wrong);
    on_rings(kSetup, [&](Rank& rank) {
      const Status status = tried(rank, 20, [&](const Call& call) {
        Status done = call.go();
        if (call.what == wrong && rank.number() == 1) spoil(rank, call.out);
        return done;
      });
      CHECK(status.code == Code::kUnavailable);
      CHECK(status.rank == 1);
      CHECK(status.message.find("a first " + wrong + " was wrong") != std::string::npos);
    });
  }
}

TEST_CASE("self-test: an idle ring does not pass with earlier results") {
  for (const std::string idle : {"broadcast", "gather", "exchange", "reducescatter"}) {
    CAPTURE(idle);
    on_rings(kSetup, [&](Rank& rank) {
      const Status status = tried(
          rank, 20, [&](const Call& call) { return call.what == idle ? Status::ok() : call.go(); });
      CHECK(status.message.find("a first " + idle + " was wrong") != std::string::npos);
    });
  }
  on_rings(kSetup, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    Trick trick(rank.ring(group), 2,
                [](const Call& call) { return call.algorithm == 1 ? Status::ok() : call.go(); });
    const Status status = run_self_test(trick, rank.bootstrap(group)).status();
    CHECK(status.message.find("a first sum was wrong") != std::string::npos);
    REQUIRE(trick.finalize().message == "");
    rank.synchronize();
  });
}

// A released rank reads and writes without waiting for others: an intended race.
#ifndef __SANITIZE_THREAD__
TEST_CASE("self-test: a rank that never begins blocks no other") {
  on_rings(kSetup, [&](Rank& rank) {
    const Status status = tried(
        rank, 0.3, [&](const Call& call) { return rank.number() == 2 ? Status::ok() : call.go(); });
    CHECK(!status);
    CHECK(status.code == Code::kUnavailable);
  });
}

TEST_CASE("self-test: an error on one rank is reported on all, with its reason") {
  on_rings(kSetup, [&](Rank& rank) {
    const Status status = tried(rank, 5, [&](const Call& call) {  // others wait for it in vain
      return rank.number() == 1
                 ? Status::make(Code::kUnavailable, "this card is made of wood", "test", 1)
                 : call.go();
    });
    CHECK(status.message == "this card is made of wood");
    CHECK(status.rank == 1);
  });
}
#endif

TEST_CASE("self-test: all use the form with the fastest slowest rank") {
  struct Case {
    std::array<std::array<double, 2>, 3> seconds;  // by rank and algorithm, of the fastest lap
    std::size_t taken;
    double slowest;
  };
  for (const Case& one :
       {Case{{{{1, 2}, {1, 2}, {1, 2}}}, 0, 1}, Case{{{{2, 1}, {2, 1}, {2, 1}}}, 1, 1},
        // quicker on two ranks, and on average
        Case{{{{1, 3}, {1, 3}, {4, 3}}}, 1, 3}}) {
    CAPTURE(one.taken);
    on_rings(kSetup, [&](Rank& rank) {
      const Group group = everybody(3, rank.number());
      std::array<int, 2> laps{};
      Trick trick(rank.ring(group), 2, [&](const Call& call) { return call.go(); });
      const auto seconds_of = [&](const Device& device, const Device::Event& begun,
                                  const Device::Event& done) -> Result<double> {
        CHECK(seconds_of_lap(device, begun, done).is_ok());
        const std::size_t algorithm = trick.taken();
        const double fastest = one.seconds[static_cast<std::size_t>(rank.number())][algorithm];
        const int lap = laps[algorithm]++;
        return lap == 0 ? 0.0 : lap == 2 ? fastest : 2 * fastest;  // the first one does not count
      };
      const auto passed = run_self_test(trick, rank.bootstrap(group), seconds_of);
      REQUIRE(passed.status().message == "");
      CHECK(passed.value() == one.slowest);
      CHECK(trick.taken() == one.taken);
      REQUIRE(trick.finalize().message == "");
      rank.synchronize();
    });
  }
}

TEST_CASE("self-test: a lap's time is measured by the device") {
  on_rings({1, 1, 4096}, [&](Rank& rank) {
    Device& device = rank.device();
    const auto begun = device.recorded(device.stream(), Device::Timing::kOn);
    const auto done = device.recorded(device.stream(), Device::Timing::kOn);
    rank.synchronize();
    const auto took = seconds_of_lap(device, begun.value(), done.value());
    REQUIRE(took.status().message == "");
    CHECK(took.value() == device.seconds_between(begun.value(), done.value()).value().value_or(-1));
  });
}

}  // namespace hvd::cuda::test
