// Folds of several inputs: all at once, or one after another as in a ring.
#include <array>

#include "tensor/blocks.h"
#include "tensor/kernels.h"
#include "tensor/reduce.h"

namespace hvd {
namespace {

// The loops of a reduction, and the steps that they do not do.
struct Work {
  explicit Work(const Reduction& reduction)
      : row(kernels().row(reduction.dtype)),
        op(row.ops[static_cast<std::size_t>(op_index(reduction.op))]),
        before(factors_before(reduction)),
        inside(row.scales_in_registers ? factors_after(reduction) : Factors{}),
        afterwards(row.scales_in_registers ? Factors{} : factors_after(reduction)) {}

  std::size_t wire_bytes() const { return row.widen != nullptr ? sizeof(float) : row.lane_bytes; }

  const Row& row;
  const OpKernels& op;
  const Factors before;
  const Factors inside;      // applied by the loops
  const Factors afterwards;  // applied to the loops' output
};

// This rank's input as it enters the fold: itself, or scaled in `scratch`.
const void* entering(const Work& work, Scratch& scratch, const void* input, std::size_t lanes) {
  if (work.before.none()) return input;
  work.row.scale(scratch.bytes, input, lanes, work.before);
  return scratch.bytes;
}

// The remaining steps after a loop: scale `out`, then copy the final result.
void complete(const Work& work, void* out, void* copy, std::size_t lanes) {
  work.row.scale(out, out, lanes, work.afterwards);
  if (copy != nullptr) copy_memory(copy, out, lanes * work.row.lane_bytes);
}

using Group = std::array<const void*, kInputsAtOnce>;

// More inputs than the loops take at once: the partial result, in the wire dtype, is one of them.
void fold_groups(const Work& work, void* out, void* copy, const void* const* inputs,
                 std::size_t n_inputs, std::size_t begin, std::size_t n) {
  WireScratch partial;
  Group group;
  for (std::size_t k = 0; k < n_inputs;) {
    std::size_t members = 0;
    const bool first = k == 0;
    if (!first) group[members++] = partial.bytes;
    while (members < kInputsAtOnce && k < n_inputs)
      group[members++] = lane_at(inputs[k++], begin, work.row.lane_bytes);
    if (first) {
      work.op.begin(partial.bytes, nullptr, group.data(), members, n, Factors{});
    } else if (k < n_inputs) {
      work.op.accumulate(partial.bytes, nullptr, group.data(), members, n, Factors{});
    } else {
      work.op.finish(out, copy, group.data(), members, n, work.inside);
    }
  }
}

// Lanes begin to begin + n of the inputs, which are few as a rule.
void fold_lanes(const Work& work, void* out, void* copy, const void* const* inputs,
                std::size_t n_inputs, std::size_t begin, std::size_t n) {
  const std::size_t lane_bytes = work.row.lane_bytes;
  if (n_inputs > kInputsAtOnce) return fold_groups(work, out, copy, inputs, n_inputs, begin, n);
  Group group{};
  for (std::size_t k = 0; k < n_inputs; ++k) group[k] = lane_at(inputs[k], begin, lane_bytes);
  if (n_inputs > 1) return work.op.whole(out, copy, group.data(), n_inputs, n, work.inside);
  work.row.scale(out, group[0], n, work.inside);
  if (copy != nullptr) copy_memory(copy, out, n * lane_bytes);
}

// A block at a time: what is copied comes from the first-level cache.
void fold_exactly(const Row& row, const Factors& factors, void* out, void* const* copies,
                  std::size_t n_copies, const void* const* inputs, std::size_t n_inputs,
                  std::size_t lanes) {
  in_blocks(row.lane_bytes, lanes, [&](std::size_t at, std::size_t n) {
    void* const to = lane_at(out, at, row.lane_bytes);
    row.exact_sum(to, inputs, n_inputs, at, n, factors);
    for (std::size_t k = 0; k < n_copies; ++k)
      copy_memory(lane_at(copies[k], at, row.lane_bytes), to, n * row.lane_bytes);
  });
}

}  // namespace

void fold(const Reduction& reduction, void* out, void* const* copies, std::size_t n_copies,
          const void* const* inputs, std::size_t n_inputs, std::size_t count) {
  const Work work(reduction);
  const std::size_t lanes = count * work.row.lanes, lane_bytes = work.row.lane_bytes;
  if (work.op.whole == nullptr || lanes == 0) return;
  if (folds_exactly(reduction))
    return fold_exactly(work.row, work.afterwards, out, copies, n_copies, inputs, n_inputs, lanes);
  void* const copy = n_copies > 0 ? copies[0] : nullptr;
  const bool at_once = n_copies <= 1 && n_inputs > 1 && n_inputs <= kInputsAtOnce;
  if (at_once && work.afterwards.none())
    return work.op.whole(out, copy, inputs, n_inputs, lanes, work.inside);
  in_blocks(lane_bytes, lanes, [&](std::size_t at, std::size_t n) {
    void* const to = lane_at(out, at, lane_bytes);
    void* const first = lane_at(copy, at, lane_bytes);
    fold_lanes(work, to, first, inputs, n_inputs, at, n);
    if (!work.afterwards.none()) complete(work, to, first, n);
    for (std::size_t k = 1; k < n_copies; ++k)
      copy_memory(lane_at(copies[k], at, lane_bytes), to, n * lane_bytes);
  });
}

void accumulate(const Reduction& reduction, void* wire_out, const void* wire_in, const void* input,
                std::size_t count) {
  const Work work(reduction);
  const std::size_t lanes = count * work.row.lanes;
  const std::size_t lane_bytes = work.row.lane_bytes, wire_bytes = work.wire_bytes();
  if (work.op.accumulate == nullptr || lanes == 0) return;
  const auto step = [&](void* to, const void* from, const void* mine, std::size_t n) {
    const void* const both[] = {from, mine};
    work.op.accumulate(to, nullptr, both, 2, n, Factors{});
  };
  if (work.before.none()) return step(wire_out, wire_in, input, lanes);
  in_blocks(lane_bytes, lanes, [&](std::size_t at, std::size_t n) {
    Scratch scratch;
    step(lane_at(wire_out, at, wire_bytes), lane_at(wire_in, at, wire_bytes),
         entering(work, scratch, lane_at(input, at, lane_bytes), n), n);
  });
}

void finish(const Reduction& reduction, void* out, void* copy, const void* wire_in,
            const void* input, std::size_t count) {
  const Work work(reduction);
  const std::size_t lanes = count * work.row.lanes, lane_bytes = work.row.lane_bytes;
  if (work.op.finish == nullptr || lanes == 0) return;
  const auto step = [&](void* to, void* second, const void* from, const void* mine, std::size_t n) {
    const void* const both[] = {from, mine};
    work.op.finish(to, second, both, 2, n, work.inside);
  };
  if (work.before.none() && work.afterwards.none()) return step(out, copy, wire_in, input, lanes);
  in_blocks(lane_bytes, lanes, [&](std::size_t at, std::size_t n) {
    Scratch scratch;
    void* const to = lane_at(out, at, lane_bytes);
    void* const second = lane_at(copy, at, lane_bytes);
    step(to, second, lane_at(wire_in, at, work.wire_bytes()),
         entering(work, scratch, lane_at(input, at, lane_bytes), n), n);
    if (!work.afterwards.none()) complete(work, to, second, n);
  });
}

}  // namespace hvd
