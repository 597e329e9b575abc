// Messages to a rank's children in the tree: of every decision those that concern somebody of
// their subtree, in order, one message each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/controller/news.h"
#include "engine/controller/rank_state.h"
#include "engine/message/wire.h"

namespace hvd {

class Children {
 public:
  explicit Children(const RankState& state);

  // A decision that this rank's tables do not know yet, and its bytes. Who leaves hears of nothing
  // that comes behind it.
  void post(const ResponseMessage& message, std::string_view item);
  void post(const std::vector<int>& slots, std::string_view item);
  // The child is to ask in full.
  void again(int place, int slot, std::uint64_t version);
  // The child is to send no data for this round, unless it has (eager/eager_rounds.h).
  void post_void(int place, std::uint64_t position);
  // Nothing is posted to it from now on. False: so it was.
  bool close(int place);

  bool empty() const;
  void take(std::vector<OutgoingMessage>& into);

 private:
  struct Outbox {
    std::string items;
    std::size_t count = 0;
    bool closed = false;
  };

  bool concerns(int place, const ResponseMessage& message) const;
  bool concerns(int place, const ProcessSet* set) const;
  template <typename Decision>
  void post_to_all(const Decision& decision, std::string_view item);

  const RankState& state_;
  std::vector<Outbox> outboxes_;  // by place
};

}  // namespace hvd
