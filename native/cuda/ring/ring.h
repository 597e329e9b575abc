// Ring on devices, for the operations of one group: kernels on this rank's stream, and
// signals between the streams of the members. The host enqueues all of it on the stream and waits
// only if too much is in flight (device.h).
//   member   a rank of the group; its group rank is its number in it. A peer is another member
//   reader   a member that reads a half packed by another: every peer, or for some operations one
//   use      one round's use of a half by the member whose half it is
//
// One use of a half, by its owner p and a reader q (arena.h: the phases):
//   p   wait freed from q  ->  pack the half  ->  signal packed to q
//   q   wait packed from p  ->  read the half  ->  signal freed to p
// If chunks are folded, both do this in between: fold the own chunk into the own half  ->  signal
// folded to all  ->  wait folded from all; only then do they read the results of others.
// A signal writes 1 into the word of the waiting member that stands for (phase, half, sender); a
// wait waits for 1 and writes 0. So a captured CUDA graph can be replayed, which a counter would
// not allow: every use leaves the words as it found them, freed 1 and the others 0.
//
// No signal is lost or mistaken for another: on each word, signals and waits take turns. packed(p
// to q) is signalled after p's wait for freed(q to p), which q signalled after its last wait for
// packed(p to q): so that word is 0 again. folded: likewise, since freed also comes after the wait
// for folded. freed(q to p) is signalled after q's wait for packed(p to q), which p signalled
// after its last wait for freed(q to p). What is written is visible before the signal (a word is
// written after a fence for the whole system), and the kernels after a wait start when it is
// over.
//
// No operation overtakes an earlier one: a member that packs a half waits for every peer
// that has read it last. It also waits for peers that do not read this time, without writing 0
// (see()), so that their words stay 1. Rounds may differ in number from pair to pair (alltoall);
// all that members must agree on is which half a round uses: the operation's number plus the
// round's. They count operations alike, because all execute the same ones in the same order. Groups
// share no words: each has arenas of its own.
//
// No deadlock: every member enqueues the same steps on its stream in the same order (or leaves out
// both ends of one), and what a step waits for is signalled in a step before it. Steps of several
// groups are in one order too (backend.h), and streams of one rank do not wait for each other.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "collective/backend/backend.h"
#include "cuda/device/device.h"
#include "cuda/kernels/kernels.h"
#include "cuda/ring/arena.h"

namespace hvd::cuda {

class Ring {
 public:
  // bases: of every member's arena, mapped in this process, by group rank.
  Ring(std::shared_ptr<Device> device, const Abort& abort, const Group& group,
       const ArenaShape& shape, std::vector<std::byte*> bases);

  std::size_t size() const { return bases_.size(); }
  std::size_t group_rank() const { return group_rank_; }
  // The group rank `steps` to the right, cyclically.
  std::size_t group_rank_at(std::size_t steps) const { return (group_rank_ + steps) % size(); }
  std::size_t half_bytes() const { return shape_.half_bytes(); }
  std::size_t room() const { return shape_.room(); }
  // For the current operation. Chunk c of a half begins after c rooms.
  std::byte* half(std::size_t group_rank, std::size_t round) const;

  // The next operation: all members count alike.
  void begin() { ++operation_; }

  // Signals and waits of this rank; enqueued with the next kernels, or by flush().
  void signal(Phase phase, std::size_t round, std::size_t to);
  void wait(Phase phase, std::size_t round, std::size_t from);
  void see(Phase phase, std::size_t round, std::size_t from);
  void signal_all(Phase phase, std::size_t round);
  void wait_all(Phase phase, std::size_t round);
  Status flush();

  // See kernels.h; does nothing without pieces or elements.
  Status prescale(const Reduction& reduction, const std::vector<Piece>& pieces);
  Status copy(Dtype dtype, const std::vector<Piece>& pieces);
  Status fold(const Reduction& reduction, void* out, const std::vector<const void*>& inputs,
              std::size_t count);

  Status fold_shared(const Reduction& reduction, const std::vector<Stretch>& stretches,
                     const std::vector<std::ptrdiff_t>& offsets);

  // Satisfy all waits of this rank's stream, once, from the stream `aside`.
  Status abort_waits(CUstream aside);
  // Enqueue waits after which no member reads this rank's halves.
  Status finalize();

 private:
  CUdeviceptr word(std::size_t of, Phase phase, std::size_t half, std::size_t from) const;
  std::size_t half_of(std::size_t round) const { return (operation_ + round) % kHalves; }
  Status enqueue(CUstream stream, std::vector<CUstreamBatchMemOpParams>& words);
  Status step();

  std::shared_ptr<Device> device_;
  const Abort& abort_;
  std::size_t group_rank_;
  ArenaShape shape_;
  std::vector<std::byte*> bases_;
  std::size_t operation_ = 0;
  std::vector<CUstreamBatchMemOpParams> due_;  // signals and waits that are not enqueued yet
};

// Allreduce and reducescatter on devices. Every member owns a chunk: it folds that chunk from all
// members' halves, in the order of backend.h, into its own half; for an allreduce all then read
// each chunk from its owner's half. Not for groups of one.
//
// What it moves, in bytes per rank for a tensor of S bytes on n ranks. Device memory: packing reads
// and writes S, folding reads S and writes S/n, unpacking reads and writes S: 5 S + S/n, and 2 S/n
// less where the own chunk is one piece that need not be scaled, which is folded from where it
// lies: 5 S - S/n. A ring of receive-reduce-send steps over slots moves 6 S - 4 S/n. Between
// devices: in folding and in unpacking S (n - 1)/n come in and go out, 2 S (n - 1)/n as in a ring.
// Where the tensors lie in memory that the members share nothing is packed: folding reads S and
// writes S, 2 S in all, of which 2 S (n - 1)/n between devices.

Status ring_allreduce(Ring& ring, const std::vector<Operand>& operands, const Reduction& reduction);
// The member of group rank p has every operand, in place, at out + offsets[p] in this device's
// address space. For types supported by Kernels::sums_floats().
Status ring_allreduce_shared(Ring& ring, const std::vector<Operand>& operands,
                             const std::vector<std::ptrdiff_t>& offsets,
                             const Reduction& reduction);
Status ring_reducescatter(Ring& ring, const std::vector<Scatter>& tensors,
                          const Reduction& reduction);

// Operations that move bytes between devices: each member packs data for others into its half,
// where they read it. Not for groups of one.
//
// In bytes per rank: broadcast of S: the root reads and writes S, the others read S (over the
// root's link, n - 1 times) and write S. Allgather and alltoall: what a rank sends is read and
// written once more than the copy from device to device would.

Status ring_broadcast(Ring& ring, const std::vector<Operand>& operands, std::size_t root);
Status ring_allgather(Ring& ring, const std::vector<Gather>& tensors);
Status ring_alltoall(Ring& ring, const Exchange& exchange);

}  // namespace hvd::cuda
