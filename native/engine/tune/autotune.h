// Autotune: finds the fusion threshold and the cycle time that maximise reduced bytes per second,
// then the categorical choices, during training. Pure: bytes and the time are arguments.
//   sample   the bytes per microsecond of `steps_per_sample` steps; a point's score is the median
//            of five samples
//   step     from one point at which all requests are agreed on to the next
// Bayesian optimisation: a Gaussian process over (threshold, cycle time) and the point of the
// largest expected improvement next (Rasmussen & Williams 2006, chapter 2; Jones 1998). After that
// each categorical choice in turn. Horovod: docs/autotune.rst; the log has its columns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/message/request.h"

namespace hvd {

struct TunerOptions {
  bool on = false;
  std::string log;  // path of the CSV; empty: none
  int warmup_samples = 3;
  int steps_per_sample = 10;
  int max_samples = 20;  // of the Bayesian search
  double noise = 0.8;    // of the Gaussian process, in [0, 1]
  std::int64_t seed = 1;
  Tunables start;
  // Parameters that the user has set are not changed.
  bool fixed_threshold = false, fixed_cycle = false, fixed_cache = false;
  bool fixed_hierarchical_allreduce = false, fixed_hierarchical_allgather = false;
};

class Tuner {
 public:
  explicit Tuner(const TunerOptions& options);
  ~Tuner();
  // A step of `bytes` bytes has ended. A value: use these parameters from now on.
  std::optional<Tunables> step(std::int64_t bytes, std::int64_t now_ns);
  bool done() const;  // the search is over, the best is in use
  const Tunables& best() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A Gaussian process over a few points of the unit cube, and the next point in the search of its
// maximum (Rasmussen & Williams 2006, chapter 2; Jones, Schonlau & Welch 1998). Pure, for at most
// some tens of points: everything is recomputed each time.

using Point = std::vector<double>;  // every coordinate in [0, 1]

struct Prediction {
  double mean = 0;
  double deviation = 0;
};

// The prior: mean 0, covariance exp(-distance^2 / (2 length^2)); measurements have independent
// noise of the given variance.
class GaussianProcess {
 public:
  GaussianProcess(std::vector<Point> points, const std::vector<double>& values, double length,
                  double noise_variance);
  Prediction at(const Point& point) const;
  // Of the values, given length and noise; used to compare lengths.
  double log_likelihood() const { return log_likelihood_; }

 private:
  double covariance(const Point& a, const Point& b) const;

  const std::vector<Point> points_;
  const double length_;
  std::vector<std::vector<double>> factor_;  // lower: factor * factor^T = covariances + noise
  std::vector<double> weights_;              // (covariances + noise)^-1 * values
  double log_likelihood_ = 0;
};

// The expected amount by which a value of this distribution exceeds `best`.
double expected_improvement(const Prediction& prediction, double best);

// Number `index` of a sequence that covers the unit cube of one or two dimensions evenly; `seed`
// shifts it.
Point spread_point(std::size_t dimensions, std::uint64_t index, std::uint64_t seed);

// The point of the largest expected improvement over what was measured. noise: the standard
// deviation of a measurement, as a share of the spread of all of them.
Point most_promising(const std::vector<Point>& points, const std::vector<double>& values,
                     double noise, std::uint64_t seed);

}  // namespace hvd
