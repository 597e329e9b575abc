// Futex: sleep on a word of memory, which may be shared between processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace hvd {

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "a futex is four bytes");

constexpr std::uint32_t kAnyWaiter = ~0U;

// Sleep while word == seen, at most `longest`. May return early, so callers check again. Only a
// wake for one of the bits `waiters` ends the sleep.
void futex_wait(Word& word, std::uint32_t seen, std::chrono::nanoseconds longest,
                std::uint32_t waiters = kAnyWaiter);
void futex_wake_all(Word& word, std::uint32_t waiters = kAnyWaiter);

}  // namespace hvd
