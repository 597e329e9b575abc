// The ring's signals in every order in which streams may get on: what the production code gives to
// the streams of all ranks is written down, and then done step by step in all interleavings.
//   step       one wait, one write of a word, or one kernel
//   event       what a piece of memory holds: the kernel that wrote it
//   state      words, events, and of every rank a number that stands for all that it has read
// Where steps are kept in order by signals, the state depends only on how far each rank is. A state
// that depends on the way there is a race; a state from which nobody gets on is a deadlock.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "cuda/ring/recorder.h"
#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15U + b + 0x7f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  return x ^ (x >> 27U);
}

// Steps with numbers of words and pieces of memory in place of addresses.
struct Move {
  Step::Kind kind = Step::kKernel;
  std::size_t word = 0;
  std::uint32_t value = 0;
  std::vector<std::size_t> reads, writes;
};

struct State {
  std::vector<std::size_t> at;  // by rank: steps done
  std::vector<std::uint32_t> words;
  std::vector<std::uint64_t> marks, read;

  std::uint64_t number() const {
    std::uint64_t all = 0;
    for (const std::uint32_t word : words) all = mixed(all, word);
    for (const std::uint64_t mark : marks) all = mixed(all, mark);
    for (const std::uint64_t seen : read) all = mixed(all, seen);
    return all;
  }
  std::uint64_t group_rank() const {
    std::uint64_t all = 0;
    for (const std::size_t steps : at) all = all * 100003 + steps;
    return all;
  }
};

class Orders {
 public:
  explicit Orders(const std::vector<Steps>& ranks) {
    cut_memory(ranks);
    for (const Steps& steps : ranks) {
      moves_.emplace_back();
      for (const Step& step : steps) moves_.back().push_back(move_of(step));
    }
    state_.at.resize(ranks.size());
    state_.read.resize(ranks.size());
    state_.marks.resize(borders_.size());
  }

  // "" or what is wrong.
  std::string go_all_ways() {
    std::vector<State> ahead{state_};
    while (!ahead.empty() && wrong_.empty()) {
      const State state = std::move(ahead.back());
      ahead.pop_back();
      const auto [known, is_new] = seen_.emplace(state.group_rank(), state.number());
      if (!is_new) {
        if (known->second != state.number()) wrong_ = "a race" + where(state);
        continue;
      }
      bool ended = true, stuck = true;
      for (std::size_t rank = 0; rank < moves_.size(); ++rank) {
        if (state.at[rank] == moves_[rank].size()) continue;
        ended = false;
        State next = state;
        if (!step(next, rank)) continue;
        stuck = false;
        ahead.push_back(std::move(next));
      }
      if (stuck && !ended) wrong_ = "a deadlock" + where(state);
    }
    return wrong_;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  void cut_memory(const std::vector<Steps>& ranks) {
    std::set<std::uintptr_t> borders;
    for (const Steps& steps : ranks) {
      for (const Step& step : steps) {
        for (const auto* extents : {&step.reads, &step.writes}) {
          for (const Extent& one : *extents) borders.insert({one.begin, one.end});
        }
      }
    }
    borders_.assign(borders.begin(), borders.end());
  }

  void add_pieces(std::vector<std::size_t>& to, const std::vector<Extent>& extents) const {
    for (const Extent& one : extents) {
      auto piece = std::lower_bound(borders_.begin(), borders_.end(), one.begin);
      for (; piece != borders_.end() && *piece < one.end; ++piece)
        to.push_back(static_cast<std::size_t>(piece - borders_.begin()));
    }
  }

  Move move_of(const Step& step) {
    Move move{step.kind, 0, step.value, {}, {}};
    add_pieces(move.reads, step.reads);
    add_pieces(move.writes, step.writes);
    if (step.kind == Step::kKernel) return move;
    const auto [known, is_new] = words_.emplace(step.word, words_.size());
    // As the arena has it before anything is done.
    if (is_new) state_.words.push_back(*reinterpret_cast<const std::uint32_t*>(step.word));
    move.word = known->second;
    return move;
  }

  // False: it has to wait.
  bool step(State& state, std::size_t rank) const {
    const Move& move = moves_[rank][state.at[rank]];
    if (move.kind == Step::kWait && state.words[move.word] != move.value) return false;
    if (move.kind == Step::kWrite) state.words[move.word] = move.value;
    for (const std::size_t piece : move.reads)
      state.read[rank] = mixed(state.read[rank], state.marks[piece]);
    for (const std::size_t piece : move.writes)
      state.marks[piece] = mixed(rank + 1, state.at[rank]);
    ++state.at[rank];
    return true;
  }

  static std::string where(const State& state) {
    std::string text = " after steps";
    for (const std::size_t steps : state.at) text += " " + std::to_string(steps);
    return text;
  }

  std::vector<std::uintptr_t> borders_;  // of pieces of memory that are read or written as a whole
  std::map<std::uintptr_t, std::size_t> words_;
  std::vector<std::vector<Move>> moves_;
  State state_;
  std::unordered_map<std::uint64_t, std::uint64_t> seen_;
  std::string wrong_;
};

using Body =
    std::function<void(DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y)>;

// What all ranks' streams are given by body, in all orders.
void check(int size, const Body& body) {
  const Driver driver = recording_driver();
  std::vector<Steps> all(static_cast<std::size_t>(size));
  on_rings({size, 1, 1024, false, &driver}, [&](Rank& rank) {
    const Group group = everybody(size, rank.number());
    const auto ring = rank.ring(group);
    const OnDevice x(rank, Bytes(4096)), y(rank, Bytes(4096));
    recording = &all[static_cast<std::size_t>(rank.number())];
    body(*ring, group, x.data(), y.data());
    recording = nullptr;
    char word = 0;
    for (int root = 0; root < size; ++root)  // everybody has come here
      REQUIRE(rank.cpu().broadcast(group, {{&word, &word, 1}}, root).is_ok());
    if (rank.number() == 0) {
      Orders orders(all);
      CHECK(orders.go_all_ways() == "");
      CHECK(orders.states() > 100);
    }
    REQUIRE(rank.cpu().broadcast(group, {{&word, &word, 1}}, 0).is_ok());
  });
}

const Reduction kSum{Dtype::kFloat32, ReduceOp::kSum, {}};

void sum(DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y, std::size_t count) {
  REQUIRE(ring.allreduce(group, {{x, y, count}}, kSum).message == "");
}

void turn(DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y,
          const std::function<std::size_t(int from, int to)>& bytes) {
  Exchange exchange;
  const auto n = static_cast<std::size_t>(group.size());
  for (std::size_t group_rank = 0; group_rank < n; ++group_rank) {
    exchange.in.push_back(x + group_rank * 1024);
    exchange.out.push_back(y + group_rank * 1024);
    exchange.in_bytes.push_back(bytes(group.group_rank, static_cast<int>(group_rank)));
    exchange.out_bytes.push_back(bytes(static_cast<int>(group_rank), group.group_rank));
  }
  REQUIRE(ring.alltoall(group, exchange).message == "");
}

void gather(DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y) {
  Gather all;
  all.in = x;
  for (int group_rank = 0; group_rank < group.size(); ++group_rank) {
    all.out.push_back(y + static_cast<std::size_t>(group_rank) * 1024);
    all.bytes.push_back(static_cast<std::size_t>(group_rank) * 400);
  }
  REQUIRE(ring.allgather(group, {all}).message == "");
}

void scatter(DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y) {
  std::vector<std::size_t> begins{0};
  for (int group_rank = 0; group_rank < group.size(); ++group_rank)
    begins.push_back(begins.back() + static_cast<std::size_t>(group_rank) * 50);
  REQUIRE(ring.reducescatter(group, {{x, y, begins}}, kSum).message == "");
}

void spread(DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y, int root) {
  REQUIRE(ring.broadcast(group, {{x, y, 700}}, root).message == "");
}

}  // namespace

TEST_CASE("ring orders: two ranks, all kinds of operations, several rounds") {
  check(2, [](DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y) {
    sum(ring, group, x, y, 300);
    turn(ring, group, y, x, [](int from, int to) { return from < to ? 700U : 100U; });
    gather(ring, group, x, y);
    scatter(ring, group, y, x);
    spread(ring, group, x, y, 0);
    spread(ring, group, x, y, 1);
    turn(ring, group, y, x, [](int from, int to) { return from < to ? 0U : 500U; });
    sum(ring, group, y, y, 20);
    sum(ring, group, y, x, 20);
    gather(ring, group, y, x);
  });
}

TEST_CASE("ring orders: three ranks") {
  SUBCASE("reductions") {
    check(3, [](DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y) {
      sum(ring, group, x, y, 200);
      scatter(ring, group, y, x);
      sum(ring, group, x, y, 10);
    });
  }
  // What one reads of a half another need not read, and the next time the other way round.
  SUBCASE("moving, between different pairs") {
    check(3, [](DeviceBackend& ring, const Group& group, std::byte* x, std::byte* y) {
      gather(ring, group, x, y);
      turn(ring, group, y, x, [](int from, int to) { return from == 2 && to == 0 ? 300U : 0U; });
      turn(ring, group, y, x, [](int from, int to) { return from == 2 && to == 1 ? 300U : 0U; });
      spread(ring, group, x, y, 2);
      gather(ring, group, y, x);
    });
  }
}

// The check itself.
TEST_CASE("ring orders: a wait that is left out is a race, a signal that is left out a deadlock") {
  const std::uint32_t zero = 0;
  const auto word = reinterpret_cast<std::uintptr_t>(&zero);
  const Extent memory{1000, 1100}, own{2000, 2100};
  const Step pack{Step::kKernel, 0, 0, {}, {memory}}, read{Step::kKernel, 0, 0, {memory}, {own}};
  const Step signal{Step::kWrite, word, 1, {}, {}}, wait{Step::kWait, word, 1, {}, {}};
  CHECK(Orders({{pack, signal}, {wait, read}}).go_all_ways() == "");
  CHECK(Orders({{pack, signal}, {read}}).go_all_ways().find("a race") == 0);
  CHECK(Orders({{signal, pack}, {wait, read}}).go_all_ways().find("a race") == 0);
  CHECK(Orders({{pack}, {wait, read}}).go_all_ways().find("a deadlock") == 0);
}

}  // namespace hvd::cuda::test
