// Timeline: the trace as a file for chrome://tracing and Perfetto, a JSON array that is always
// complete (each write overwrites the closing bracket). One thread ("hvd-timeline") reads the
// trace; no other thread waits for it. Horovod: docs/timeline.rst. Every tensor is a "process"
// named "<op>.<name>".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Trace records as events of Chrome's trace format. Pure: records in, text out.
//   row      one per name ("process" in the format's words): "allreduce.grad"
//   lane     of a row ("thread"): one, and another if an operation begins before the previous one
//            of the same name has ended, as on a device; so bars of a lane nest and never cross
//   bar      a begin (B) and an end (E) event on a lane
//   instant  a point in time: a rank has requested (READY), a cycle has begun (CYCLE)
// The bars of a lane are ordered by nesting, so that viewers, which sort by time and keep the order
// of equal times, close the right one. A negotiation begins with the first rank's request.

// Returns the text with quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

bool is_instant(const TraceRecord& record);
bool is_wait(const TraceRecord& record);
bool negotiates(const TraceRecord& record);

class TimelineEvents {
 public:
  // Row numbers begin at after_row + 1.
  TimelineEvents(std::int64_t origin_ns, bool mark_cycles, std::int64_t after_row = 0)
      : origin_ns_(origin_ns), after_row_(after_row), mark_cycles_(mark_cycles) {}

  // The first event: the origin in microseconds since the epoch.
  static std::string first(std::int64_t epoch_us);
  // The origin from a text that contains the first event.
  static std::optional<std::int64_t> epoch_of_first(std::string_view text);
  // The event of an elastic reset: `ranks` ranks have met again.
  std::string reset(int ranks, std::int64_t at_ns) const;
  // The events of the records, separated by commas; may be empty. All records of an operation must
  // be in one call, its negotiation first.
  std::string of(const std::vector<TraceRecord>& records);
  // The event for `records` records that were overwritten before they could be read.
  std::string lost(std::uint64_t records, std::int64_t at_ns) const;

 private:
  struct Ready {
    int rank;
    std::int64_t at_ns;
  };
  struct Row {
    std::int64_t pid = 0;
    std::vector<std::int64_t> lanes;  // end of the last bar of each
    std::vector<Ready> ready;         // requests since the last negotiation
  };
  using Bars = std::vector<TraceRecord>;

  Row& row_of(const std::string& name, std::string& out);
  void ready(Row& row, const TraceRecord& record, std::string& out) const;
  static void begin_at_first_request(Row& row, TraceRecord& negotiation);
  static std::vector<const TraceRecord*> from_outside(const Bars& bars);
  void operation(Row& row, Bars bars, std::string& out) const;
  void cycle(const TraceRecord& record, std::string& out) const;
  std::string micros(std::int64_t at_ns) const;

  std::int64_t origin_ns_;
  std::int64_t after_row_;
  bool mark_cycles_;
  std::map<std::string, Row, std::less<>> rows_;
};

}  // namespace hvd
