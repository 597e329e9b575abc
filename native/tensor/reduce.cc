// What happens to one input: copied, scaled, converted to and from the wire dtype.
#include "tensor/reduce.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tensor/blocks.h"
#include "tensor/half.h"
#include "tensor/kernels.h"

namespace hvd {

bool folds_exactly(const Reduction& reduction) {
  const bool sums = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  return sums && is_integer(reduction.dtype) && !factors_after(reduction).none();
}

Dtype wire_dtype(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : dtype;
}

void pass_on(void* out, void* copy, const void* in, std::size_t bytes) {
  if (copy == nullptr) return copy_memory(out, in, bytes);
  // The second copy reads from the first-level cache.
  for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
    const std::size_t n = std::min(kBlockBytes, bytes - at);
    copy_memory(static_cast<std::byte*>(copy) + at, static_cast<const std::byte*>(in) + at, n);
    copy_memory(static_cast<std::byte*>(out) + at, static_cast<const std::byte*>(in) + at, n);
  }
}

void prescale(const Reduction& reduction, void* out, const void* in, std::size_t count) {
  const Row& row = kernels().row(reduction.dtype);
  const Factors before = factors_before(reduction);
  if (before.none()) return copy_memory(out, in, count * row.lanes * row.lane_bytes);
  row.scale(out, in, count * row.lanes, before);
}

void scale(const Reduction& reduction, void* out, const void* input, std::size_t count) {
  const Row& row = kernels().row(reduction.dtype);
  const Factors after = factors_after(reduction);
  prescale(reduction, out, input, count);
  if (!after.none()) row.scale(out, out, count * row.lanes, after);
}

void load(const Reduction& reduction, void* wire, const void* input, std::size_t count) {
  const Row& row = kernels().row(reduction.dtype);
  if (row.widen == nullptr) return prescale(reduction, wire, input, count);
  const Factors before = factors_before(reduction);
  if (before.none()) return row.widen(wire, input, count, {});
  in_blocks(row.lane_bytes, count, [&](std::size_t at, std::size_t n) {
    Scratch scratch;
    row.scale(scratch.bytes, lane_at(input, at, row.lane_bytes), n, before);
    row.widen(static_cast<float*>(wire) + at, scratch.bytes, n, {});
  });
}

void finalize(const Reduction& reduction, void* out, const void* wire, std::size_t count) {
  const Row& row = kernels().row(reduction.dtype);
  const Factors after = factors_after(reduction);
  if (row.narrow != nullptr) return row.narrow(out, wire, count, after);
  if (after.none()) return copy_memory(out, wire, count * row.lanes * row.lane_bytes);
  row.scale(out, wire, count * row.lanes, after);
}

// Folds of several inputs: all at once, or one after another as in a ring.

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

// The identities of reductions.

namespace {

// One element, as bytes.
struct Pattern {
  std::byte bytes[16];
};

template <typename... Lanes>
Pattern pattern_of(Lanes... lanes) {
  Pattern pattern{};
  std::size_t at = 0;
  ((std::memcpy(pattern.bytes + at, &lanes, sizeof lanes), at += sizeof lanes), ...);
  return pattern;
}

// Sum, Min, Max, Product, as op_index() counts. -0.0 + x is x for every x, and 0.0 is not.
struct Identities {
  Pattern of[kDistinctOps];
};

template <typename T>
Identities integers() {
  using Limits = std::numeric_limits<T>;
  return {
      {pattern_of(T{0}), pattern_of(Limits::max()), pattern_of(Limits::min()), pattern_of(T{1})}};
}

template <typename T>
Identities floats() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  return {{pattern_of(-T{0}), pattern_of(kInfinity), pattern_of(-kInfinity), pattern_of(T{1})}};
}

template <typename T>
Identities complexes() {
  return {{pattern_of(-T{0}, -T{0}), {}, {}, pattern_of(T{1}, T{0})}};
}

template <typename T>
Identities short_floats(T (*rounded)(float)) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return {{pattern_of(rounded(-0.0F)), pattern_of(rounded(kInfinity)),
           pattern_of(rounded(-kInfinity)), pattern_of(rounded(1.0F))}};
}

Identities truths() {
  const Pattern no = pattern_of(std::uint8_t{0}), yes = pattern_of(std::uint8_t{1});
  return {{no, yes, no, yes}};
}

const Identities& identities(Dtype dtype) {
  // Dtypes behind these are not reduced.
  static const Identities kByDtype[kDtypeCount] = {
      integers<std::uint8_t>(),  integers<std::int8_t>(),
      integers<std::uint16_t>(), integers<std::int16_t>(),
      integers<std::int32_t>(),  integers<std::int64_t>(),
      short_floats(to_float16),  floats<float>(),
      floats<double>(),          truths(),
      short_floats(to_bfloat16), complexes<float>(),
      complexes<double>()};
  return kByDtype[static_cast<std::size_t>(dtype)];
}

}  // namespace

void fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) {
  const Pattern& pattern = identities(dtype).of[op_index(op)];
  const std::size_t bytes = size_of(dtype) * count;
  auto* const to = static_cast<std::byte*>(out);
  if (bytes == 0) return;
  std::memcpy(to, pattern.bytes, size_of(dtype));
  for (std::size_t done = size_of(dtype); done < bytes; done *= 2)
    std::memcpy(to + done, to, std::min(done, bytes - done));
}

}  // namespace hvd
