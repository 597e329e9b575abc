// Copies past the caches.
#include <cstdint>

#include "base/deadline.h"
#include "tensor/blocks.h"
#include "tensor/reduce.h"
#include "tensor/slot_store.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hvd {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLine = 64;  // written whole, a line need not be read first

void stream_line(std::byte* out, const std::byte* in) {
  for (std::size_t i = 0; i < kLine; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
  }
}

}  // namespace

void pass_on_streaming(void* out, const void* in, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(in);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::size_t at = past == 0 ? 0 : std::min(bytes, kLine - past);
  copy_memory(to, from, at);
  for (; at + kLine <= bytes; at += kLine) stream_line(to + at, from + at);
  copy_memory(to + at, from + at, bytes - at);
  _mm_sfence();  // before any store that publishes these bytes
}

#else

void pass_on_streaming(void* out, const void* in, std::size_t bytes) {
  copy_memory(out, in, bytes);
}

#endif

void SlotStore::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes < StoreChoice::kLeastBytes) return copy_memory(to, from, bytes);
  const std::int64_t begin = now_ns();
  if (choice_.streams(begin)) return pass_on_streaming(to, from, bytes);
  copy_memory(to, from, bytes);
  const std::int64_t end = now_ns();
  choice_.record(bytes, end - begin, end);
}

}  // namespace hvd
