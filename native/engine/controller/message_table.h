// Message table: who in a rank's subtree asks for what, and what was agreed on before: the memory
// of the agreement, the same on rank 0, on the ranks between, and on the leaves.
//   entry     everything about one name in one set
//   variant   one request and the ranks that make it; usually there is one variant only
//   known     what each rank asked for when the slot's response was made: what its bit means
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/controller/process_sets.h"
#include "engine/message/rank_set.h"
#include "engine/message/request.h"

namespace hvd {

struct Variant {
  std::shared_ptr<const Request> request;
  RankSet ranks;  // by their numbers in the subtree
};
using Variants = std::vector<Variant>;

// Some have waited for too long and were told so; those who come later are told the same.
struct Failure {
  Status status;
  RankSet owed;
};

struct Entry {
  const ProcessSet* set = nullptr;
  const std::string* name = nullptr;

  // What is asked for and not answered.
  std::int64_t since_ns = 0;
  Kind kind = Kind::kBarrier;
  bool decided = false;  // rank 0: agreed on, its response is being put together
  RankSet asked;
  RankSet by_slot;     // of these, who ask for what is known
  Variants in_full;    // the others
  RankSet sent;        // of these, for whom the parent has been asked
  int sent_slot = -1;  // the parent has been asked by this slot, when it knew so many assignments:
  std::uint64_t sent_version = 0;
  std::int64_t warned_ns = 0;
  std::unique_ptr<Failure> failure;

  // What was agreed on.
  int slot = -1;
  std::uint64_t version = 0;
  Kind known_kind = Kind::kBarrier;
  bool shared = false;
  std::vector<std::int64_t> sizes;
  Variants known;
};

class MessageTable {
 public:
  Entry& at(const ProcessSet& set, const std::string& name);  // makes it when there is none
  Entry* find(int set, const std::string& name);
  // Null: nothing has this slot.
  Entry* at_slot(int slot) {
    return is_used(slot) ? slots_[static_cast<std::size_t>(slot)] : nullptr;
  }
  const Entry* at_slot(int slot) const {
    return is_used(slot) ? slots_[static_cast<std::size_t>(slot)] : nullptr;
  }
  // All that somebody waits for, the oldest first.
  std::vector<Entry*> waiting();
  std::vector<const Entry*> waiting() const;
  int count_waiting() const { return waiting_; }

  void ask(Entry& entry, const RankSet& who, Request request, std::int64_t now_ns);
  void ask(Entry& entry, int who, Request request, std::int64_t now_ns);
  void ask_known(Entry& entry, const RankSet& who, std::int64_t now_ns);
  void ask_known(Entry& entry, int who, std::int64_t now_ns);

  // The entry is answered for these ranks, and gone when nothing is left of it.
  void answer(Entry& entry);
  void answer(Entry& entry, const RankSet& who);
  void drop_if_empty(Entry& entry);

  // From now on the slot means what is asked for in this entry, with this response.
  void assign(Entry& entry, int slot, std::uint64_t version);
  void forget_slot(Entry& entry);
  void forget_set(int set);
  std::vector<int> slots_of(int set) const;

 private:
  using Names = std::unordered_map<std::string, Entry>;

  bool is_used(int slot) const {
    return slot >= 0 && static_cast<std::size_t>(slot) < slots_.size();
  }
  void begin(Entry& entry, Kind kind, std::int64_t now_ns);

  std::vector<Names> sets_;  // by id
  std::vector<Entry*> slots_;
  int waiting_ = 0;
};

// What the ranks that ask do ask for, without their slots.
Variants variants_of(const Entry& entry);
const Request* request_of(const Variants& variants, int number);  // null: none
void merge(Variants& into, const Variant& one);
void spell_out(Entry& entry);  // nothing is asked for by slot any more

}  // namespace hvd
