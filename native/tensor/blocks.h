// Long arrays in pieces that stay in the first-level cache while something is done to them twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tensor/kernels.h"
#include "tensor/reduce.h"

namespace hvd {

constexpr std::size_t kBlockBytes = std::size_t{8} << 10U;

struct Scratch {
  alignas(64) std::byte bytes[kBlockBytes];
};

struct WireScratch {  // as many lanes as a Scratch, of twice their bytes
  alignas(64) std::byte bytes[2 * kBlockBytes];
};

// An empty tensor may have no address; in place there is nothing to copy.
inline void copy_memory(void* out, const void* in, std::size_t bytes) {
  if (bytes != 0 && out != in) std::memcpy(out, in, bytes);
}

inline void* lane_at(void* start, std::size_t lane, std::size_t lane_bytes) {
  return start == nullptr ? nullptr : static_cast<std::byte*>(start) + lane * lane_bytes;
}
inline const void* lane_at(const void* start, std::size_t lane, std::size_t lane_bytes) {
  return static_cast<const std::byte*>(start) + lane * lane_bytes;
}

// run(first lane, how many) for each block.
template <typename Run>
void in_blocks(std::size_t lane_bytes, std::size_t lanes, const Run& run) {
  const std::size_t longest = kBlockBytes / lane_bytes;
  for (std::size_t at = 0; at < lanes; at += longest) run(at, std::min(longest, lanes - at));
}

inline Factors factors_before(const Reduction& reduction) {
  return {reduction.scaling.before, 1.0};
}
inline Factors factors_after(const Reduction& reduction) {
  return {reduction.scaling.after, reduction.scaling.divisor};
}

}  // namespace hvd
