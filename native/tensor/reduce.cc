// What happens to one input: copied, scaled, converted to and from the wire dtype.
#include "tensor/reduce.h"

#include <algorithm>
#include <cstring>

#include "tensor/blocks.h"

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

}  // namespace hvd
