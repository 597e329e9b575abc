// Rank 0's side of the agreement, as a pure state machine: requests, departures and the time go in,
// agreed operations come out. A name is agreed on when every rank has asked for it; ranks may ask
// in any order. It never waits and knows no thread, no channel and no tensor, so it runs as it is
// in tests and simulations.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace hvd {

// What all ranks agree on (or are told to fail), before fusion.
struct Agreed {
  Request request;  // rank 0's
  Status status;
  std::vector<std::int64_t> rows;  // allgather: dimension 0 of every rank
};

struct Waiting {
  std::string name;
  Kind kind;
  std::int64_t since_ns;
  std::vector<int> missing;
};

class Negotiator {
 public:
  explicit Negotiator(int size) : size_(size), left_(static_cast<std::size_t>(size), false) {}

  void add(int rank, Request request, std::int64_t now_ns);
  // After it, nothing that this rank has not asked for can complete: those names fail, now and
  // later.
  void leave(int rank);

  std::vector<Agreed> take();                   // in the order of agreement
  bool idle() const { return table_.empty(); }  // nobody waits for anybody
  std::vector<Waiting> waiting() const;

 private:
  struct Entry {
    std::vector<Request> by_rank;  // name empty: not yet asked
    int count = 0;
    std::int64_t since_ns = 0;
  };

  void agree(Entry entry);
  void fail(const Entry& entry, int because_of);

  int size_;
  int first_left_ = -1;  // the others may have left because of it
  std::vector<bool> left_;
  std::unordered_map<std::string, Entry> table_;
  std::vector<Agreed> agreed_;
};

}  // namespace hvd
