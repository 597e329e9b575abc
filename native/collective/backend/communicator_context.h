// Words.
//   context   a group as one of its members sees it: a link to and from every other place, and
//          where the places lie
//   host   here: the number of a machine within the group, by its first place
//   peer   any place but this one; peers are visited in the rotation place + 1, place + 2, ..., so
//          that not everybody turns to the same one first
// A context is built once per group and kept: the small operations allocate nothing.
#pragma once

#include <string>
#include <vector>

#include "base/failpoint.h"
#include "base/status.h"
#include "collective/backend/group.h"
#include "tensor/slot_store.h"
#include "transport/mesh/mesh.h"

namespace hvd {

class CommunicatorContext {
 public:
  CommunicatorContext(Mesh& mesh, const Group& group);

  const Group& group() const { return group_; }
  int size() const { return group_.size(); }
  int place() const { return group_.place; }
  // The place `steps` further on, round the end; negative: back.
  int place_at(int steps) const { return ((group_.place + steps) % size() + size()) % size(); }

  int hosts() const { return static_cast<int>(places_on_.size()); }
  int host_of(int place) const { return host_of_[static_cast<std::size_t>(place)]; }
  const std::vector<int>& places_on(int host) const {
    return places_on_[static_cast<std::size_t>(host)];
  }
  // The places given, as a group of their own (this one among them).
  Group part(const std::vector<int>& places) const;

  // The same for every link of the mesh. Not for a group of one.
  std::size_t slot_bytes() const { return to_[index(place_at(1))]->slot_bytes(); }
  std::size_t slots() const { return to_[index(place_at(1))]->slots(); }

  Result<std::byte*> acquire(int place) {
    Result<Slot> slot = to_[index(place)]->acquire(abort_);
    if (!slot) return slot.status();
    return slot.value().data;
  }
  // For what is written into a slot towards there.
  SlotStore& store(int place) { return stores_[index(place)]; }
  void publish(int place, std::size_t bytes) { to_[index(place)]->publish(bytes); }
  // The next slot from there, which must carry so many bytes.
  Result<const std::byte*> expect(int place, std::size_t bytes) {
    Result<Slot> slot = from_[index(place)]->peek(abort_);
    if (!slot) return slot.status();
    if (slot.value().bytes != bytes) return surprise(place, bytes, slot.value().bytes);
    return static_cast<const std::byte*>(slot.value().data);
  }
  void release(int place) { from_[index(place)]->release(); }

  // Room for one pointer per place, for whoever works with this context at present.
  std::vector<const std::byte*>& seen() { return seen_; }
  std::vector<void*>& slots_out() { return slots_out_; }

 private:
  static std::size_t index(int place) { return static_cast<std::size_t>(place); }
  Status surprise(int place, std::size_t due, std::size_t came) const;

  Group group_;
  const Abort& abort_;
  std::vector<SendLink*> to_;  // by place; null at the own one
  std::vector<RecvLink*> from_;
  std::vector<SlotStore> stores_;
  std::vector<int> host_of_;                 // by place
  std::vector<std::vector<int>> places_on_;  // by host
  std::vector<const std::byte*> seen_;
  std::vector<void*> slots_out_;
};

// What a failpoint that shall fail makes of an operation.
Status tripped(const char* name);

}  // namespace hvd
