// The Gaussian process against small cases done by hand, and the tuner on surfaces whose optimum is
// known.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/tune/autotune.h"

using namespace hvd;

namespace {

using doctest::Approx;

constexpr double kMiB = 1U << 20U;

// Bytes per microsecond at (threshold in MiB, cycle in ms) and the switches.
using Surface = std::function<double(const Tunables&)>;

double mib(const Tunables& t) { return static_cast<double>(t.fusion_threshold) / kMiB; }
double ms(const Tunables& t) { return static_cast<double>(t.cycle_ns) / 1e6; }
double doorbell(double x, double centre, double width) {
  return std::exp(-(x - centre) * (x - centre) / (width * width));
}

TunerOptions searching() {
  TunerOptions options;
  options.on = true;
  options.start.fusion_threshold = std::int64_t{128} << 20U;
  options.fixed_cache = options.fixed_hierarchical_allreduce =
      options.fixed_hierarchical_allgather = true;
  return options;
}

struct Run {
  Tunables best;
  int trials = 0;  // different settings that were tried
  std::vector<Tunables> all;
  bool done = false;
};

// Steps until the tuner is done: each moves a million bytes in the time that the surface says.
Run tune(const TunerOptions& options, const Surface& speed) {
  Tuner tuner(options);
  Run run;
  Tunables now = options.start;
  std::int64_t clock_ns = 5;
  for (int i = 0; i < 100'000 && !tuner.done(); ++i) {
    clock_ns += std::llround(1e6 * 1e3 / speed(now));
    if (const auto next = tuner.step(1'000'000, clock_ns)) {
      now = *next;
      if (!tuner.done()) {
        run.all.push_back(now);
        ++run.trials;
      }
    }
  }
  run.done = tuner.done();
  run.best = tuner.best();
  return run;
}

double optimum(const Surface& speed) {
  double best = 0;
  for (double mb = 0; mb <= 64; mb += 0.5) {
    for (double cycle = 0; cycle <= 100; cycle += 0.25) {
      Tunables t;
      t.fusion_threshold = std::llround(mb * kMiB);
      t.cycle_ns = std::llround(cycle * 1e6);
      best = std::max(best, speed(t));
    }
  }
  return best;
}

struct TempFile {
  TempFile() { ::close(::mkstemp(path.data())); }
  ~TempFile() { ::unlink(path.c_str()); }
  std::string path = "/tmp/hvd-autotune-XXXXXX";
};

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::FILE* file = std::fopen(path.c_str(), "re");
  REQUIRE(file != nullptr);
  char line[512];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    lines.emplace_back(line);
    lines.back().erase(lines.back().find_last_not_of('\n') + 1);
  }
  std::fclose(file);
  return lines;
}

}  // namespace

TEST_CASE("gaussian process: one point, computed by hand") {
  const GaussianProcess exact({{0.5}}, {2.0}, 1.0, 0.0);
  CHECK(exact.at({0.5}).mean == Approx(2.0).epsilon(1e-6));
  CHECK(exact.at({0.5}).deviation < 1e-4);
  const double k = std::exp(-0.25 * 0.25 / 2);
  CHECK(exact.at({0.75}).mean == Approx(2 * k).epsilon(1e-6));
  CHECK(exact.at({0.75}).deviation == Approx(std::sqrt(1 - k * k)).epsilon(1e-6));
  const GaussianProcess noisy({{0.5}}, {2.0}, 1.0, 1.0);
  CHECK(noisy.at({0.5}).mean == Approx(1.0).epsilon(1e-6));
  CHECK(noisy.at({0.5}).deviation == Approx(std::sqrt(0.5)).epsilon(1e-6));
  // The density of N(0, 2) at 2.
  CHECK(noisy.log_likelihood() ==
        Approx(-1.0 - 0.5 * std::log(2.0) - 0.5 * std::log(2 * M_PI)).epsilon(1e-6));
}

TEST_CASE("gaussian process: two points, with the inverse of a 2 x 2 matrix by hand") {
  const double length = 0.5, noise = 0.25;
  const GaussianProcess process({{0, 0}, {0.3, 0.4}}, {1, -2}, length, noise);
  const double between = std::exp(-0.25 / (2 * length * length));  // they are 0.5 apart
  const double a = 1 + noise, b = between, determinant = a * a - b * b;
  const double w0 = (a * 1 - b * -2) / determinant, w1 = (-b * 1 + a * -2) / determinant;
  const double k0 = std::exp(-(0.3 * 0.3) / (2 * length * length));  // of (0.3, 0)
  const double k1 = std::exp(-(0.4 * 0.4) / (2 * length * length));
  const double explained = (a * k0 * k0 - 2 * b * k0 * k1 + a * k1 * k1) / determinant;
  CHECK(process.at({0.3, 0}).mean == Approx(k0 * w0 + k1 * w1).epsilon(1e-6));
  CHECK(process.at({0.3, 0}).deviation == Approx(std::sqrt(1 - explained)).epsilon(1e-6));
  CHECK(process.log_likelihood() ==
        Approx(-0.5 * (1 * w0 - 2 * w1) - 0.5 * std::log(determinant) - std::log(2 * M_PI))
            .epsilon(1e-6));
}

TEST_CASE("gaussian process: equal points are possible") {
  const GaussianProcess process({{0.5}, {0.5}, {0.5}}, {1, 1, 1}, 0.2, 0.0);
  CHECK(process.at({0.5}).mean == Approx(1.0).epsilon(1e-3));
  CHECK(std::isfinite(process.log_likelihood()));
}

TEST_CASE("expected improvement: computed by hand") {
  CHECK(expected_improvement({3, 0}, 2) == 1);
  CHECK(expected_improvement({1, 0}, 2) == 0);
  CHECK(expected_improvement({2, 1}, 2) == Approx(0.3989422804).epsilon(1e-9));
  CHECK(expected_improvement({2, 3}, 2) == Approx(3 * 0.3989422804).epsilon(1e-9));
  // One deviation above: Phi(1) + phi(1).
  CHECK(expected_improvement({3, 1}, 2) == Approx(0.8413447461 + 0.2419707245).epsilon(1e-9));
}

TEST_CASE("spread points: evenly in the unit cube, the same for the same seed") {
  for (const std::size_t dimensions : {std::size_t{1}, std::size_t{2}}) {
    std::vector<int> of_quarter(dimensions == 1 ? 4 : 16);
    for (std::uint64_t i = 0; i < 1600; ++i) {
      const Point point = spread_point(dimensions, i, 7);
      std::size_t cell = 0;
      for (const double x : point) {
        REQUIRE(x >= 0);
        REQUIRE(x < 1);
        cell = 4 * cell + static_cast<std::size_t>(4 * x);
      }
      ++of_quarter[cell];
      CHECK(point == spread_point(dimensions, i, 7));
    }
    for (const int n : of_quarter) {
      CHECK(n == Approx(1600.0 / static_cast<double>(of_quarter.size())).epsilon(0.1));
    }
    CHECK(spread_point(dimensions, 0, 1) != spread_point(dimensions, 0, 2));
  }
}

TEST_CASE("autotune: within 5 % of the optimum after 20 trials, on every surface, for every seed") {
  const std::vector<std::pair<const char*, Surface>> surfaces{
      {"a hill",
       [](const Tunables& t) { return 1 + 9 * doorbell(mib(t), 40, 20) * doorbell(ms(t), 8, 30); }},
      {"waiting costs, small batches cost",
       [](const Tunables& t) { return 10 / (1 + ms(t) / 20 + 4 / (0.5 + mib(t)) + mib(t) / 100); }},
      {"in the far corner",
       [](const Tunables& t) {
         return 1 + 4 * doorbell(mib(t), 64, 40) * doorbell(ms(t), 80, 60);
       }},
      {"a ridge near zero",
       [](const Tunables& t) { return 5 / (1 + ms(t) / 5) + 1.5 * doorbell(mib(t), 30, 12); }},
  };
  for (const auto& [name, speed] : surfaces) {
    CAPTURE(name);
    const double best = optimum(speed);
    for (std::int64_t seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      TunerOptions options = searching();
      options.seed = seed;
      const Run run = tune(options, speed);
      CHECK(run.done);
      CHECK(run.trials == options.max_samples);
      CHECK(speed(run.best) >= 0.95 * best);
      CHECK(mib(run.best) <= 128);
      CHECK(ms(run.best) <= 100);
    }
  }
}

TEST_CASE("autotune: copes with noisy steps, and the same seed gives the same run") {
  const auto noisy_run = [] {
    std::mt19937 random(11);
    std::uniform_real_distribution<double> factor(0.9, 1.1);
    return tune(searching(), [&](const Tunables& t) {
      return factor(random) * (1 + 9 * doorbell(mib(t), 40, 20) * doorbell(ms(t), 8, 30));
    });
  };
  const Run first = noisy_run(), second = noisy_run();
  CHECK(1 + 9 * doorbell(mib(first.best), 40, 20) * doorbell(ms(first.best), 8, 30) >= 0.9 * 10);
  CHECK(first.best.fusion_threshold == second.best.fusion_threshold);
  CHECK(first.best.cycle_ns == second.best.cycle_ns);
}

TEST_CASE("autotune: never ends with a lower rate than it started with") {
  // Best where the search cannot go: 128 MiB.
  const Run run = tune(searching(), [](const Tunables& t) { return mib(t) > 100 ? 9.0 : 1.0; });
  CHECK(run.best.fusion_threshold == std::int64_t{128} << 20U);
  CHECK(run.best.cycle_ns == 0);
}

TEST_CASE("autotune: tries Horovod's first points after the start") {
  const Run run = tune(searching(), [](const Tunables&) { return 1.0; });
  REQUIRE(run.all.size() == 20);
  CHECK(mib(run.all[0]) == 128);
  const std::vector<std::pair<double, double>> expected{{4, 5}, {32, 50}, {16, 25}, {8, 10}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(mib(run.all[i + 1]) == Approx(expected[i].first));
    CHECK(ms(run.all[i + 1]) == Approx(expected[i].second));
  }
}

TEST_CASE("autotune: fixed options do not change") {
  TunerOptions options = searching();
  options.fixed_threshold = true;
  options.start.fusion_threshold = 12'345;
  const Run one = tune(options, [](const Tunables& t) { return 1 + doorbell(ms(t), 20, 30); });
  for (const Tunables& t : one.all) CHECK(t.fusion_threshold == 12'345);
  CHECK(ms(one.best) == Approx(20).epsilon(0.4));
  options.fixed_cycle = true;
  const Run none = tune(options, [](const Tunables&) { return 1.0; });
  CHECK(none.done);
  CHECK(none.trials == 0);
  options.on = false;
  options.fixed_cycle = options.fixed_threshold = false;
  Tuner off(options);
  CHECK(off.done());
  CHECK_FALSE(off.step(1, 1).has_value());
}

TEST_CASE("autotune: each switch is tried once, and kept if it helps") {
  TunerOptions options = searching();
  options.fixed_cache = options.fixed_hierarchical_allreduce =
      options.fixed_hierarchical_allgather = false;
  const Surface speed = [](const Tunables& t) {
    return 1.0 + (t.hierarchical_allreduce ? 0 : 1) + (t.hierarchical_allgather ? 2 : 0) +
           (t.cache ? 0 : 4);
  };
  const Run run = tune(options, speed);
  CHECK(run.trials == options.max_samples + 3);
  CHECK_FALSE(run.best.hierarchical_allreduce);
  CHECK(run.best.hierarchical_allgather);
  CHECK_FALSE(run.best.cache);
  options.fixed_cache = options.fixed_threshold = options.fixed_cycle = true;
  const Run switches = tune(options, speed);  // the start is measured first, to compare with
  CHECK(switches.trials == 3);
  CHECK_FALSE(switches.best.hierarchical_allreduce);
  CHECK(switches.best.cache);
}

TEST_CASE("autotune: warm-up samples do not count") {
  TunerOptions options = searching();
  options.warmup_samples = 4;
  options.steps_per_sample = 2;
  Tuner tuner(options);
  int steps = 0;
  while (!tuner.step(100, ++steps * 1000)) {
  }
  CHECK(steps == 1 + 4 * 2);  // the first step only starts the clock
}

TEST_CASE("autotune: the log has Horovod's columns, one row per trial, and the best one last") {
  const TempFile file;
  TunerOptions options = searching();
  options.log = file.path;
  options.fixed_cache = false;
  const Run run = tune(options, [](const Tunables& t) {
    return (1 + 9 * doorbell(mib(t), 40, 20) * doorbell(ms(t), 8, 30)) * (t.cache ? 1 : 0.5);
  });
  const std::vector<std::string> lines = lines_of(file.path);
  REQUIRE(lines.size() == static_cast<std::size_t>(1 + run.trials + 1));
  CHECK(lines[0] ==
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
        "cycle_time_ms,tensor_fusion_threshold,score");
  double best = 0;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    int reduce = -1, gather = -1, torus = -1, cache = -1;
    double cycle = -1, threshold = -1, score = -1;
    REQUIRE(std::sscanf(lines[i].c_str(), "%d,%d,%d,%d,%lf,%lf,%lf", &reduce, &gather, &torus,
                        &cache, &cycle, &threshold, &score) == 7);
    const bool last = i + 1 == lines.size();
    const Tunables& t = last ? run.best : run.all[i - 1];
    CHECK(reduce == 1);
    CHECK(gather == 1);
    CHECK(torus == 0);
    CHECK(cache == (t.cache ? 1 : 0));
    CHECK(cycle == Approx(ms(t)).epsilon(1e-4));
    CHECK(threshold == Approx(mib(t)).epsilon(1e-4));
    if (last) CHECK(score == best);
    best = std::max(best, score);
  }
}

TEST_CASE("autotune: a log that cannot be opened does not stop it") {
  TunerOptions options = searching();
  options.log = "/nonexistent/autotune.csv";
  CHECK(tune(options, [](const Tunables&) { return 1.0; }).done);
}
