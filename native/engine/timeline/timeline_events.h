// Trace records as events of Chrome's trace format. Pure: records in, text out.
//   row      one per name ("process" in the format's words): "allreduce.grad"
//   lane     of a row ("thread"): one, and another where an operation begins before the one of the
//            same name before it is over, as on a device; so bars of a lane nest, they never cross
//   bar      a begin (B) and an end (E) event on a lane
//   instant  a point in time: a rank has asked (READY), a cycle has begun (CYCLE)
// The bars of a lane are ordered by their nesting, so that viewers, which sort by time and keep the
// order where times are equal, close the right one. A negotiation begins when the first rank asks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/trace.h"

namespace hvd {

// With its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

bool is_instant(const TraceRecord& record);
bool is_wait(const TraceRecord& record);
bool negotiates(const TraceRecord& record);

class TimelineEvents {
 public:
  // Rows are numbered from after_row + 1 on.
  TimelineEvents(std::int64_t origin_ns, bool mark_cycles, std::int64_t after_row = 0)
      : origin_ns_(origin_ns), after_row_(after_row), mark_cycles_(mark_cycles) {}

  // The first event: when the origin was, in microseconds since the epoch.
  static std::string first(std::int64_t epoch_us);
  // What it says, from a text in which it stands.
  static std::optional<std::int64_t> epoch_of_first(std::string_view text);
  // The ranks have met again, and are so many.
  std::string reset(int ranks, std::int64_t at_ns) const;
  // The events of the records, with commas between them; may be empty. Records of one operation
  // must come in the same call, its negotiation first.
  std::string of(const std::vector<TraceRecord>& records);
  // So many records were overwritten before they could be read.
  std::string lost(std::uint64_t records, std::int64_t at_ns) const;

 private:
  struct Asked {
    int rank;
    std::int64_t at_ns;
  };
  struct Row {
    std::int64_t pid = 0;
    std::vector<std::int64_t> lanes;  // of each, where its last bar ends
    std::vector<Asked> asked;         // by whom, since the last negotiation
  };
  using Bars = std::vector<TraceRecord>;

  Row& row_of(const std::string& name, std::string& out);
  void ready(Row& row, const TraceRecord& record, std::string& out) const;
  static void begin_when_first_asked(Row& row, TraceRecord& negotiation);
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
