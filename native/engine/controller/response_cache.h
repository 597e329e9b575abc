// Response cache: what was agreed on before has a number.
//   slot       that number. A rank asks again for what it asked for last time with one bit; a
//   response
//              is the number again
//   version    how many slots had been assigned when this one was. A bit whose sender knew fewer
//              assignments than that means what the slot held before: its sender asks in full
// Rank 0 alone chooses slots; every rank that hears a response (the members of its set and the
// ranks on the way to them) writes down what it says. So a rank's table is the part of rank 0's
// that it can ever use, whatever sets it belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/message/request.h"

namespace hvd {

// The same but for the name.
bool same(const Request& a, const Request& b);

// Would the next response to the same requests be the same? Names that are numbered by the engine
// never come again, so they would only push out what does.
bool cacheable(const Request& request);

// Rank 0's choice of slots: the least recently used one goes first.
class CacheLru {
 public:
  explicit CacheLru(std::size_t capacity);

  std::size_t capacity() const { return capacity_; }
  void touch(int slot);
  // A slot that is free, or that has not been touched since begin_round(); negative: there is none.
  int take();
  bool was_full() const { return full_; }  // take() has given one that had been used
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
