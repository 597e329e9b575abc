// The virtual cluster can be trusted: it repeats itself, it counts right, and it loses nothing.
#include <doctest/doctest.h>

#include <iterator>
#include <numeric>
#include <utility>

#include "simulator/cluster.h"

namespace hvd::sim {
namespace {

Setting of(int ranks, int fanout, double backward = 0) {
  Setting setting;
  setting.ranks = ranks;
  setting.fanout = fanout;
  setting.backward = backward;
  return setting;
}

}  // namespace

TEST_CASE("simulator: ResNet-50 has 161 gradients of 25,557,032 elements") {
  const std::vector<std::int64_t> sizes = resnet50();
  CHECK(sizes.size() == 161);
  CHECK(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == 4 * 25557032);
  CHECK(sizes.front() == 4000);
  CHECK(sizes.back() == 4 * 64 * 3 * 49);
}

// As torchvision counts them.
TEST_CASE("simulator: the networks of the field's figures have their parameters") {
  const std::pair<const char*, std::int64_t> known[] = {{"ResNet-50", 25557032},
                                                        {"ResNet-101", 44549160},
                                                        {"Inception V3", 23834568},
                                                        {"VGG-16", 138357544}};
  const std::vector<Network> all = networks();
  REQUIRE(all.size() == std::size(known));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<std::int64_t>& sizes = all[i].tensors;
    CHECK(all[i].name == known[i].first);
    CHECK(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == 4 * known[i].second);
    CHECK(sizes.front() == 4000);  // the last layer's bias
  }
}

TEST_CASE("simulator: with equal beginnings an operation takes exactly its bound") {
  const Costs costs;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHierarchical}) {
    for (const int ranks : {1, 2, 8, 64}) {
      const std::vector<double> begin(static_cast<std::size_t>(ranks), 100);
      for (const double end : finish(algorithm, costs, begin, 1 << 20)) {
        CHECK(end == doctest::Approx(100 + bound(algorithm, costs, ranks, 1 << 20)));
      }
    }
  }
}

TEST_CASE("simulator: few hosts exchange in two messages, many form a torus") {
  Costs costs;
  costs.alpha = 1000;
  costs.beta = 1;
  costs.o = 0;
  costs.ranks_per_host = 1;
  CHECK(bound(Algorithm::kHierarchical, costs, 8, 8000) == doctest::Approx(2 * (1000 + 7000)));
  CHECK(bound(Algorithm::kDirect, costs, 8, 8000) == doctest::Approx(1000 + 7 * 8000));
  // 5 rows of 8 hosts: an eighth of the bytes along rows, a fortieth along columns.
  CHECK(bound(Algorithm::kHierarchical, costs, 40, 40000) ==
        doctest::Approx(2 * 7 * (1000 + 5000) + 2 * 4 * (1000 + 1000)));
  CHECK(bound(Algorithm::kHierarchical, costs, 41, 41000) ==
        doctest::Approx(2 * 40 * (1000 + 1000)));  // a prime number of them is a ring
  costs.torus_hosts = 50;
  CHECK(bound(Algorithm::kHierarchical, costs, 40, 40000) == doctest::Approx(2 * (1000 + 39000)));
  costs.o = 1000;  // the messages of an exchange are what it costs then
  costs.beta = 0;
  const double each = 1000 + 2 * 1000 + 39 * 2 * 1000;
  CHECK(bound(Algorithm::kHierarchical, costs, 40, 40000) == doctest::Approx(2 * each));
}

TEST_CASE("simulator: blocking calls run one after another") {
  Setting setting = of(8, 64);
  setting.costs.ranks_per_host = 1;
  setting.jitter = 0;
  setting.tensors = {1 << 20};
  setting.calls = 10;
  Cluster cluster(setting);
  cluster.step();
  const Step step = cluster.step();
  CHECK(step.operations == 10);
  CHECK(step.messages == 10 * 2 * 7);
  CHECK(step.time >= 10 * bound(setting.algorithm, setting.costs, 8, 1 << 20));
}

TEST_CASE("simulator: small calls among hosts take one message, for every order of starts") {
  Setting setting = of(8, 64);
  setting.algorithm = Algorithm::kDirect;
  setting.costs = {};
  setting.costs.ranks_per_host = 1;
  setting.costs.alpha = 1000;
  setting.costs.beta = setting.costs.o = setting.costs.o_byte = setting.costs.ask = 0;
  setting.jitter = 0;
  setting.tensors = {4096};
  setting.calls = 10;
  Cluster together(setting);
  CHECK(together.step().operations == 1);  // before it is in the cache
  Step step = together.step();
  CHECK(step.eager == 10 * 8);
  CHECK(step.operations == 0);
  CHECK(step.time == doctest::Approx(10 * 1000));
  setting.jitter = 0.5;  // up to 500 ns
  Cluster apart(setting);
  apart.step();
  step = apart.step();
  CHECK(step.eager == 10 * 8);
  CHECK(step.time >= 10 * 1000);
  CHECK(step.time <= 10 * 1000 + 500);
}

TEST_CASE("simulator: the same seed gives the same run, another seed another") {
  const auto run = [](unsigned seed) {
    Setting setting = of(40, 4, 5e6);
    setting.seed = seed;
    Cluster cluster(setting);
    cluster.step();
    const Step step = cluster.step();
    return std::vector<double>{step.time, step.negotiation, static_cast<double>(step.messages),
                               static_cast<double>(step.bytes),
                               static_cast<double>(step.operations)};
  };
  CHECK(run(1) == run(1));
  CHECK(run(1) != run(2));
}

TEST_CASE("simulator: a burst of known names is one message up and one down on every edge") {
  for (const int fanout : {100, 16, 4}) {
    Cluster cluster(of(100, fanout));
    const Step first = cluster.step();
    const Step step = cluster.step();
    CHECK(step.operations == 1);
    CHECK(step.messages == 2 * 99);
    CHECK(step.failed == 0);
    CHECK(step.bytes < first.bytes / 5);
    CHECK(step.most_messages == (fanout == 100 ? 2 * 99 : 2 * fanout + 2));
  }
}

TEST_CASE("simulator: no step is faster than its bound, one by one or not") {
  std::int64_t bytes = 0;
  for (const std::int64_t size : resnet50()) bytes += size;
  for (const int ranks : {2, 9, 70}) {
    for (const double backward : {0.0, 10e6}) {
      Setting setting = of(ranks, 8, backward);
      Cluster cluster(setting);
      cluster.step();
      CHECK(cluster.step().time >= bound(setting.algorithm, setting.costs, ranks, bytes));
    }
  }
}

TEST_CASE("simulator: 4,096 ranks compute for nine tenths of a step" *
          doctest::test_suite("nightly")) {
  Setting setting = of(4096, 64, 100e6);
  Cluster cluster(setting);
  cluster.step();
  CHECK(cluster.step().time < setting.backward / 0.9);
}

TEST_CASE("simulator: no rank waits for a lost one") {
  for (const int fanout : {100, 4}) {
    for (const int lost : {37, 3}) {
      Setting setting = of(40, fanout, 5e6);
      setting.leaves = lost;
      Cluster cluster(setting);
      cluster.step();
      const Step step = cluster.step(true);
      // Rank 3 is a rank between when the fanout is 4: its subtree (13, 14, 15, 16) ends with it.
      CHECK(step.ended == (fanout == 4 && lost == 3 ? 5 : 1));
      CHECK(step.failed > 0);
      CHECK(cluster.waiting() == 0);
    }
  }
}

}  // namespace hvd::sim
