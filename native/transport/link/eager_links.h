// Slots that are sent before anybody has agreed on their operation (engine/eager). They go between
// a link's other slots, in their order, and are dropped when it turns out that something else is
// next: who takes slots from the link never sees one that nobody has accepted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace hvd {

// More ranks than that send so much to each other that agreeing first is as quick.
constexpr int kMostEagerRanks = 8;

// What an eager slot is for.
struct EagerTag {
  std::uint64_t position = 0;  // in the order of operations
  std::uint32_t slot = 0;      // of the response cache
};

struct EagerFound {
  enum class What : std::uint8_t {
    kNothing,
    kEager,
    kOrdinary,  // another slot is next, which belongs to something that was agreed on
    kGone       // and nothing comes any more
  };
  What what = What::kNothing;
  EagerTag tag;
};

// Progress-lock owner only, stir() excepted. None of them waits, wait() excepted.
class EagerLinks {
 public:
  virtual ~EagerLinks() = default;

  virtual std::size_t most_bytes() const = 0;
  // Memory for the next slot to the peer; null: there is no room at present.
  virtual std::byte* acquire(int peer) = 0;
  virtual void publish(int peer, const EagerTag& tag, std::size_t bytes) = 0;
  // What is next from there; eager slots of earlier positions are dropped.
  virtual EagerFound look(int peer, std::uint64_t position) = 0;
  // The slot found belongs to what is carried out next: the link gives it like any other.
  virtual void accept(int peer) = 0;

  // Until something comes from one of them, or stir(), or `longest`; not where news() says so.
  virtual void wait(const std::vector<int>& peers, const std::function<bool()>& news,
                    std::chrono::nanoseconds longest) = 0;
  // The same for who does not wait here: its doorbell is rung, once.
  virtual void watch(const std::vector<int>& peers) = 0;
  // After the doorbell was rung. Any thread.
  virtual void stir() = 0;
};

}  // namespace hvd
