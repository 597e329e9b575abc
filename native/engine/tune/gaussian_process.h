// A Gaussian process over a few points of the unit cube, and the next point in the search of its
// maximum (Rasmussen & Williams 2006, chapter 2; Jones, Schonlau & Welch 1998). Pure, for at most
// some tens of points: everything is recomputed each time.
#pragma once

#include <cstdint>
#include <vector>

namespace hvd {

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
