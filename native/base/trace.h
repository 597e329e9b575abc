// Trace: the event stream, a ring of the newest records. Timeline, stall report, live widgets and
// benchmarks read it.
//   record   phase ("ALLREDUCE"), name of the tensor, start, duration, bytes, and one more number:
//            for an operation the number of requests executed together, for READY (rank 0 only: a
//            rank has requested) the rank. While a timeline is written, an operation's record also
//            has dtype and shape. WAIT: a user thread blocked in wait() for that duration
//   cursor   the number of the next record that a reader has not read
// Lock-free, with any number of writers; readers never disturb them. A reader that is too slow for
// the ring loses the oldest records, and so does (rarely) a writer that was stopped within a record
// for a whole round.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/visible.h"

namespace hvd {

struct TraceRecord {
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  const char* phase = "";  // a string literal
  std::string name;        // cut after 63 bytes, at a whole UTF-8 character
  std::int64_t bytes = 0;
  std::int64_t detail = 0;
  const char* dtype = "";  // a string literal
  std::string shape;       // cut after 47 bytes
};

// One tensor's part in an operation.
struct TraceTensor {
  std::string_view name;
  std::int64_t since_ns = 0;  // when it was requested
  std::int64_t bytes = 0;
  std::int64_t together = 0;  // requests executed with it, including itself
  const char* dtype = "";
  std::string_view shape;
};

// The course of an operation: its negotiation, then consecutive steps, as in the records.
class TraceCourse {
 public:
  TraceCourse(const char* negotiate, const char* phase, std::int64_t agreed_ns)
      : negotiate_(negotiate), phase_(phase), agreed_ns_(agreed_ns), end_ns_(agreed_ns) {}
  // Add a step from the end of the last one to `end_ns`; nothing if that is earlier.
  void step(const char* phase, std::int64_t end_ns);
  void end(std::int64_t end_ns) { end_ns_ = std::max(end_ns_, end_ns); }

 private:
  friend class Trace;
  static constexpr std::size_t kMostSteps = 6;
  struct Step {
    const char* phase;
    std::int64_t begin_ns, end_ns;
  };
  const char* negotiate_;
  const char* phase_;
  std::int64_t agreed_ns_, end_ns_;
  std::array<Step, kMostSteps> steps_{};
  std::size_t count_ = 0;
};

class Trace {
 public:
  explicit Trace(std::size_t capacity);  // rounded up to a power of two

  void add(std::int64_t start_ns, std::int64_t duration_ns, const char* phase,
           std::string_view name, std::int64_t bytes, std::int64_t detail = 0,
           const char* dtype = "", std::string_view shape = {});
  // Add records of the negotiation, the operation, and the steps within it.
  void add(const TraceCourse& course, const TraceTensor& tensor);

  // The records starting at `cursor`, which moves behind the last one read.
  HVD_VISIBLE std::vector<TraceRecord> read(std::uint64_t& cursor) const;

 private:
  static constexpr std::size_t kNameWords = 8, kShapeWords = 6;
  // stamp: 2t+1 while record number t is written, 2t+2 when it is complete. Fields are atomics
  // because readers may read while a writer writes; they discard the values if the stamp has
  // changed.
  struct Entry {
    std::atomic<std::uint64_t> stamp{0};
    std::atomic<std::int64_t> start{0}, duration{0}, bytes{0}, detail{0};
    std::atomic<const char*> phase{nullptr}, dtype{nullptr};
    std::array<std::atomic<std::uint64_t>, kNameWords> name{};
    std::array<std::atomic<std::uint64_t>, kShapeWords> shape{};
  };

  static TraceRecord copy(const Entry& entry);

  std::size_t mask_;
  std::unique_ptr<Entry[]> entries_;
  std::atomic<std::uint64_t> next_{0};
};

}  // namespace hvd
