// A ring of bytes for control messages from one rank to another of the same host, in shared memory.
// One side writes, one reads; both are nonblocking.
//   written   number of bytes written since the start; only the writer writes it
//   read      number of bytes read; only the reader writes it
//   wants     set by a writer that has kept data: the reader notifies it of room
// Counters wrap around at 2^32, a multiple of the capacity. Values of the other side are read once
// and checked, never trusted. Templates over the memory, so that the interleaving explorer
// (tests/native/explorer) runs this code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/futex.h"

namespace hvd {

constexpr std::uint32_t kControlRingBytes = 65536;

struct ControlHeader {
  alignas(64) Word written{0};
  Word wants{0};
  alignas(64) Word read{0};
};

inline void start_counters(ControlHeader& header, std::uint32_t first) {
  header.written.store(first, std::memory_order_relaxed);
  header.read.store(first, std::memory_order_relaxed);
}

struct ControlMemory {
  ControlHeader* header = nullptr;
  std::byte* bytes = nullptr;
  std::uint32_t capacity = kControlRingBytes;  // a power of two

  void put(std::uint32_t at, const char* from, std::size_t n) const {
    std::memcpy(bytes + at, from, n);
  }
  void get(std::uint32_t at, char* to, std::size_t n) const { std::memcpy(to, bytes + at, n); }
};

template <class Memory>
class BasicControlWriter {
 public:
  explicit BasicControlWriter(const Memory& memory)
      : memory_(memory), written_(memory.header->written.load(std::memory_order_acquire)) {
    read_ = written_;
  }

  // Room for at least `wanted` bytes, or the available room.
  std::size_t room(std::size_t wanted) {
    if (free_bytes() < wanted) read_ = memory_.header->read.load(std::memory_order_seq_cst);
    return free_bytes();
  }
  // Write at most room() bytes; visible to the reader after show().
  void write(std::string_view bytes) {
    const std::uint32_t at = written_ & (memory_.capacity - 1);
    const std::size_t first = std::min<std::size_t>(bytes.size(), memory_.capacity - at);
    memory_.put(at, bytes.data(), first);  // NOLINT(bugprone-suspicious-stringview-data-usage)
    if (first < bytes.size()) memory_.put(0, bytes.data() + first, bytes.size() - first);
    written_ += static_cast<std::uint32_t>(bytes.size());
  }
  void show() { memory_.header->written.store(written_, std::memory_order_seq_cst); }
  // Set before the last check for room: either the reader sees the request, or the check finds
  // room.
  void want(bool room) { memory_.header->wants.store(room ? 1 : 0, std::memory_order_seq_cst); }

 private:
  std::size_t free_bytes() const {
    const std::uint32_t used = written_ - read_;
    return used > memory_.capacity ? 0 : memory_.capacity - used;
  }

  Memory memory_;
  std::uint32_t written_;
  std::uint32_t read_ = 0;  // cached
};

// Write as much of `rest` as fits. If data remain, the request for room was announced before the
// last check for room failed.
template <class Memory>
std::size_t write_what_fits(BasicControlWriter<Memory>& writer, std::string_view rest) {
  std::size_t done = 0;
  for (bool announced = false;;) {
    const std::string_view part = rest.substr(0, writer.room(rest.size()));
    if (!part.empty()) {
      writer.write(part);
      writer.show();
      done += part.size();
      rest.remove_prefix(part.size());
    }
    if (rest.empty() || (part.empty() && announced)) return done;
    writer.want(true);
    announced = true;
  }
}

template <class Memory>
class BasicControlReader {
 public:
  explicit BasicControlReader(const Memory& memory)
      : memory_(memory), read_(memory.header->read.load(std::memory_order_acquire)) {}

  enum class Found { kNothing, kBytes, kRubbish };
  // Append the available bytes.
  Found take(std::string& into) {
    const std::uint32_t there = memory_.header->written.load(std::memory_order_acquire) - read_;
    if (there == 0) return Found::kNothing;
    if (there > memory_.capacity) return Found::kRubbish;
    const std::uint32_t at = read_ & (memory_.capacity - 1);
    const std::size_t first = std::min(there, memory_.capacity - at);
    const std::size_t before = into.size();
    into.resize(before + there);
    memory_.get(at, into.data() + before, first);
    if (first < there) memory_.get(0, into.data() + before + first, there - first);
    read_ += there;
    memory_.header->read.store(read_, std::memory_order_seq_cst);
    return Found::kBytes;
  }
  // True if the writer waits for the room that take() has made.
  bool wanted() const { return memory_.header->wants.load(std::memory_order_seq_cst) != 0; }

 private:
  Memory memory_;
  std::uint32_t read_;
};

using ControlWriter = BasicControlWriter<ControlMemory>;
using ControlReader = BasicControlReader<ControlMemory>;

}  // namespace hvd
