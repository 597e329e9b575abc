// The lane: every interleaving of ranks that try it, lose patience, or go the long way at once.
//   the long way   a count of those who ask, for every operation: who asks sleeps until all have
// Wrong is: one rank takes an operation as agreed on in short and another asks for it the long way
// (then that one would sleep for ever), or different things are taken for the same.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include "explorer/model.h"
#include "transport/lane.h"

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
};

struct ModelLaneMemory {
  using Value = explorer::Value;
  Hall* hall = nullptr;

  void prefetch(unsigned) const {}
  Value load() const { return hall->word.load(); }
  bool swap(Value& expected, Value desired) const {
    return hall->word.compare_exchange_strong(expected, desired);
  }
  void put(unsigned rank, std::string_view text) const {
    hall->texts[rank].store(static_cast<Value>(text.front()));
  }
  bool has(unsigned rank, std::string_view text) const {
    return hall->texts[rank].load() == static_cast<Value>(text.front());
  }
};

using ModelLane = BasicLane<ModelLaneMemory>;
using Stand = ModelLane::Stand;

// What a rank does, a letter for each operation: what it asks for; '-': the long way at once.
using Plan = std::vector<std::string>;
constexpr char kLong = '-';

struct Local {
  ModelLane lane;
  std::size_t operation = 0;
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

template <class Leave>
void rank_body(Hall& hall, const Plan& plan, std::size_t rank, Value first, const Leave& leave) {
  const auto ranks = static_cast<unsigned>(plan.size());
  auto local = resume<Local>(
      [&] { return Local{ModelLane(ModelLaneMemory{&hall}, static_cast<unsigned>(rank), ranks)}; });
  while (local.operation < plan[rank].size()) {
    const char what = plan[rank][local.operation];
    const Value position = first + static_cast<Value>(local.operation);
    if (!local.entered) {
      if (what == kLong) {
        local.lane.close(position);
      } else {
        local.stand = local.lane.enter(position, {&what, 1});
      }
      local.entered = true;
      keep(local);
    }
    while (local.stand == Stand::kCounted) {
      local.stand = hall.impatient[rank].load() == 0 ? local.lane.look() : leave(local.lane);
      keep(local);
    }
    if (local.stand == Stand::kComplete) {
      if (!same_for_all(plan, local.operation)) throw Wrong{"different things, taken as one"};
    } else {
      ask_the_long_way(hall, local.operation, plan.size());
    }
    local = {local.lane, local.operation + 1};
    keep(local);
  }
}

const auto as_it_is = [](ModelLane& lane) { return lane.leave(); };

// The first `hasty` ranks may lose patience, at any time.
template <class Leave>
Outcome run_hall(const Plan& plan, std::size_t hasty, Value first, const Leave& leave) {
  return explore([&] {
    const auto hall = std::make_shared<Hall>();
    Scenario scenario;
    for (std::size_t rank = 0; rank < plan.size(); ++rank) {
      scenario.actors.push_back(
          {[hall, &plan, &leave, rank, first] { rank_body(*hall, plan, rank, first, leave); },
           false, false});
      if (rank >= hasty) continue;
      scenario.actors.push_back({[hall, rank] { hall->impatient[rank].store(1); }, false, false});
    }
    return scenario;
  });
}

}  // namespace

TEST_CASE("explorer: ranks agree in short, or all go the long way") {
  struct Row {
    Plan plan;
    std::size_t hasty;
    Value first;  // near 65536: over the end of the numbers
  };
  for (const Row& row :
       {Row{{"ab", "ab"}, 2, 65534}, Row{{"a-", "-b"}, 1, 65535}, Row{{"xb", "ab"}, 1, 1},
        Row{{"a", "a", "a"}, 1, 65535}, Row{{"a", "-", "a"}, 1, 1}}) {
    const Outcome outcome = run_hall(row.plan, row.hasty, row.first, as_it_is);
    CAPTURE(row.plan.front());
    CHECK(outcome.wrong == "");
    CHECK(outcome.ends > 0);
    MESSAGE(row.plan.size() << " ranks, " << row.plan.front() << ": " << outcome.states
                            << " states");
  }
}

TEST_CASE("explorer: finds the rank that leaves though all were counted") {
  const auto careless = [](ModelLane&) { return Stand::kElsewhere; };
  CHECK(run_hall({"ab", "ab"}, 2, 1, careless).wrong.find("sleeps for ever") != std::string::npos);
}
