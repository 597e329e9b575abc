// Trace records as events of Chrome's trace format. Pure: records in, text out.
//   row      one per name ("process" in the format's words): "allreduce.grad"
//   bar      a begin (B) and an end (E) event on a row; bars of one row nest, they never cross
//   instant  a point in time: a rank has asked (READY), a cycle has begun (CYCLE)
// The bars of a row are ordered by their nesting, so that viewers, which sort by time and keep the
// order where times are equal, close the right one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/trace.h"

namespace hvd {

// With its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

bool is_instant(const TraceRecord& record);
bool negotiates(const TraceRecord& record);

class TimelineEvents {
 public:
  TimelineEvents(std::int64_t origin_ns, bool mark_cycles)
      : origin_ns_(origin_ns), mark_cycles_(mark_cycles) {}

  // The first event: when the origin was, in microseconds since the epoch.
  static std::string first(std::int64_t epoch_us);
  // The events of the records, with commas between them; may be empty. Records of one name that
  // nest must come in the same call.
  std::string of(const std::vector<TraceRecord>& records);
  // So many records were overwritten before they could be read.
  std::string lost(std::uint64_t records, std::int64_t at_ns) const;

 private:
  int row_of(const std::string& name, std::string& out);
  void bars(int row, std::vector<const TraceRecord*> records, std::string& out) const;
  std::string micros(std::int64_t at_ns) const;

  const std::int64_t origin_ns_;
  const bool mark_cycles_;
  std::map<std::string, int, std::less<>> rows_;
};

}  // namespace hvd
