#include "engine/tune/autotune.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/log.h"

namespace hvd {

namespace {

constexpr double kTwoPi = 6.283185307179586;
constexpr double kJitter = 1e-9;  // equal points without noise would make the matrix singular
constexpr std::array<double, 6> kLengths{0.08, 0.15, 0.25, 0.4, 0.7, 1.2};
constexpr std::uint64_t kCandidates = 512;
constexpr double kFirstStep = 0.04, kLastStep = 0.001;
// With much noise the model would repeat its best point, and trials are expensive.
constexpr double kApart = 0.05;

using Matrix = std::vector<std::vector<double>>;

double distance(const Point& a, const Point& b) {
  double square = 0;
  for (std::size_t d = 0; d < a.size(); ++d) square += (a[d] - b[d]) * (a[d] - b[d]);
  return std::sqrt(square);
}

// In place, lower triangle.
void cholesky(Matrix& m) {
  for (std::size_t j = 0; j < m.size(); ++j) {
    for (std::size_t k = 0; k < j; ++k) m[j][j] -= m[j][k] * m[j][k];
    m[j][j] = std::sqrt(std::max(m[j][j], kJitter));
    for (std::size_t i = j + 1; i < m.size(); ++i) {
      for (std::size_t k = 0; k < j; ++k) m[i][j] -= m[i][k] * m[j][k];
      m[i][j] /= m[j][j];
    }
  }
}

// factor * x = b.
std::vector<double> solve_lower(const Matrix& factor, std::vector<double> b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= factor[i][k] * b[k];
    b[i] /= factor[i][i];
  }
  return b;
}

// factor^T * x = b.
std::vector<double> solve_upper(const Matrix& factor, std::vector<double> b) {
  for (std::size_t i = b.size(); i-- > 0;) {
    for (std::size_t k = i + 1; k < b.size(); ++k) b[i] -= factor[k][i] * b[k];
    b[i] /= factor[i][i];
  }
  return b;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Mean 0, variance 1.
std::vector<double> standardised(std::vector<double> values) {
  const auto n = static_cast<double>(values.size());
  double mean = 0, variance = 0;
  for (const double value : values) mean += value / n;
  for (const double value : values) variance += (value - mean) * (value - mean) / n;
  const double deviation = variance > 0 ? std::sqrt(variance) : 1;
  for (double& value : values) value = (value - mean) / deviation;
  return values;
}

GaussianProcess likeliest(const std::vector<Point>& points, const std::vector<double>& values,
                          double noise_variance) {
  double best_length = kLengths.front();
  double best = -HUGE_VAL;
  for (const double length : kLengths) {
    const double likelihood =
        GaussianProcess(points, values, length, noise_variance).log_likelihood();
    if (likelihood > best) {
      best = likelihood;
      best_length = length;
    }
  }
  return GaussianProcess(points, values, best_length, noise_variance);
}

}  // namespace

GaussianProcess::GaussianProcess(std::vector<Point> points, const std::vector<double>& values,
                                 double length, double noise_variance)
    : points_(std::move(points)), length_(length), factor_(points_.size()) {
  for (std::size_t i = 0; i < points_.size(); ++i) {
    for (const Point& other : points_) factor_[i].push_back(covariance(points_[i], other));
    factor_[i][i] += noise_variance + kJitter;
  }
  cholesky(factor_);
  weights_ = solve_upper(factor_, solve_lower(factor_, values));
  log_likelihood_ =
      -0.5 * dot(values, weights_) - 0.5 * static_cast<double>(values.size()) * std::log(kTwoPi);
  for (std::size_t i = 0; i < factor_.size(); ++i) log_likelihood_ -= std::log(factor_[i][i]);
}

double GaussianProcess::covariance(const Point& a, const Point& b) const {
  const double apart = distance(a, b) / length_;
  return std::exp(-apart * apart / 2);
}

Prediction GaussianProcess::at(const Point& point) const {
  std::vector<double> k;
  k.reserve(points_.size());
  for (const Point& other : points_) k.push_back(covariance(point, other));
  const std::vector<double> v = solve_lower(factor_, k);
  return {dot(k, weights_), std::sqrt(std::max(0.0, 1 - dot(v, v)))};
}

double expected_improvement(const Prediction& prediction, double best) {
  const double gain = prediction.mean - best;
  if (prediction.deviation <= 0) return std::max(0.0, gain);
  const double z = gain / prediction.deviation;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(kTwoPi);
  const double below = 0.5 * std::erfc(-z / std::sqrt(2.0));
  return gain * below + prediction.deviation * density;
}

Point spread_point(std::size_t dimensions, std::uint64_t index, std::uint64_t seed) {
  // Roberts' sequence: the powers of 1 / g, where g^(d + 1) = g + 1.
  static constexpr std::array<std::array<double, 2>, 2> kSteps{
      {{0.6180339887498949, 0}, {0.7548776662466927, 0.5698402909980532}}};
  Point point(dimensions);
  for (std::size_t d = 0; d < dimensions; ++d) {
    const double shift = 0.5 + 0.3819660112501051 * static_cast<double>(seed % 1'000'000);
    const double at = shift + static_cast<double>(index + 1) * kSteps[dimensions - 1][d];
    point[d] = at - std::floor(at);
  }
  return point;
}

Point most_promising(const std::vector<Point>& points, const std::vector<double>& values,
                     double noise, std::uint64_t seed) {
  const std::vector<double> scores = standardised(values);
  const GaussianProcess process = likeliest(points, scores, noise * noise);
  // With noise the best measured value is partly luck: use the prediction at that point.
  double best = -HUGE_VAL;
  for (const Point& point : points) best = std::max(best, process.at(point).mean);
  const auto promise = [&](const Point& point) {
    for (const Point& measured : points) {
      if (distance(point, measured) < kApart) return -1.0;
    }
    return expected_improvement(process.at(point), best);
  };
  const std::size_t dimensions = points.front().size();
  Point found = spread_point(dimensions, 0, seed);
  double most = promise(found);
  const auto consider = [&](const Point& candidate) {
    const double here = promise(candidate);
    if (here <= most) return false;
    most = here;
    found = candidate;
    return true;
  };
  for (std::uint64_t i = 1; i < kCandidates; ++i) consider(spread_point(dimensions, i, seed));
  for (double step = kFirstStep; step > kLastStep;) {
    bool better = false;
    for (std::size_t d = 0; d < dimensions; ++d) {
      for (const double by : {-step, step}) {
        Point near = found;
        near[d] = std::clamp(near[d] + by, 0.0, 1.0);
        better = consider(near) || better;
      }
    }
    if (!better) step /= 2;
  }
  return found;
}

namespace {

// Terms.
//   knob   one dimension of the Bayesian search, mapped to [0, 1] switch one categorical choice: on
//          or off
//   trial  the tunables that are being measured

constexpr const char* kRoom = "engine/autotune";
constexpr double kMiB = 1U << 20U;
constexpr double kNsPerMs = 1e6;
constexpr std::size_t kSamplesPerScore = 5;
// The standard error of the median of five, in standard deviations of one sample.
constexpr double kMedianNoise = 0.536;

struct Knob {
  std::int64_t Tunables::* field;
  bool TunerOptions::* fixed;
  double unit;                  // unit of the field in the log
  double most;                  // in that unit; the minimum is 0
  double power;                 // value = most * coordinate^power: small values matter more
  std::array<double, 4> first;  // Horovod's first points, in that unit
};

constexpr std::array<Knob, 2> kKnobs{
    {{&Tunables::fusion_threshold, &TunerOptions::fixed_threshold, kMiB, 64, 2, {4, 32, 16, 8}},
     {&Tunables::cycle_ns, &TunerOptions::fixed_cycle, kNsPerMs, 100, 3, {5, 50, 25, 10}}}};

double coordinate(const Knob& knob, double value) {
  return std::pow(std::clamp(value / knob.most, 0.0, 1.0), 1 / knob.power);
}

struct Switch {
  bool Tunables::* field;
  bool TunerOptions::* fixed;
};

constexpr std::array<Switch, 3> kSwitches{
    {{&Tunables::hierarchical_allreduce, &TunerOptions::fixed_hierarchical_allreduce},
     {&Tunables::hierarchical_allgather, &TunerOptions::fixed_hierarchical_allgather},
     {&Tunables::cache, &TunerOptions::fixed_cache}}};

// Horovod's columns, except torus.
class Log {
 public:
  explicit Log(const std::string& path) {
    if (path.empty()) return;
    file_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file_) {
      log(Level::kWarning, kRoom,
          errno_status("no log: cannot open " + path, kRoom, errno).message);
      return;
    }
    write(
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
        "cycle_time_ms,tensor_fusion_threshold,score\n");
  }

  void row(const Tunables& values, double score) {
    std::array<char, 160> text{};
    std::snprintf(text.data(), text.size(), "%d,%d,0,%d,%.6g,%.6g,%.6g\n",
                  static_cast<int>(values.hierarchical_allreduce),
                  static_cast<int>(values.hierarchical_allgather), static_cast<int>(values.cache),
                  static_cast<double>(values.cycle_ns) / kNsPerMs,
                  static_cast<double>(values.fusion_threshold) / kMiB, score);
    write(text.data());
  }

 private:
  // A log that cannot be written is closed; tuning continues.
  void write(std::string_view text) {
    if (file_ &&
        ::write(file_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      log(Level::kWarning, kRoom, "the log ends here: it cannot be written");
      file_.reset();
    }
  }

  Fd file_;
};

}  // namespace

struct Tuner::State {
  explicit State(const TunerOptions& the_options)
      : options(the_options),
        log(the_options.on ? the_options.log : ""),
        trial(the_options.start),
        best(the_options.start),
        warmup_left(the_options.warmup_samples),
        done(!the_options.on) {
    for (const Knob& knob : kKnobs) {
      if (!(options.*knob.fixed)) knobs.push_back(&knob);
    }
    for (const Switch& one : kSwitches) {
      if (!(options.*one.fixed)) switches.push_back(&one);
    }
    if (knobs.empty() && switches.empty()) done = true;
  }

  // Bytes per microsecond of the steps since the last sample, once there are enough of them.
  std::optional<double> sample(std::int64_t bytes_now, std::int64_t now_ns) {
    if (!begin_ns) {  // the begin of the first step is unknown
      begin_ns = now_ns;
      return std::nullopt;
    }
    bytes += bytes_now;
    if (++steps < options.steps_per_sample) return std::nullopt;
    const double us = static_cast<double>(std::max<std::int64_t>(1, now_ns - *begin_ns)) / 1e3;
    begin_ns = now_ns;
    steps = 0;
    return static_cast<double>(std::exchange(bytes, 0)) / us;
  }

  // The median of five samples, once there are five.
  std::optional<double> score(double one) {
    samples.push_back(one);
    if (samples.size() < kSamplesPerScore) return std::nullopt;
    std::sort(samples.begin(), samples.end());
    const double median = samples[kSamplesPerScore / 2];
    samples.clear();
    return median;
  }

  void set(const Point& point) {
    for (std::size_t i = 0; i < knobs.size(); ++i) {
      const Knob& knob = *knobs[i];
      const double value = knob.most * std::pow(point[i], knob.power);
      trial.*knob.field = std::llround(value * knob.unit);
    }
  }

  // The user's start, so that the result is never worse; then Horovod's points; then those of the
  // search.
  Point next_point() const {
    if (points.size() > kKnobs.front().first.size()) {
      return most_promising(points, scores, options.noise * kMedianNoise,
                            static_cast<std::uint64_t>(options.seed));
    }
    Point point;
    for (const Knob* knob : knobs) {
      point.push_back(coordinate(*knob, points.empty()
                                            ? static_cast<double>(trial.*knob->field) / knob->unit
                                            : knob->first[points.size() - 1]));
    }
    return point;
  }

  // Choose the next trial, or the best when none is left.
  void choose() {
    trial = best;
    if (!knobs.empty() && static_cast<int>(scores.size()) < options.max_samples) {
      points.push_back(next_point());
      if (points.size() > 1) set(points.back());  // the start may be outside of the bounds
    } else if (tried < switches.size()) {
      bool& value = trial.*switches[tried]->field;
      if (best_score) value = !value;  // otherwise there is nothing to compare with yet
    } else {
      done = true;
      log.row(best, best_score.value_or(0));
    }
  }

  void measured(double value) {
    log.row(trial, value);
    if (scores.size() < points.size()) {
      scores.push_back(value);
    } else if (best_score) {
      ++tried;
    }
    if (!best_score || value > *best_score) {
      best_score = value;
      best = trial;
    }
    choose();
  }

  const TunerOptions options;
  Log log;
  std::vector<const Knob*> knobs;
  std::vector<const Switch*> switches;  // without the fixed ones
  std::vector<Point> points;            // measured, and being measured
  std::vector<double> scores;
  std::size_t tried = 0;  // switches
  Tunables trial, best;
  std::optional<double> best_score;
  int warmup_left;
  std::vector<double> samples;
  std::optional<std::int64_t> begin_ns;
  std::int64_t bytes = 0;
  int steps = 0;
  bool started = false;
  bool done;
};

Tuner::Tuner(const TunerOptions& options) : state_(std::make_unique<State>(options)) {}

Tuner::~Tuner() = default;

std::optional<Tunables> Tuner::step(std::int64_t bytes, std::int64_t now_ns) {
  State& state = *state_;
  if (state.done) return std::nullopt;
  const std::optional<double> sample = state.sample(bytes, now_ns);
  if (!sample) return std::nullopt;
  if (state.warmup_left > 0) --state.warmup_left;
  if (state.warmup_left > 0) return std::nullopt;
  if (!std::exchange(state.started, true)) {
    state.choose();
    return state.trial;
  }
  const std::optional<double> score = state.score(*sample);
  if (!score) return std::nullopt;
  state.measured(*score);
  return state.trial;
}

bool Tuner::done() const { return state_->done; }

const Tunables& Tuner::best() const { return state_->best; }

}  // namespace hvd
