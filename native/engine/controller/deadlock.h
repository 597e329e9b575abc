// Deadlocks that are proven: ranks that wait for each other, of which each has said what it waits
// for and what else it may ask for before that has ended. Late ranks are another matter (stall.h).
//
// A rank's word holds as long as what it has asked for is exactly what it has said, so it is
// checked twice: by the rank itself, which sends it behind its requests, and by rank 0 whenever it
// judges. A rank that has reached the end of a notebook's cell reports that it waits for nothing.
// That holds until the rank reports that it works again, and only for ranks of the same cell.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"
#include "engine/message/rank_set.h"
#include "engine/message/request.h"

namespace hvd {

using NamesInSets = std::vector<std::pair<int, std::string>>;

struct Blocked {
  std::int64_t at_ns = 0;            // when the rank looked, by its own clock
  NamesInSets waits;                 // what it has asked for, all of it; empty: its cell has ended
  std::vector<std::string> may_ask;  // last parts of names ("b" of "a/b" and of "a/b#3")
  std::int64_t run = 0;              // number of the cell in the notebook; 0: a script
  std::string place;                 // line at which the main thread waits, for the error
  bool resumed = false;              // withdraws the previous report; nothing else is set
};

// As the request kBlocked, and back; an error: it is none.
Request request_of(const Blocked& blocked);
Result<Blocked> blocked_of(const Request& request);

// Of the rank itself: nothing was answered, and nothing else asked for, since it looked.
bool holds(const Blocked& blocked, const MessageTable& table, int own);

// Rank 0.
class Deadlocks {
 public:
  // Accept the report of a rank. Return the operations of the table that can never complete, each
  // with the error for the ranks that wait for it: all operations and places, and the remedy.
  std::vector<std::pair<const Entry*, Status>> say(int rank, Blocked blocked,
                                                   const MessageTable& table, const RankSet& joined,
                                                   std::int64_t now_ns);

 private:
  struct Word {
    Blocked blocked;
    std::int64_t at_ns;  // by rank 0's clock
  };
  using Asked = std::map<int, std::vector<const Entry*>>;

  bool holds(const Word& word, const std::vector<const Entry*>& asked) const;
  bool may_come(const Entry& entry, const RankSet& stuck, const RankSet& joined) const;
  bool may_ask(int rank, const Entry& entry) const;
  bool shares_run(int rank, const Entry& entry) const;
  std::string places_of(const Entry& entry) const;
  Status describe(const Entry& entry, const std::vector<const Entry*>& all) const;
  bool may_go_on(const std::vector<const Entry*>& asked, const RankSet& stuck,
                 const RankSet& joined) const;
  Asked asked_by_all(const MessageTable& table);

  std::map<int, Word> words_;
  RankSet spoken_;  // whose words they are
};

}  // namespace hvd
