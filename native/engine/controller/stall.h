// Ranks that wait: too long for late ones (a stall), or forever for each other (a deadlock).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"
#include "engine/controller/news.h"
#include "engine/message/rank_set.h"
#include "engine/message/request.h"

namespace hvd {

// Stall inspector: requests that some ranks of a set have made and others have not, for too long.

// When to check next. Nothing is due while no rank waits.
class StallTimer {
 public:
  void start(std::int64_t at_ns) {
    if (at_ns_ < 0) at_ns_ = at_ns;
  }
  void start_at_latest(std::int64_t at_ns) {
    if (at_ns_ < 0 || at_ns < at_ns_) at_ns_ = at_ns;
  }
  void sleep() { at_ns_ = -1; }
  bool due(std::int64_t now_ns) const { return at_ns_ >= 0 && now_ns >= at_ns_; }
  std::int64_t due_in(std::int64_t now_ns) const {  // negative: never
    return at_ns_ < 0 ? -1 : std::max<std::int64_t>(0, at_ns_ - now_ns);
  }

 private:
  std::int64_t at_ns_ = -1;
};

// The shorter of two waiting times; negative means forever.
inline std::int64_t sooner(std::int64_t a, std::int64_t b) {
  if (a < 0 || b < 0) return std::max(a, b);
  return std::min(a, b);
}

// Time after which waiting operations are failed; 0: never.
inline std::int64_t shutdown_after(const ControllerOptions& options) {
  const bool sensible = options.stall_shutdown_ns >= options.stall_warning_ns;
  return options.stall_warning_ns > 0 && sensible ? options.stall_shutdown_ns : 0;
}

// Horovod's warning, with the operations, the ranks that wait for them and since when. shutdown_ns:
// operations that wait longer are marked; 0: none.
std::string stall_text(const std::vector<Waiting>& stalled, std::int64_t warning_ns,
                       std::int64_t shutdown_ns, std::int64_t now_ns);

Status stalled(const Waiting& waiting, std::int64_t now_ns);

// Deadlocks, which are proven: ranks that wait for each other. Each has reported which operations
// it waits for, and which it may still request before those complete. Late ranks are stalled
// (above).
//
// A report is current as long as it lists exactly the operations that its rank has requested. This
// is checked twice: by the rank itself, which sends the report after its requests, and by rank 0
// for every decision. A rank that has reached the end of a notebook's cell reports that it waits
// for nothing. That holds until the rank reports that it works again, and only for ranks of the
// same cell. A rank that has joined also waits for the join, which is in no table: an entry of its
// own stands for it.

using NamesInSets = std::vector<std::pair<int, std::string>>;

struct Blocked {
  std::int64_t at_ns = 0;                // when the report was made, by the rank's own clock
  NamesInSets waits;                     // all operations requested; empty: its cell has ended
  std::vector<std::string> may_request;  // last parts of names ("b" of "a/b" and of "a/b#3")
  std::int64_t run = 0;                  // number of the cell in the notebook; 0: a script
  std::string place;                     // line at which the main thread waits, for the error
  bool resumed = false;                  // withdraws the previous report; nothing else is set
};

// Convert to a request kBlocked, and back. An error: the request is not a valid report.
Request request_of(const Blocked& blocked);
Result<Blocked> blocked_of(const Request& request);

// The join of all ranks, which `joined` wait for; the first of them has since `since_ns`.
Entry join_of(const ProcessSet& all_ranks, const RankSet& joined, std::int64_t since_ns);

// On the reporting rank: no operation was answered or requested since the report was made.
bool is_current(const Blocked& blocked, const MessageTable& table, const Entry& join, int own);

// Rank 0.
class Deadlocks {
 public:
  // Accept the report of a rank. Return the operations, of the table or the join, that can never
  // complete, each with the error for the ranks that wait for it: all operations and places, and
  // the remedy.
  std::vector<std::pair<const Entry*, Status>> report(int rank, Blocked blocked,
                                                      const MessageTable& table, const Entry& join,
                                                      std::int64_t now_ns);

 private:
  struct Report {
    Blocked blocked;
    std::int64_t at_ns;  // by rank 0's clock
  };
  using Requests = std::vector<const Entry*>;

  bool is_current(const Report& report, const Requests& requests) const;
  bool may_complete(const Entry& entry, const RankSet& stuck, const RankSet& joined) const;
  bool may_request(int rank, const Entry& entry) const;
  bool shares_run(int rank, const Entry& entry) const;
  std::string places_of(const Entry& entry) const;
  Status describe(const Entry& entry, const std::vector<const Entry*>& all) const;
  bool may_proceed(const Requests& requests, const RankSet& stuck, const RankSet& joined) const;
  std::map<int, Requests> current_requests(const MessageTable& table, const Entry& join);

  std::map<int, Report> reports_;
  RankSet reporting_;  // keys of reports_
};

}  // namespace hvd
