// Finds the fusion threshold and the cycle time at which the most bytes per second are reduced,
// then the categorical choices, while the user trains. Pure: bytes and the time go in.
//   sample   the bytes per microsecond of `steps_per_sample` steps; a point's score is the median
//   of
//            five samples
//   step     from one agreement of everything that was asked for to the next
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
  // What the user has set is not changed.
  bool fixed_threshold = false, fixed_cycle = false, fixed_cache = false;
  bool fixed_hierarchical_allreduce = false, fixed_hierarchical_allgather = false;
};

class Tuner {
 public:
  explicit Tuner(const TunerOptions& options);
  ~Tuner();
  // One step of so many bytes has ended. A value: use this from now on.
  std::optional<Tunables> step(std::int64_t bytes, std::int64_t now_ns);
  bool done() const;  // the best is found, and in use
  const Tunables& best() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hvd
