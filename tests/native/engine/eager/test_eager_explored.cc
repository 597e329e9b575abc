// Eager rounds in every order in which calls are made, and messages and data come: a rank never
// completes in a round what another gets in another way, takes no data of another call, and
// everybody comes to the end.
#include <doctest/doctest.h>

#include <random>
#include <unordered_set>

#include "engine/eager/eager_world.h"

namespace hvd::test {
namespace {

using Event = EagerWorld::Event;

class Exploration {
 public:
  explicit Exploration(std::vector<Script> scripts) : scripts_(std::move(scripts)) {}

  void everything() { follow({}); }
  // So many of the orders, drawn.
  void some(unsigned orders) {
    for (unsigned seed = 0; seed < orders && wrong.empty(); ++seed) {
      std::mt19937 random(seed);
      EagerWorld world(scripts_);
      std::vector<Event> path;
      for (std::vector<Event> next = world.events(); !next.empty(); next = world.events()) {
        path.push_back(next[random() % next.size()]);
        world.happen(path.back());
        check_order(world, path);
      }
      end(world, path);
    }
  }

  std::size_t states() const { return met_.size(); }
  std::size_t rounds = 0;  // ends with something completed eagerly
  std::size_t ends = 0;
  std::string wrong;

 private:
  void follow(std::vector<Event> path) {
    if (!wrong.empty() || !met_.insert(state_after(path)).second) return;
    EagerWorld world(scripts_);
    for (const Event& event : path) world.happen(event);
    check_order(world, path);
    const std::vector<Event> next = world.events();
    if (next.empty()) return end(world, path);
    for (const Event& event : next) {
      path.push_back(event);
      follow(path);
      path.pop_back();
    }
  }

  // What each rank has met, in its order: everything else is a function of that.
  std::string state_after(const std::vector<Event>& path) const {
    std::vector<std::string> met(scripts_.size());
    for (const Event& event : path) met[static_cast<std::size_t>(event.to)] += event.text();
    std::string all;
    for (const std::string& one : met) all += one + "|";
    return all;
  }

  void end(EagerWorld& world, const std::vector<Event>& path) {
    ++ends;
    for (int patience = 0; patience < 3 && !world.over(); ++patience) {
      world.pass(200'000'000);
      world.settle();
    }
    check_order(world, path);
    if (!world.over()) say("somebody waits for ever", path);
    const auto& done = world.done(0);
    rounds += static_cast<std::size_t>(std::any_of(
        done.begin(), done.end(), [](const std::string& one) { return one.size() == 1; }));
  }

  // What a rank has carried out together with another one: messages have both ranks in their names.
  static std::vector<std::string> common(const EagerWorld& world, int rank, int other) {
    std::vector<std::string> some;
    for (const std::string& name : world.done(rank)) {
      const bool of_all = name.find('-') == std::string::npos;
      if (of_all || name.find(std::to_string(other)) != std::string::npos) some.push_back(name);
    }
    return some;
  }

  // One is ahead of the other, or they have done the same.
  void check_order(const EagerWorld& world, const std::vector<Event>& path) {
    if (!world.wrong.empty()) say(world.wrong, path);
    for (int rank = 1; rank < world.size(); ++rank) {
      for (int other = 0; other < rank; ++other) check_order(world, other, rank, path);
    }
  }

  void check_order(const EagerWorld& world, int other, int rank, const std::vector<Event>& path) {
    const auto a = common(world, other, rank);
    const auto b = common(world, rank, other);
    const auto length = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
    if (!std::equal(a.begin(), a.begin() + length, b.begin())) {
      say("ranks carried out other things", path);
    }
  }

  void say(const std::string& what, const std::vector<Event>& path) {
    if (!wrong.empty()) return;
    wrong = what + ":";
    for (const Event& event : path) wrong += " " + event.text() + ">" + std::to_string(event.to);
  }

  std::vector<Script> scripts_;
  std::unordered_set<std::string> met_;
};

void check(const std::vector<Script>& scripts, bool rounds = true, unsigned orders = 0) {
  Exploration all(scripts);
  if (orders == 0) {
    all.everything();
  } else {
    all.some(orders);
  }
  CHECK(all.wrong == "");
  CHECK(all.ends > 0);
  if (rounds) CHECK(all.rounds > 0);
}

constexpr unsigned kOrders = 300;
// A call that waits is followed by others: what a round leaves behind would be found by them.
const Script kTwo{waits("x"), waits("x")};
const Script kWaits{waits("x"), waits("x"), waits("x")};

}  // namespace

TEST_CASE("explored: two ranks in calls for the same sums") {
  check({kTwo, kTwo});
  check({{waits("x"), waits("y")}, {waits("x"), waits("y")}});
  check({kWaits, kWaits}, true, kOrders);
}

TEST_CASE("explored: two ranks, one of which continues with the same sum") {
  const Script first{goes_on("x"), waits("x")}, last{waits("x"), goes_on("x")};
  for (const auto& [other, rounds] : {std::pair(first, false), std::pair(last, true)}) {
    check({kTwo, other}, rounds);
    check({other, kTwo}, rounds);
  }
}

TEST_CASE("explored: two ranks that request two sums in another order") {
  const Script one{waits("x"), waits("y")}, other{goes_on("y"), waits("x")};
  check({one, other}, false);
  check({other, one}, false);
  check({{waits("x"), goes_on("y"), waits("x")}, {waits("x"), waits("x"), goes_on("y")}}, true,
        kOrders);
}

TEST_CASE("explored: two ranks that also send each other messages") {
  const Script one{message_with(1, "0-1"), waits("x"), waits("x")};
  const Script other{waits("x"), message_with(0, "0-1"), waits("x")};
  check({one, {message_with(0, "0-1"), waits("x"), waits("x")}}, false, kOrders);
  check({{waits("x"), message_with(1, "0-1"), waits("x"), waits("x")},
         {waits("x"), message_with(0, "0-1", Call::How::kWaits), waits("x"), waits("x")}},
        true, kOrders);
  check({one, other}, false, kOrders);
}

TEST_CASE("explored: three ranks, two of which send each other messages") {
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
    const std::string name = std::to_string(a) + "-" + std::to_string(b);
    for (const bool late : {false, true}) {
      std::vector<Script> scripts(3, kWaits);
      scripts[static_cast<std::size_t>(a)].insert(
          scripts[static_cast<std::size_t>(a)].begin() + (late ? 1 : 0), message_with(b, name));
      scripts[static_cast<std::size_t>(b)].insert(
          scripts[static_cast<std::size_t>(b)].begin() + 1,
          message_with(a, name, late ? Call::How::kWaits : Call::How::kGoesOn));
      check(scripts, true, kOrders);
    }
  }
}

TEST_CASE("explored: two ranks, one of which leaves") {
  check({{waits("x"), waits("x")}, {waits("x"), leaves()}});
  check({{waits("x"), leaves()}, {waits("x"), waits("x")}});
  check({{waits("x")}, {leaves()}}, false);
}

TEST_CASE("explored: three ranks in a call for the same sum" * doctest::test_suite("nightly")) {
  check({{waits("x")}, {waits("x")}, {waits("x")}});
}

TEST_CASE("explored: some orders of three ranks, one of which requests another operation") {
  check({kWaits, kWaits, kWaits}, true, kOrders);
  check({kWaits, kWaits, {waits("x"), leaves()}}, true, kOrders);
  check({{waits("x"), leaves()}, kWaits, kWaits}, true, kOrders);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<Script> scripts(3, {waits("x"), waits("x"), waits("y"), waits("x"), waits("x")});
    scripts[rank] = {waits("x"), goes_on("y"), waits("x"), goes_on("x"), waits("x")};
    check(scripts, true, kOrders);
    scripts[rank] = {goes_on("y"), waits("x"), waits("x"), goes_on("x"), waits("x")};
    check(scripts, false, kOrders);
  }
}

}  // namespace hvd::test
