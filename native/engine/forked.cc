#include "engine/forked.h"

#include <pthread.h>

#include <atomic>

namespace hvd {
namespace {

std::atomic<unsigned> counted{0};

}  // namespace

unsigned forks() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { counted.fetch_add(1, std::memory_order_relaxed); });
  return registered == 0 ? counted.load(std::memory_order_relaxed) : 0;
}

}  // namespace hvd
