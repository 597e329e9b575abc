#include "bench/staged.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/backoff.h"
#include "tensor/reduce.h"

namespace hvd::bench {

std::size_t Staged::Window::first(int rank) const {
  return std::min(static_cast<std::size_t>(rank) * slice, count);
}

std::size_t Staged::Window::length(int rank) const { return first(rank + 1) - first(rank); }

void Staged::allreduce(float* values, std::size_t count) {
  const auto n = static_cast<std::size_t>(size_);
  const std::size_t slice = std::min(StagedMemory::kSlice, (count + n - 1) / n);
  const std::size_t step = slice * n;
  const long windows = static_cast<long>((count + step - 1) / step);
  const auto window = [&](long number) {
    const std::size_t begin = static_cast<std::size_t>(number) * step;
    return Window{begin, std::min(step, count - begin), slice};
  };
  const auto depth = [&](long number) {
    return static_cast<std::size_t>(done_ + number) % StagedMemory::kDepth;
  };
  for (long number = 0; number <= windows; ++number) {
    if (number < windows) {
      for (int rank = 0; rank < size_; ++rank) {
        wait(memory_.out[rank].windows,
             done_ + number + 1 - static_cast<long>(StagedMemory::kDepth));
      }
      copy_in(values, window(number), depth(number));
      memory_.in[rank_].windows.store(done_ + number + 1, std::memory_order_release);
      fold(values, window(number), depth(number), done_ + number + 1);
      memory_.folded[rank_].windows.store(done_ + number + 1, std::memory_order_release);
    }
    if (number == 0) continue;
    copy_out(values, window(number - 1), depth(number - 1), done_ + number);
    memory_.out[rank_].windows.store(done_ + number, std::memory_order_release);
  }
  done_ += windows;
}

void Staged::copy_in(const float* values, const Window& window, std::size_t depth) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    std::memcpy(memory_.windows[depth][rank_] + window.first(rank),
                values + window.begin + window.first(rank), window.length(rank) * sizeof(float));
  }
}

void Staged::fold(float* values, const Window& window, std::size_t depth, long number) {
  const std::size_t first = window.first(rank_);
  const void* inputs[StagedMemory::kMostRanks];
  for (int step = 1; step < size_; ++step) {
    const int rank = (rank_ + step) % size_;
    wait(memory_.in[rank].windows, number);
    inputs[step - 1] = memory_.windows[depth][rank] + first;
  }
  float* const mine = values + window.begin + first;
  inputs[size_ - 1] = mine;
  void* const copy = memory_.windows[depth][StagedMemory::kMostRanks] + first;
  hvd::fold({}, mine, &copy, 1, inputs, static_cast<std::size_t>(size_), window.length(rank_));
}

void Staged::copy_out(float* values, const Window& window, std::size_t depth, long number) {
  for (int step = 1; step < size_; ++step) {
    const int rank = (rank_ + step) % size_;
    wait(memory_.folded[rank].windows, number);
    std::memcpy(values + window.begin + window.first(rank),
                memory_.windows[depth][StagedMemory::kMostRanks] + window.first(rank),
                window.length(rank) * sizeof(float));
  }
}

void Staged::wait(const std::atomic<long>& counter, long target) const {
  for (int looked = 0; counter.load(std::memory_order_acquire) < target; ++looked) {
    if (spin_ && looked < 2000) {
      spin_pause();
    } else {
      sched_yield();
    }
  }
}

}  // namespace hvd::bench
