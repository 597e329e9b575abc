// Response cache: earlier agreements have a number.
//   slot       that number. A rank repeats its last request with one bit, and the response is the
//              number, too
//   version    number of slot assignments when this one was made. A bit whose sender knew fewer
//              assignments means what the slot held before: the sender must request in full
// Only rank 0 chooses slots. Every rank that receives a response (the members of its set and the
// ranks on the path to them) records its slots, so a rank's table is the part of rank 0's table
// that it can ever use, whatever sets it belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/message/request.h"

namespace hvd {

// Equal in everything but the name.
bool same(const Request& a, const Request& b);

// True if the next response to the same requests is the same. Names that the engine numbers never
// repeat, so they would only evict names that do.
bool cacheable(const Request& request);

// Rank 0's choice of slots: evicts the least recently used one.
class CacheLru {
 public:
  explicit CacheLru(std::size_t capacity);

  std::size_t capacity() const { return capacity_; }
  void touch(int slot);
  // A slot that is free, or that has not been touched since begin_round(); negative: none.
  int allocate();
  bool was_full() const { return full_; }  // allocate() has evicted a slot
  void free(int slot);
  void begin_round() { ++round_; }

 private:
  struct Place {
    int before = -1, after = -1;  // in the order of use
    std::uint64_t round = 0;
    bool used = false;
  };

  void unlink(int slot);
  void append(int slot);
  Place& at(int slot) { return places_[static_cast<std::size_t>(slot)]; }

  std::size_t capacity_;
  std::vector<Place> places_;
  std::vector<int> free_;
  int oldest_ = -1, newest_ = -1;
  std::uint64_t round_ = 1;
  bool full_ = false;
};

}  // namespace hvd
