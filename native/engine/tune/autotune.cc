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
#include "engine/tune/gaussian_process.h"

namespace hvd {
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
