#include "engine/tune/gaussian_process.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

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

}  // namespace hvd
