// The trace as a file for chrome://tracing and Perfetto: a JSON array that is complete at every
// moment (each write overwrites the closing bracket). One thread ("hvd-timeline") reads the trace;
// nobody waits for it. Horovod: docs/timeline.rst. Every tensor is a "process" whose name is
// "<op>.<name>".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/trace.h"

namespace hvd {

class Timeline {
 public:
  // Called before it looks at the trace, to add what is known only now; last: for the last time.
  using Look = std::function<void(bool last)>;
  // From the records that come after this moment on. mark_cycles: an instant event per CYCLE
  // record. ranks_now: behind what the file has already, with a mark that the ranks have met again
  // and are so many; 0, or no such file: a new one.
  static Result<std::unique_ptr<Timeline>> start(const Trace& trace, const std::string& path,
                                                 bool mark_cycles, Look look = nullptr,
                                                 int ranks_now = 0);
  ~Timeline();  // writes what has come until now, and closes the file

 private:
  struct State;
  explicit Timeline(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace hvd
