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

}  // namespace hvd
