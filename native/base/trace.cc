#include "base/trace.h"

#include <cstring>

namespace hvd {
namespace {

std::size_t power_of_two(std::size_t at_least) {
  std::size_t size = 2;
  while (size < at_least) size *= 2;
  return size;
}

// The longest prefix of at most `longest` bytes that does not cut a UTF-8 character.
std::string_view prefix(std::string_view text, std::size_t longest) {
  if (text.size() <= longest) return text;
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

template <std::size_t kWords>
using Words = std::array<std::atomic<std::uint64_t>, kWords>;

// Release on every field: a reader that sees one of them also sees the odd stamp.
template <std::size_t kWords>
void store(Words<kWords>& words, std::string_view text) {
  std::array<char, kWords * 8> bytes{};
  const std::string_view kept = prefix(text, bytes.size() - 1);
  std::copy(kept.begin(), kept.end(), bytes.begin());  // also if it is empty
  for (std::size_t i = 0; i < kWords; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    words[i].store(word, std::memory_order_release);
  }
}

template <std::size_t kWords>
std::string load(const Words<kWords>& words) {
  std::array<char, kWords * 8> bytes{};
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint64_t word = words[i].load(std::memory_order_acquire);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  return {bytes.data(), ::strnlen(bytes.data(), bytes.size())};
}

}  // namespace

void TraceCourse::step(const char* phase, std::int64_t end_ns) {
  if (end_ns < end_ns_ || count_ == kMostSteps) return;
  steps_[count_++] = {phase, end_ns_, end_ns};
  end_ns_ = end_ns;
}

Trace::Trace(std::size_t capacity)
    : mask_(power_of_two(capacity) - 1), entries_(std::make_unique<Entry[]>(mask_ + 1)) {}

void Trace::add(std::int64_t start_ns, std::int64_t duration_ns, const char* phase,
                std::string_view name, std::int64_t bytes, std::int64_t detail, const char* dtype,
                std::string_view shape) {
  const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  Entry& entry = entries_[number & mask_];
  std::uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  // Odd: a writer of the last round is still writing; newer: a writer of the next round was faster.
  if (stamp % 2 == 1 || stamp > 2 * number) return;
  if (!entry.stamp.compare_exchange_strong(stamp, 2 * number + 1, std::memory_order_acq_rel))
    return;
  entry.start.store(start_ns, std::memory_order_release);
  entry.duration.store(duration_ns, std::memory_order_release);
  entry.bytes.store(bytes, std::memory_order_release);
  entry.detail.store(detail, std::memory_order_release);
  entry.phase.store(phase, std::memory_order_release);
  entry.dtype.store(dtype, std::memory_order_release);
  store(entry.name, name);
  store(entry.shape, shape);
  entry.stamp.store(2 * number + 2, std::memory_order_release);
}

void Trace::add(const TraceCourse& course, const TraceTensor& tensor) {
  const std::int64_t agreed = course.agreed_ns_;
  add(tensor.since_ns, agreed - tensor.since_ns, course.negotiate_, tensor.name, tensor.bytes);
  add(agreed, course.end_ns_ - agreed, course.phase_, tensor.name, tensor.bytes, tensor.together,
      tensor.dtype, tensor.shape);
  for (std::size_t i = 0; i < course.count_; ++i) {
    const TraceCourse::Step& step = course.steps_[i];
    add(step.begin_ns, step.end_ns - step.begin_ns, step.phase, tensor.name, tensor.bytes);
  }
}

TraceRecord Trace::copy(const Entry& entry) {
  TraceRecord record;
  record.start_ns = entry.start.load(std::memory_order_acquire);
  record.duration_ns = entry.duration.load(std::memory_order_acquire);
  record.bytes = entry.bytes.load(std::memory_order_acquire);
  record.detail = entry.detail.load(std::memory_order_acquire);
  record.phase = entry.phase.load(std::memory_order_acquire);
  record.dtype = entry.dtype.load(std::memory_order_acquire);
  record.name = load(entry.name);
  record.shape = load(entry.shape);
  return record;
}

std::vector<TraceRecord> Trace::read(std::uint64_t& cursor) const {
  std::vector<TraceRecord> records;
  const std::uint64_t end = next_.load(std::memory_order_acquire);
  if (end > mask_ + 1 && cursor < end - mask_ - 1) cursor = end - mask_ - 1;
  for (; cursor < end; ++cursor) {
    const Entry& entry = entries_[cursor & mask_];
    const std::uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
    if (stamp > 2 * cursor + 2) continue;  // overwritten by the next round
    if (stamp < 2 * cursor + 2) {
      // Not complete yet: the next call continues here, unless the writer was lost long ago.
      if (end - cursor <= (mask_ + 1) / 2) break;
      continue;
    }
    TraceRecord record = copy(entry);
    if (entry.stamp.load(std::memory_order_relaxed) == stamp) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace hvd
