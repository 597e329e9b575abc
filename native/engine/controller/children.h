// Messages to a rank's children in the tree: the decisions that concern a rank of the child's
// subtree, in order, one message per child.
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

  // Append a decision that is not in this rank's tables yet, and its bytes. A child that leaves
  // receives nothing after that.
  void post(const ResponseMessage& message, std::string_view item);
  void post(const std::vector<int>& slots, std::string_view item);
  // Request that the child repeats its request in full.
  void again(int place, int slot, std::uint64_t version);
  // Request that the child sends no data for this round unless it already has
  // (eager/eager_rounds.h).
  void post_void(int place, std::uint64_t position);
  // Post nothing more to this child. False: it was closed already.
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
