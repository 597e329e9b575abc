// An allreduce as one kernel that stays on the device until it is done: this rank's part, for
// devices and for the host (element.cuh). Words as in collective/algorithm/algorithms.h; besides:
//   block    of threads: it does its own part of every chunk, over links of its own, and looks at
//            no other block. All blocks of all ranks must run at the same time
//   memory   of one rank: the abort word, the words of every block, the slots of every block
//   slot     in the memory of who receives, for its left neighbour to write. Partial sums lie there
//            as lanes (float of 16-bit floats), finished ones as they are stored
//   filled   how many messages the left neighbour has put into the slots, ever
//   emptied  how many of this rank's messages its right neighbour has read, ever
//
// Memory order. Who sends writes the slot with all threads, then there is a barrier, then one
// thread writes `filled` with release for the whole system; who receives reads it with acquire,
// then there is a barrier, then all threads read the slot. `emptied` comes back in the same way, so
// that a slot is written again only when it has been read. Counters go on from one operation to the
// next and wrap around; a captured graph can be replayed.
//
// A block never has more than one message more sent than received, and a link has at least two
// slots: so not all links of the ring can be full, and somebody can always go on. Every wait looks
// at the abort word of its own memory; once it is not 0 the kernel ends, and the ring with it. At
// its end a block waits until its messages have been read: then nobody touches its memory any more.
#pragma once

#include "cuda/kernels/loops.cuh"

#ifndef __CUDA_ARCH__
#include <sched.h>
#endif

namespace hvd::cuda {

// The words of a block, apart from each other: different devices write them.
struct RingWords {
  alignas(128) std::uint32_t filled;   // by the left neighbour
  alignas(128) std::uint32_t emptied;  // by the right neighbour
  alignas(128) std::uint32_t sent;     // this rank's own, between operations
  std::uint32_t received;
};
constexpr std::size_t kRingHead = 128;  // bytes: the abort word

HVD_BOTH std::size_t ring_slots_at(std::size_t blocks) {
  return kRingHead + blocks * sizeof(RingWords);
}

HVD_BOTH std::uint32_t acquired(const std::uint32_t* word) {
#ifdef __CUDA_ARCH__
  std::uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}
HVD_BOTH void release(std::uint32_t* word, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}
HVD_BOTH void let_others_run() {
#ifdef __CUDA_ARCH__
  __nanosleep(20);
#else
  sched_yield();
#endif
}

// Every thread of the block does it; then all have done it.
template <typename Body>
HVD_BOTH void all_threads([[maybe_unused]] unsigned thread, const Body& body) {
#ifdef __CUDA_ARCH__
  body(thread);
  __syncthreads();
#else
  for (unsigned each = 0; each < kThreads; ++each) body(each);
#endif
}
// One thread finds out, all threads know.
template <typename Question>
HVD_BOTH bool all_know([[maybe_unused]] unsigned thread, const Question& question) {
#ifdef __CUDA_ARCH__
  return __syncthreads_and(thread != 0 || question()) != 0;
#else
  return question();
#endif
}

// One lane, or as many as 16 bytes of a tensor hold.
template <unsigned kN>
struct Some {
  static constexpr unsigned kLanes = kN;
  template <typename T>
  static HVD_BOTH void load(T (&lanes)[kN], const T* from) {
    if constexpr (kN == 1) {
      lanes[0] = *from;
    } else {
      T part[Wide<T>::kLanes];
      HVD_UNROLL
      for (unsigned i = 0; i < kN; ++i) {
        if (i % Wide<T>::kLanes == 0) Wide<T>::load(part, from + i);
        lanes[i] = part[i % Wide<T>::kLanes];
      }
    }
  }
  template <typename T>
  static HVD_BOTH void store(T* to, const T (&lanes)[kN]) {
    if constexpr (kN == 1) {
      *to = lanes[0];
    } else {
      T part[Wide<T>::kLanes];
      HVD_UNROLL
      for (unsigned i = 0; i < kN; ++i) {
        part[i % Wide<T>::kLanes] = lanes[i];
        if ((i + 1) % Wide<T>::kLanes == 0) Wide<T>::store(to + i + 1 - Wide<T>::kLanes, part);
      }
    }
  }
};

enum class RingVerb { kSend, kReduceSend, kFinishSend, kCopy };

// What one step does to the lanes of a segment. in and out: where the segment begins in the tensor.
template <typename Format, typename Op>
struct RingStep {
  using Stored = typename Format::Stored;
  using FastPath = typename Format::FastPath;
  const RingCall& call;
  RingVerb verb;
  const Stored* in;
  Stored* out;
  const void* from;  // slots; to is null where nothing is sent
  void* to;

  template <typename Access, unsigned>
  HVD_BOTH void step(std::uint64_t at, std::uint64_t) const {
    Stored result[Access::kLanes];
    if (verb == RingVerb::kCopy) {
      Access::load(result, static_cast<const Stored*>(from) + at);
    } else {
      FastPath value[Access::kLanes];
      reckon<Access>(value, at);
      if (verb != RingVerb::kFinishSend)
        return Access::store(static_cast<FastPath*>(to) + at, value);
      HVD_UNROLL
      for (unsigned i = 0; i < Access::kLanes; ++i)
        result[i] = Format::narrow(scaled(value[i], call.after));
    }
    Access::store(out + at, result);
    if (to != nullptr) Access::store(static_cast<Stored*>(to) + at, result);
  }

 private:
  // This rank's prescaled input, behind the partial sum where there is one.
  template <typename Access>
  HVD_BOTH void reckon(FastPath (&value)[Access::kLanes], std::uint64_t at) const {
    Stored own[Access::kLanes];
    Access::load(own, in + at);
    HVD_UNROLL
    for (unsigned i = 0; i < Access::kLanes; ++i) {
      if (!is_one(call.before)) own[i] = rescaled<Format>(own[i], call.before);
    }
    if (verb == RingVerb::kSend) {
      HVD_UNROLL
      for (unsigned i = 0; i < Access::kLanes; ++i) value[i] = Format::widen(own[i]);
      return;
    }
    Access::load(value, static_cast<const FastPath*>(from) + at);
    HVD_UNROLL
    for (unsigned i = 0; i < Access::kLanes; ++i)
      value[i] = Op::apply(value[i], Format::widen(own[i]));
  }
};

// One block's side of its two links.
struct RingLinks {
  const RingCall& call;
  RingWords& own;   // of this block, here
  RingWords& left;  // and in the neighbours' memory
  RingWords& right;
  std::byte* in_slots;
  std::byte* out_slots;
  unsigned thread;
  std::uint32_t sent, received;

  HVD_BOTH bool can_receive() const {
    return all_know(thread, [&] {
      while (acquired(&own.filled) == received) {
        if (aborted()) return false;
        let_others_run();
      }
      return true;
    });
  }
  HVD_BOTH bool can_send() const {
    return all_know(thread, [&] {
      while (sent - acquired(&own.emptied) >= call.slots) {
        if (aborted()) return false;
        let_others_run();
      }
      return true;
    });
  }
  // Nobody touches this block's memory any more.
  HVD_BOTH bool all_was_read() const {
    return all_know(thread, [&] {
      while (acquired(&own.emptied) != sent) {
        if (aborted()) return false;
        let_others_run();
      }
      return true;
    });
  }
  HVD_BOTH bool aborted() const {
    return acquired(reinterpret_cast<const std::uint32_t*>(call.own)) != 0;
  }
  HVD_BOTH const std::byte* in_slot() const {
    return in_slots + std::size_t{received % call.slots} * call.slot_bytes;
  }
  HVD_BOTH std::byte* out_slot() const {
    return out_slots + std::size_t{sent % call.slots} * call.slot_bytes;
  }
  // Behind a barrier: all threads are through with the slots.
  HVD_BOTH void pass(bool receives, bool sends) {
    received += receives ? 1 : 0;
    sent += sends ? 1 : 0;
    if (thread != 0) return;
    if (sends) release(&right.filled, sent);
    if (receives) release(&left.emptied, received);
  }
};

HVD_BOTH std::uint64_t part_begin(std::uint64_t count, std::uint64_t index, std::uint64_t parts) {
  const std::uint64_t rest = count % parts;  // slice_begin of collective/backend/plan.h
  return count / parts * index + (index < rest ? index : rest);
}

// This block's part of a chunk.
HVD_BOTH Lanes part_of(const RingCall& call, std::uint32_t chunk, const Where& where) {
  const std::uint64_t begin = part_begin(call.count, chunk, call.size);
  const std::uint64_t length = part_begin(call.count, chunk + 1, call.size) - begin;
  return {begin + part_begin(length, where.block, where.blocks),
          begin + part_begin(length, where.block + 1, where.blocks)};
}

template <typename Format, typename Op>
HVD_BOTH void do_step(const RingStep<Format, Op>& step, std::uint64_t lanes, unsigned thread) {
  constexpr unsigned kWide = Wide<typename Format::Stored>::kLanes;
  const bool wide = beyond_boundary(step.in) == 0 && beyond_boundary(step.out) == 0;
  const std::uint64_t even = wide ? lanes / kWide * kWide : 0;
  all_threads(thread, [&](unsigned each) {
    sweep<Some<kWide>, 1>(step, {0, even}, each);
    sweep<Some<1>, 1>(step, {even, lanes}, each);
  });
}

template <typename Format, typename Op>
HVD_BOTH void ring_allreduce(const RingCall& call, const Where& where) {
  using Stored = typename Format::Stored;
  const auto words = [&](std::byte* memory) -> RingWords& {
    return reinterpret_cast<RingWords*>(memory + kRingHead)[where.block];
  };
  const std::size_t slots_at =
      ring_slots_at(where.blocks) + std::size_t{where.block} * call.slots * call.slot_bytes;
  RingLinks links{call,
                  words(call.own),
                  words(call.left),
                  words(call.right),
                  call.own + slots_at,
                  call.right + slots_at,
                  where.thread,
                  0,
                  0};
  links.sent = links.own.sent;
  links.received = links.own.received;
  const std::uint64_t of_slot = call.slot_bytes / sizeof(typename Format::FastPath);
  const Lanes longest = part_of(call, 0, where);
  const std::uint32_t last = 2 * call.size - 2;
  for (std::uint64_t at = 0; at < longest.end - longest.begin; at += of_slot) {
    for (std::uint32_t step = 0; step <= last; ++step) {
      const bool receives = step > 0, sends = step < last;
      if (receives && !links.can_receive()) return;
      if (sends && !links.can_send()) return;
      const Lanes part =
          part_of(call, (call.group_rank + 3 * call.size - 1 - step) % call.size, where);
      const std::uint64_t begin = part.begin + at;
      const std::uint64_t end = part.end < begin + of_slot ? part.end : begin + of_slot;
      const RingVerb verb = step == 0               ? RingVerb::kSend
                            : step < call.size - 1  ? RingVerb::kReduceSend
                            : step == call.size - 1 ? RingVerb::kFinishSend
                                                    : RingVerb::kCopy;
      do_step(RingStep<Format, Op>{call, verb, static_cast<const Stored*>(call.in) + begin,
                                   static_cast<Stored*>(call.out) + begin, links.in_slot(),
                                   sends ? links.out_slot() : nullptr},
              end > begin ? end - begin : 0, where.thread);
      links.pass(receives, sends);
    }
  }
  if (!links.all_was_read() || where.thread != 0) return;
  links.own.sent = links.sent;
  links.own.received = links.received;
}

}  // namespace hvd::cuda
