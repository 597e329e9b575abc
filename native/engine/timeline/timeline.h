// Timeline: the trace as a file for chrome://tracing and Perfetto, a JSON array that is always
// complete (each write overwrites the closing bracket). One thread ("hvd-timeline") reads the
// trace; no other thread waits for it. Horovod: docs/timeline.rst. Every tensor is a "process"
// named "<op>.<name>".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/trace.h"

namespace hvd {

class Timeline {
 public:
  // Called before each read of the trace, to add records that are complete only now; last: the
  // final call.
  using BeforeRead = std::function<void(bool last)>;
  // Starts with the records after this call. mark_cycles: write an instant event per CYCLE record.
  // ranks_now: append to an existing file, with a mark that the ranks have met again and their
  // number; 0, or no such file: start a new file.
  static Result<std::unique_ptr<Timeline>> start(const Trace& trace, const std::string& path,
                                                 bool mark_cycles, BeforeRead before_read = nullptr,
                                                 int ranks_now = 0);
  ~Timeline();  // writes pending records and closes the file

 private:
  struct State;
  explicit Timeline(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace hvd
