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
#pragma once

#include <vector>

#include "collective/backend/backend.h"
#include "cuda/ring/ring.h"

namespace hvd::cuda {

Status ring_allreduce(Ring& ring, const std::vector<Operand>& operands, const Reduction& reduction);
// The member of group rank p has every operand, in place, at out + offsets[p] in this device's
// address space. For types supported by Kernels::sums_floats().
Status ring_allreduce_shared(Ring& ring, const std::vector<Operand>& operands,
                             const std::vector<std::ptrdiff_t>& offsets,
                             const Reduction& reduction);
Status ring_reducescatter(Ring& ring, const std::vector<Scatter>& tensors,
                          const Reduction& reduction);

}  // namespace hvd::cuda
