#include "tensor/kernels.h"

#include <atomic>

#include "tensor/kernels_isa.h"

#define HVD_ISA baseline
#define HVD_ISA_NAME "baseline"
#define HVD_TARGET
#define HVD_VECTOR 16

namespace hvd::baseline {
namespace {

template <typename Vec>
HVD_INLINE Vec load_halves(const std::uint16_t* from) {
  Vec value;
  for (std::size_t i = 0; i < HVD_VECTOR / 4; ++i) value[i] = to_float(Float16{from[i]});
  return value;
}

template <typename Vec>
HVD_INLINE void store_halves(std::uint16_t* to, Vec value) {
  for (std::size_t i = 0; i < HVD_VECTOR / 4; ++i) to[i] = to_float16(value[i]).bits;
}

template <typename Vec>
HVD_INLINE Vec load_words(const std::uint16_t* from) {
  Vec value;
  for (std::size_t i = 0; i < HVD_VECTOR / 4; ++i) value[i] = from[i];
  return value;
}

template <typename Vec>
HVD_INLINE void store_words(std::uint16_t* to, Vec value) {
  for (std::size_t i = 0; i < HVD_VECTOR / 4; ++i) to[i] = static_cast<std::uint16_t>(value[i]);
}

}  // namespace
}  // namespace hvd::baseline

#include "tensor/kernels.inc"

namespace hvd {
namespace {

std::atomic<const Kernels*> chosen_kernels{nullptr};

const Kernels& best_kernels() {
  static const Kernels& best = *[] {
    if (const Kernels* const wide = avx512_kernels()) return wide;
    if (const Kernels* const wide = avx2_kernels()) return wide;
    return &baseline_kernels();
  }();
  return best;
}

}  // namespace

const Kernels& baseline_kernels() { return baseline::kTable; }

const Kernels& kernels() {
  const Kernels* const chosen = chosen_kernels.load(std::memory_order_relaxed);
  return chosen != nullptr ? *chosen : best_kernels();
}

void use_kernels(const Kernels* chosen) { chosen_kernels.store(chosen, std::memory_order_relaxed); }

int op_index(ReduceOp op) {
  constexpr std::array<int, kReduceOpCount> kIndex{0, 0, 0, 1, 2, 3};
  return kIndex[static_cast<std::size_t>(op)];
}

}  // namespace hvd
