// Message table: the pending requests of a rank's subtree, and earlier agreements (the response
// cache). The same structure on rank 0, on inner ranks of the tree, and on leaves.
//   entry     everything about one name in one process set
//   variant   one request and the ranks that make it; usually there is only one variant
//   known     what each rank requested when the slot's response was made: the meaning of its bit
#pragma once

#include <cstdint>
#include <map>
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
  RankSet ranks;  // numbers within the subtree
};
using Variants = std::vector<Variant>;

// Some ranks waited too long and received this error; ranks that request it later get the same.
struct Failure {
  Status status;
  RankSet owed;  // ranks that have not received it yet
};

struct Entry {
  const ProcessSet* set = nullptr;
  const std::string* name = nullptr;

  // Requested and not answered.
  std::int64_t since_ns = 0;
  Kind kind = Kind::kBarrier;
  bool decided = false;  // rank 0: agreed on, its response is being assembled
  bool probed = false;   // rank 0: a send that was the answer to a probe
  RankSet requested;
  RankSet by_slot;     // those of `requested` that repeat the known request
  Variants in_full;    // requests of the other ranks
  RankSet sent;        // those of `requested` whose request was sent to the parent
  int sent_slot = -1;  // the slot by which it was sent, and the number of assignments known then
  std::uint64_t sent_version = 0;
  std::int64_t warned_ns = 0;
  std::unique_ptr<Failure> failure;

  // The last agreement.
  int slot = -1;
  std::uint64_t version = 0;
  Kind known_kind = Kind::kBarrier;
  bool shared = false;
  std::vector<std::int64_t> sizes;
  Variants known;
};

class MessageTable {
 public:
  Entry& at(const ProcessSet& set, const std::string& name);  // creates a missing entry
  Entry* find(int set, const std::string& name);
  // nullptr: the slot is not in use.
  Entry* at_slot(int slot) {
    return is_used(slot) ? slots_[static_cast<std::size_t>(slot)] : nullptr;
  }
  const Entry* at_slot(int slot) const {
    return is_used(slot) ? slots_[static_cast<std::size_t>(slot)] : nullptr;
  }
  // All entries that ranks wait for, oldest first.
  std::vector<Entry*> waiting();
  std::vector<const Entry*> waiting() const;
  int count_waiting() const { return waiting_; }

  void record(Entry& entry, const RankSet& numbers, Request request, std::int64_t now_ns);
  void record(Entry& entry, int number, Request request, std::int64_t now_ns);
  void record_by_slot(Entry& entry, const RankSet& numbers, std::int64_t now_ns);
  void record_by_slot(Entry& entry, int number, std::int64_t now_ns);

  // Remove the requests of all ranks, or of these.
  void answer(Entry& entry);
  void answer(Entry& entry, const RankSet& numbers);
  void drop_if_empty(Entry& entry);

  // Bind the slot to the current requests of this entry and their response.
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

  std::map<int, Names> sets_;  // by id
  std::vector<Entry*> slots_;
  int waiting_ = 0;
};

// The requests of all ranks in full, those by slot included.
Variants variants_of(const Entry& entry);
const Request* request_of(const Variants& variants, int number);  // nullptr: none
void merge(Variants& into, const Variant& addition);
void spell_out(Entry& entry);  // converts requests by slot into full ones

}  // namespace hvd
