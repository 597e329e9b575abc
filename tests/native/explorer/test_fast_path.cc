// The fast path: every interleaving of ranks that try it, lose patience, or take messages at
// once.
//   the long way   a count of those who ask, for every operation: who asks sleeps until all have
//   owed           asked for by all ranks before, and agreed on: a rank that hears of it carries it
//                  out without waiting for anybody, as the root of a broadcast does
//   data           which operation a rank's half of the memory beside the word is for
// Wrong is: one rank takes an operation as agreed on in short and another asks for it the long way
// (then that one would sleep forever), different things are taken for the same, ranks carry things
// out in different orders, or read the data of another operation.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include "explorer/model.h"
#include "transport/shm/fast_path.h"

using namespace hvd;
using namespace hvd::explorer;

namespace {

constexpr std::size_t kMostRanks = 3;
constexpr std::size_t kMostOperations = 3;

struct Hall {
  ModelWord word;
  std::array<ModelWord, kMostRanks> texts;
  std::array<ModelWord, kMostRanks> impatient;
  std::array<ModelWord, kMostOperations> asked;  // the long way
  ModelWord past;
  std::array<ModelWord, kMostRanks> heard;        // of what is owed
  std::array<ModelWord, kMostOperations> places;  // as 1 above the position, of what goes in short
  std::array<std::array<ModelWord, 2>, kMostRanks> data;
  std::size_t halves = 0;  // of the data; 0: there are none
};

struct ModelFastPathMemory {
  using Value = explorer::Value;
  explicit ModelFastPathMemory(Hall* where) : hall(where) {}
  Hall* hall;

  void prefetch(unsigned) const {}
  Value load() const { return hall->word.load(); }
  bool swap(Value& expected, Value desired) const {
    return hall->word.compare_exchange_strong(expected, desired);
  }
  Value past() const { return hall->past.load(); }
  void set_past(Value value) const { hall->past.store(value); }
  void put(unsigned rank, std::string_view text) const {
    hall->texts[rank].store(static_cast<Value>(text.front()));
  }
  bool has(unsigned rank, std::string_view text) const {
    return hall->texts[rank].load() == static_cast<Value>(text.front());
  }
};

// Takes a word at the next position for a sign that its own was complete.
struct GuessingMemory : ModelFastPathMemory {
  using ModelFastPathMemory::ModelFastPathMemory;
  Value past() const { return FastPathWord<Value>::position(load()); }
};

// What a rank does, a letter for each operation: what it asks for; '-': the long way at once; '*',
// the same for all: one that is owed from here on.
using Plan = std::vector<std::string>;
constexpr char kLong = '-';
constexpr char kOwed = '*';

template <class Memory>
struct Local {
  using FastPath = BasicFastPath<Memory>;
  using Stand = typename FastPath::Stand;

  FastPath fast_path;
  std::size_t operation = 0;
  std::size_t half = 0;
  Value passed = 0;  // operations carried out
  bool owes = false;
  bool entered = false;
  Stand stand = Stand::kElsewhere;
};

void ask_the_long_way(Hall& hall, std::size_t operation, std::size_t ranks) {
  ModelWord& asked = hall.asked[operation];
  if (asked.fetch_add(1) + 1 == ranks) futex_wake_all(asked);
  for (;;) {
    const Value seen = asked.load();
    if (seen == ranks) return;
    futex_wait(asked, seen, std::chrono::seconds(1));
  }
}

bool same_for_all(const Plan& plan, std::size_t operation) {
  for (const std::string& rank : plan) {
    if (rank[operation] != plan.front()[operation] || rank[operation] == kLong) return false;
  }
  return true;
}

void check_place(Hall& hall, std::size_t operation, Value position) {
  Value first = 0;
  if (hall.places[operation].compare_exchange_strong(first, position + 1)) return;
  if (first != position + 1) throw Wrong{"carried out in different orders"};
}

void check_data(Hall& hall, std::size_t operation, std::size_t half, std::size_t ranks) {
  for (std::size_t rank = 0; rank < ranks && hall.halves > 0; ++rank) {
    if (hall.data[rank][half].load() != operation + 1) throw Wrong{"data of another operation"};
  }
}

// One look of a rank that stands in the lane.
template <class Memory, class Leave>
auto next_stand(Hall& hall, Local<Memory>& local, std::size_t rank, const Leave& leave) {
  const bool called = local.owes && hall.heard[rank].load() != 0;
  if (called || hall.impatient[rank].load() != 0) return leave(local.fast_path);
  return local.fast_path.poll();
}

template <class Memory, class Leave>
void rank_body(Hall& hall, const Plan& plan, std::size_t rank, Value first, const Leave& leave) {
  const auto ranks = static_cast<unsigned>(plan.size());
  using Here = Local<Memory>;
  using Stand = typename Here::Stand;
  auto local = resume<Here>([&] {
    return Here{typename Here::FastPath(Memory(&hall), static_cast<unsigned>(rank), ranks)};
  });
  const auto carry_out_what_is_owed = [&] {
    local.passed += local.owes ? 1 : 0;
    local.owes = false;
  };
  while (local.operation < plan[rank].size()) {
    const char what = plan[rank][local.operation];
    if (what == kOwed) {
      local.owes = true;
      ++local.operation;
      continue;
    }
    if (!local.entered) {
      if (local.owes && hall.heard[rank].load() != 0) carry_out_what_is_owed();
      if (what == kLong) {
        local.fast_path.close(first + local.passed);
      } else {
        if (hall.halves > 0)
          hall.data[rank][local.half].store(static_cast<Value>(local.operation + 1));
        local.stand = local.fast_path.enter(first + local.passed, {&what, 1});
      }
      local.entered = true;
      keep(local);
    }
    while (local.stand == Stand::kCounted) {
      local.stand = next_stand(hall, local, rank, leave);
      keep(local);
    }
    if (local.stand == Stand::kComplete) {
      if (!same_for_all(plan, local.operation)) throw Wrong{"different things, taken as one"};
      check_place(hall, local.operation, first + local.passed);
      check_data(hall, local.operation, local.half, plan.size());
      local.half = hall.halves > 0 ? (local.half + 1) % hall.halves : 0;
    } else {
      ask_the_long_way(hall, local.operation, plan.size());
      carry_out_what_is_owed();  // it was asked for before
    }
    local.entered = false;
    local.stand = Stand::kElsewhere;
    ++local.operation;
    ++local.passed;
    keep(local);
  }
}

const auto as_it_is = [](auto& fast_path) { return fast_path.leave(); };

// The first `hasty` ranks may lose patience, at any time.
template <class Memory, class Leave>
Outcome run_hall(const Plan& plan, std::size_t hasty, Value first, const Leave& leave,
                 std::size_t halves = 0) {
  return explore([&] {
    const auto hall = std::make_shared<Hall>();
    hall->halves = halves;
    Scenario scenario;
    for (std::size_t rank = 0; rank < plan.size(); ++rank) {
      scenario.actors.push_back({[hall, &plan, &leave, rank, first] {
                                   rank_body<Memory>(*hall, plan, rank, first, leave);
                                 },
                                 false, false});
      if (plan[rank].find(kOwed) != std::string::npos) {
        scenario.actors.push_back({[hall, rank] { hall->heard[rank].store(1); }, false, false});
      }
      if (rank >= hasty) continue;
      scenario.actors.push_back({[hall, rank] { hall->impatient[rank].store(1); }, false, false});
    }
    return scenario;
  });
}

}  // namespace

TEST_CASE("explorer: ranks agree on the fast path, or all use the slow one") {
  struct Row {
    Plan plan;
    std::size_t hasty;
    Value first;  // near 65536: over the end of the numbers
  };
  for (const Row& row :
       {Row{{"ab", "ab"}, 2, 65534}, Row{{"a-", "-b"}, 1, 65535}, Row{{"xb", "ab"}, 1, 1},
        Row{{"a", "a", "a"}, 1, 65535}, Row{{"a", "-", "a"}, 1, 1}, Row{{"*a", "*a"}, 1, 1},
        Row{{"a*b", "a*b"}, 0, 65534}, Row{{"*ab", "*ab"}, 0, 1}}) {
    const Outcome outcome = run_hall<ModelFastPathMemory>(row.plan, row.hasty, row.first, as_it_is);
    CAPTURE(row.plan.front());
    CHECK(outcome.wrong == "");
    CHECK(outcome.ends > 0);
    MESSAGE(row.plan.size() << " ranks, " << row.plan.front() << ": " << outcome.states
                            << " states");
  }
}

TEST_CASE(
    "explorer: data beside the word are those of the operation, in two halves and not in one") {
  const auto run = [](const Plan& plan, std::size_t hasty, std::size_t halves) {
    return run_hall<ModelFastPathMemory>(plan, hasty, 1, as_it_is, halves);
  };
  for (const Plan& plan : {Plan{"abc", "abc"}, Plan{"aa", "aa", "aa"}, Plan{"*ab", "*ab"}}) {
    const Outcome outcome = run(plan, plan.size() == 2 ? 1 : 0, 2);
    CAPTURE(plan.front());
    CHECK(outcome.wrong == "");
    MESSAGE(plan.size() << " ranks, " << plan.front() << ": " << outcome.states << " states");
  }
  CHECK(run({"ab", "ab"}, 0, 1).wrong.find("data of another operation") != std::string::npos);
}

TEST_CASE("explorer: finds the rank that leaves though all were counted") {
  const auto careless = [](auto& fast_path) {
    return std::decay_t<decltype(fast_path)>::Stand::kElsewhere;
  };
  CHECK(run_hall<ModelFastPathMemory>({"ab", "ab"}, 2, 1, careless).wrong.find("sleeps forever") !=
        std::string::npos);
}

TEST_CASE("explorer: finds the rank that mistakes the progress of others for its agreement") {
  CHECK(run_hall<GuessingMemory>({"*a", "*a"}, 1, 1, as_it_is).wrong != "");
  CHECK(run_hall<GuessingMemory>({"ab", "ab"}, 2, 1, as_it_is).wrong == "");
}
