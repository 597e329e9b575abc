// Deadlocks that are proven: ranks that wait for each other, of which each has said what it waits
// for and what else it may ask for before that has ended. Late ranks are another matter (stall.h).
//
// A rank's word holds as long as what it has asked for is exactly what it has said, so it is
// checked twice: by the rank itself, which sends it behind its requests, and by rank 0 whenever it
// judges.
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
  NamesInSets waits;                 // what it has asked for, all of it
  std::vector<std::string> may_ask;  // last parts of names ("b" of "a/b" and of "a/b#3")
};

// As the request kBlocked, and back; an error: it is none.
Request request_of(const Blocked& blocked);
Result<Blocked> blocked_of(const Request& request);

// Of the rank itself: nothing was answered, and nothing else asked for, since it looked.
bool holds(const Blocked& blocked, const MessageTable& table, int own);

// Rank 0.
class Deadlocks {
 public:
  // A rank has said it. Returns what can never be complete now that is known, of the table.
  std::vector<const Entry*> say(int rank, Blocked blocked, const MessageTable& table,
                                const RankSet& joined, std::int64_t now_ns);

 private:
  struct Word {
    Blocked blocked;
    std::int64_t at_ns;  // by rank 0's clock
  };
  using Asked = std::map<int, std::vector<const Entry*>>;

  bool holds(const Word& word, const std::vector<const Entry*>& asked) const;
  bool may_come(const Entry& entry, const RankSet& stuck, const RankSet& joined) const;
  bool may_go_on(const std::vector<const Entry*>& asked, const RankSet& stuck,
                 const RankSet& joined) const;
  Asked asked_by_all(const MessageTable& table);

  std::map<int, Word> words_;
  RankSet spoken_;  // whose words they are
};

// For one of them: who waits for what, and the remedy.
Status deadlocked(const Entry& entry, const std::vector<const Entry*>& all);

}  // namespace hvd
