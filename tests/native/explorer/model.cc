#include "explorer/model.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace hvd::explorer {

Run*& Run::current() {
  thread_local Run* run = nullptr;
  return run;
}

std::vector<Value>& words_so_far() {
  thread_local std::vector<Value> words;
  return words;
}

// The old answers again, and then one new step.
bool Run::replayed(Value& answer) {
  if (place_ < self().history.size()) {
    answer = self().history[place_++];
    return true;
  }
  if (stepped_) throw Pause();
  stepped_ = true;
  return false;
}

Value Run::answer(Value value) {
  self().history.push_back(value);
  ++place_;
  return value;
}

void Run::keep(const void* local, std::size_t bytes) {
  const auto* const from = static_cast<const char*>(local);
  self().kept.assign(from, from + bytes);
  self().history.clear();
  place_ = 0;
  if (stepped_) throw Pause();
}

Value Run::load(std::size_t word) {
  Value old = 0;
  return replayed(old) ? old : answer(state_.words[word]);
}

void Run::store(std::size_t word, Value value) {
  Value old = 0;
  if (replayed(old)) return;
  state_.words[word] = value;
  answer(0);
}

Value Run::add(std::size_t word, Value by) {
  Value old = 0;
  if (replayed(old)) return old;
  old = state_.words[word];
  state_.words[word] += by;
  return answer(old);
}

Value Run::swap(std::size_t word, Value expected, Value desired) {
  Value old = 0;
  if (replayed(old)) return old;
  old = state_.words[word];
  if (old == expected) state_.words[word] = desired;
  return answer(old);
}

void Run::wait(std::size_t word, Value seen, bool compares) {
  Value old = 0;
  if (replayed(old)) return;
  if (compares && state_.words[word] != seen) {
    answer(0);
    return;
  }
  self().life = Life::kSleeps;  // the answer comes with the waking
  self().sleeps_on = word;
  throw Pause();
}

void Run::wake(std::size_t word) {
  Value old = 0;
  if (replayed(old)) return;
  for (ActorState& other : state_.actors) {
    if (other.life != Life::kSleeps || other.sleeps_on != word) continue;
    other.life = Life::kRuns;
    other.history.push_back(0);
  }
  answer(0);
}

void Run::await_death() {
  Value old = 0;
  if (replayed(old)) return;
  for (const ActorState& other : state_.actors)
    if (other.life == Life::kDead) {
      answer(0);
      return;
    }
  self().life = Life::kAwaitsDeath;
  throw Pause();
}

namespace {

std::string key_of(const State& state) {
  std::string key;
  const auto put = [&key](Value value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const Value word : state.words) put(word);
  for (const ActorState& actor : state.actors) {
    put(static_cast<Value>(actor.life));
    put(static_cast<Value>(actor.sleeps_on));
    put(static_cast<Value>(actor.history.size()));
    for (const Value value : actor.history) put(value);
    key.append(actor.kept.data(), actor.kept.size());
  }
  return key;
}

class Explorer {
 public:
  explicit Explorer(Scenario scenario) : scenario_(std::move(scenario)) {}

  Outcome all(State first) {
    follow(std::move(first));
    while (!open_.empty() && outcome_.wrong.empty()) {
      const State state = std::move(open_.back());
      open_.pop_back();
      expand(state);
    }
    outcome_.states = met_.size();
    return outcome_;
  }

 private:
  void follow(State state) {
    if (met_.insert(key_of(state)).second) open_.push_back(std::move(state));
  }

  void expand(const State& state) {
    bool moved = false;
    for (std::size_t i = 0; i < state.actors.size(); ++i) {
      const Life life = state.actors[i].life;
      const bool lives = life == Life::kRuns || life == Life::kSleeps;
      if (scenario_.actors[i].mortal && lives) die(state, i);
      if (life != Life::kRuns) continue;
      moved = true;
      step(state, i);
    }
    if (moved) return;
    if (scenario_.slices && wake_by_time(state)) return;
    ++outcome_.ends;
    for (std::size_t i = 0; i < state.actors.size(); ++i)
      if (state.actors[i].life == Life::kSleeps && !scenario_.actors[i].optional)
        outcome_.wrong = "actor " + std::to_string(i) + " sleeps forever";
  }

  void step(State state, std::size_t i) {
    Run run(state, i);
    Run::current() = &run;
    try {
      scenario_.actors[i].body();
      state.actors[i].life = Life::kDone;
    } catch (const Pause&) {
    } catch (const Wrong& wrong) {
      outcome_.wrong = "actor " + std::to_string(i) + ": " + wrong.what;
    }
    Run::current() = nullptr;
    follow(std::move(state));
  }

  void die(State state, std::size_t i) {
    ++outcome_.deaths;
    state.actors[i].life = Life::kDead;
    for (ActorState& actor : state.actors) {
      if (actor.life != Life::kAwaitsDeath) continue;
      actor.life = Life::kRuns;
      actor.history.push_back(0);
    }
    follow(std::move(state));
  }

  bool wake_by_time(const State& state) {
    bool any = false;
    for (std::size_t i = 0; i < state.actors.size(); ++i) {
      if (state.actors[i].life != Life::kSleeps) continue;
      State later = state;
      later.actors[i].life = Life::kRuns;
      later.actors[i].history.push_back(0);
      // Waking up for nothing again and again is no progress.
      if (later.actors[i].history.size() > 400) return false;
      any = true;
      follow(std::move(later));
    }
    return any;
  }

  Scenario scenario_;
  std::unordered_set<std::string> met_;
  std::vector<State> open_;
  Outcome outcome_;
};

}  // namespace

Outcome explore(const std::function<Scenario()>& make) {
  words_so_far().clear();
  Scenario scenario = make();
  State first;
  first.words = words_so_far();
  first.actors.resize(scenario.actors.size());
  return Explorer(std::move(scenario)).all(std::move(first));
}

}  // namespace hvd::explorer
