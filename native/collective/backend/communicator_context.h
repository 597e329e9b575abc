// Terms.
//   context  one member's view of a group: a link to and from every other member, and the host of
//            each member
//   host     here: the number of a machine within the group, by its lowest group rank
//   peer     any member but this one; peers are visited in the order group rank + 1, + 2, ...,
//            which spreads the load
// A context is built once per group and kept, so small operations allocate nothing.
#pragma once

#include <string>
#include <vector>

#include "base/failpoint.h"
#include "base/status.h"
#include "collective/backend/backend.h"
#include "tensor/slot_store.h"
#include "transport/mesh/mesh.h"

namespace hvd {

class CommunicatorContext {
 public:
  CommunicatorContext(Mesh& mesh, const Group& group);

  const Group& group() const { return group_; }
  int size() const { return group_.size(); }
  int group_rank() const { return group_.group_rank; }
  // The group rank `steps` to the right, cyclically; negative: to the left.
  int group_rank_at(int steps) const {
    return ((group_.group_rank + steps) % size() + size()) % size();
  }

  int hosts() const { return static_cast<int>(group_ranks_on_.size()); }
  int host_of(int group_rank) const { return host_of_[static_cast<std::size_t>(group_rank)]; }
  const std::vector<int>& group_ranks_on(int host) const {
    return group_ranks_on_[static_cast<std::size_t>(host)];
  }
  // A group of the given members (including this one).
  Group part(const std::vector<int>& group_ranks) const;

  // The same for every link of the mesh. Not for a group of one.
  std::size_t slot_bytes() const { return to_[index(group_rank_at(1))]->slot_bytes(); }
  std::size_t slots() const { return to_[index(group_rank_at(1))]->slots(); }

  Result<std::byte*> acquire(int group_rank) {
    Result<Slot> slot = to_[index(group_rank)]->acquire(abort_);
    if (!slot) return slot.status();
    return slot.value().data;
  }
  // The store for writing into a slot to this member.
  SlotStore& store(int group_rank) { return stores_[index(group_rank)]; }
  void publish(int group_rank, std::size_t bytes) { to_[index(group_rank)]->publish(bytes); }
  // The next slot from this member, which must carry exactly `bytes` bytes.
  Result<const std::byte*> expect(int group_rank, std::size_t bytes) {
    Result<Slot> slot = from_[index(group_rank)]->peek(abort_);
    if (!slot) return slot.status();
    if (slot.value().bytes != bytes) return surprise(group_rank, bytes, slot.value().bytes);
    return static_cast<const std::byte*>(slot.value().data);
  }
  void release(int group_rank) { from_[index(group_rank)]->release(); }

  // Scratch for one pointer per group rank, for the current operation.
  std::vector<const std::byte*>& seen() { return seen_; }
  std::vector<void*>& slots_out() { return slots_out_; }

 private:
  static std::size_t index(int group_rank) { return static_cast<std::size_t>(group_rank); }
  Status surprise(int group_rank, std::size_t due, std::size_t came) const;

  Group group_;
  const Abort& abort_;
  std::vector<SendLink*> to_;  // by group rank; nullptr for this rank
  std::vector<RecvLink*> from_;
  std::vector<SlotStore> stores_;
  std::vector<int> host_of_;                      // by group rank
  std::vector<std::vector<int>> group_ranks_on_;  // by host
  std::vector<const std::byte*> seen_;
  std::vector<void*> slots_out_;
};

// The error of an operation at a failpoint with action `fail`.
Status tripped(const char* name);

}  // namespace hvd
