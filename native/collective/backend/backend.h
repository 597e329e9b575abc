// Terms.
//   group       the ranks that execute an operation together: those of one process set, in order
//   group rank  a rank's number within its group
//   registry    a backend's objects per group, built once: its context, its communicator. The
//               engine has the existing sets (engine/execution/groups.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collective/backend/plan.h"
#include "tensor/dtype.h"
#include "tensor/reduce.h"

namespace hvd {

struct Group {
  int id = 0;              // of the process set; 0: all ranks
  std::vector<int> ranks;  // of the engine, ascending
  int group_rank = 0;      // this rank's

  int size() const { return static_cast<int>(ranks.size()); }
  // The rank `steps` to the right, cyclically; negative: to the left.
  int rank_at(int steps) const {
    const int n = size();
    return ranks[static_cast<std::size_t>(((group_rank + steps) % n + n) % n)];
  }
  // Ids are reused after their set was removed, and a part of a group has the group's id.
  bool operator==(const Group& other) const {
    return id == other.id && group_rank == other.group_rank && ranks == other.ranks;
  }
};

// Elements keep their address. Not thread-safe.
template <typename T>
class GroupRegistry {
 public:
  T* find(const Group& group) const {  // nullptr: not registered
    for (const auto& [met, kept] : entries_) {
      if (met == group) return kept.get();
    }
    return nullptr;
  }
  T& add(const Group& group, std::unique_ptr<T> kept) {
    return *entries_.emplace_back(group, std::move(kept)).second;
  }
  template <typename Function>
  void for_each(const Function& function) const {
    for (const auto& [met, kept] : entries_) function(*kept);
  }
  std::size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }

 private:
  std::vector<std::pair<Group, std::unique_ptr<T>>> entries_;
};

// Backend: executes operations on the tensors of one kind of device. The engine gets it from
// select() and knows no algorithm. Every call is collective within its group and made by the
// progress-lock owner; all ranks of a group make the same calls in the same order, and calls of
// different groups have one order that all ranks share. A failure leaves links in an undefined
// state: the engine cannot continue.
//
// The order of every fold is fixed. Slice o of a tensor (plan.h: slice_begin(count, o, n)) is owned
// by group rank o and folded from the left over the group ranks o+1, o+2, ..., o: the owner is the
// last. On a group that spans hosts the fold is done host by host: first over the members of each
// host in that same rotation, then over the hosts in the rotation that ends at the owner's (each
// host's part in the wire dtype within the host, rounded to the dtype between hosts). Many hosts
// form a grid (order.h): then it is first over the hosts of each row, in the rotation that ends
// at the owner's column, then over the rows, in the one that ends at the owner's (a row's part
// rounded likewise). It depends on nothing else: not on algorithm, transport, fusion or timing.
// Sums that are folded exactly (tensor/reduce.h) have no order, and no parts: they are folded over
// all members at once.

// One gathered tensor: `in` is this rank's block, `out` receives the block of every rank.
struct Gather {
  const std::byte* in = nullptr;
  std::vector<std::byte*> out;     // by group rank
  std::vector<std::size_t> bytes;  // by group rank
};

// The data sent to every member and received from it.
struct Exchange {
  std::vector<const std::byte*> in;  // by group rank of the receiver
  std::vector<std::size_t> in_bytes;
  std::vector<std::byte*> out;  // by group rank of the sender
  std::vector<std::size_t> out_bytes;
};

// One tensor that is reduced and scattered: group rank p receives elements begins[p] to begins[p +
// 1].
struct Scatter {
  const void* in = nullptr;         // the whole tensor
  void* out = nullptr;              // this member's share
  std::vector<std::size_t> begins;  // n + 1 of them, in elements
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Several operands are one fused operation. Operands in elements. op may be kAdasum (then each
  // operand is a separate vector).
  virtual Status allreduce(const Group& group, const std::vector<Operand>& operands,
                           const Reduction& reduction) = 0;
  // Every operand lies in memory that the members share (the mesh's shared heap, or a region of
  // devices), in place (in == out), and on the member of group rank p at `out` + offsets[p] as this
  // process sees it (offsets[own group rank] is 0). Nothing is copied: slice o is read from and
  // written to all of them by its owner. All members share this host.
  virtual Status allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                                  const std::vector<std::ptrdiff_t>& offsets,
                                  const Reduction& reduction) = 0;
  // Operands in bytes. At the root `in` is sent, and copied to `out` unless they are the same.
  virtual Status broadcast(const Group& group, const std::vector<Operand>& operands,
                           int group_root) = 0;
  virtual Status allgather(const Group& group, const std::vector<Gather>& tensors) = 0;
  virtual Status alltoall(const Group& group, const Exchange& exchange) = 0;
  virtual Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                               const Reduction& reduction) = 0;
  // The name of the algorithm that the last call used, a literal ("SHM_SLICES"): for the timeline.
  virtual const char* last_algorithm() const = 0;
};

}  // namespace hvd
