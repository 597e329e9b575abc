// A machine small enough to try everything that can happen on it: a few words of memory, two or
// three actors, one step at a time, in every order.
//   step     one access to a shared word; sequentially consistent. Everything in between is local
//            and takes no time
//   actor    ordinary code (the templates that ship, over ModelWord). It is a function of what it
//            has read so far, so its state is that history: to let it do a step, it runs from its
//            beginning, gets its old answers again, does one new step and is thrown out of its
//            code. Where it says keep(), its local variables are its state, and the history starts
//            anew: what came about in different ways and is the same is looked at once
//   state    the words, and each actor's history; a state met before is not followed again
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/link/slot_ring.h"

namespace hvd::explorer {

using Value = std::uint32_t;

enum class Life : std::uint8_t { kRuns, kSleeps, kAwaitsDeath, kDone, kDead };

struct ActorState {
  Life life = Life::kRuns;
  std::size_t sleeps_on = 0;
  std::vector<char> kept;      // its local variables, as of the last keep()
  std::vector<Value> history;  // what it has read since
};

struct State {
  std::vector<Value> words;
  std::vector<ActorState> actors;
};

// Thrown by an actor that has seen what must not be.
struct Wrong {
  std::string what;
};

struct Pause {};  // the step is done

// One actor during one step.
class Run {
 public:
  Run(State& state, std::size_t actor) : state_(state), actor_(actor) {}

  Value load(std::size_t word);
  void store(std::size_t word, Value value);
  Value add(std::size_t word, Value by);
  // What the word was; it is `desired` now if that was `expected`.
  Value swap(std::size_t word, Value expected, Value desired);
  void wait(std::size_t word, Value seen, bool compares);
  void wake(std::size_t word);
  void await_death();

  const std::vector<char>& kept() { return self().kept; }
  void keep(const void* local, std::size_t bytes);

  static Run*& current();

 private:
  ActorState& self() { return state_.actors[actor_]; }
  bool replayed(Value& answer);
  Value answer(Value value);

  State& state_;
  std::size_t actor_;
  std::size_t place_ = 0;
  bool stepped_ = false;
};

// The local variables of an actor, restored from its last step; else made by `begin`.
template <class Local, class Begin>
Local resume(const Begin& begin) {
  static_assert(std::is_trivially_copyable_v<Local>);
  const std::vector<char>& kept = Run::current()->kept();
  if (kept.empty()) return begin();
  alignas(Local) std::array<char, sizeof(Local)> room;
  std::memcpy(room.data(), kept.data(), sizeof(Local));
  return *std::launder(reinterpret_cast<Local*>(room.data()));
}
template <class Local>
void keep(const Local& local) {
  Run::current()->keep(&local, sizeof local);
}

// The words of the scenario that is being built.
std::vector<Value>& words_so_far();

class ModelWord {
 public:
  ModelWord(Value first = 0) : index_(words_so_far().size()) {  // NOLINT: like std::atomic
    words_so_far().push_back(first);
  }
  ModelWord(const ModelWord&) = delete;
  ModelWord& operator=(const ModelWord&) = delete;

  Value load(std::memory_order = std::memory_order_seq_cst) const {
    return Run::current()->load(index_);
  }
  void store(Value value, std::memory_order = std::memory_order_seq_cst) {
    Run::current()->store(index_, value);
  }
  Value fetch_add(Value by, std::memory_order = std::memory_order_seq_cst) {
    return Run::current()->add(index_, by);
  }
  bool compare_exchange_strong(Value& expected, Value desired) {
    const Value was = Run::current()->swap(index_, expected, desired);
    return was == std::exchange(expected, was);
  }
  std::size_t index() const { return index_; }

 private:
  std::size_t index_;
};

inline void futex_wait(ModelWord& word, Value seen, std::chrono::nanoseconds, Value = ~0U) {
  Run::current()->wait(word.index(), seen, true);
}
inline void futex_wake_all(ModelWord& word, Value = ~0U) { Run::current()->wake(word.index()); }

struct ModelFlag {
  ModelWord word;
  bool load(std::memory_order = std::memory_order_seq_cst) const { return word.load() != 0; }
};

class ModelAbort {
 public:
  bool raised() const { return flag_.load() != 0; }
  Status cause() const { return Status::make(Code::kRankDied, "died", "explorer"); }
  void raise() { flag_.store(1); }

 private:
  ModelWord flag_;
};

inline bool changed_while_spinning(const BasicCounter<ModelWord>&, Value, const ModelAbort&, bool) {
  return false;
}

struct Actor {
  std::function<void()> body;
  bool mortal = false;    // may die before each of its steps
  bool optional = false;  // need not come to its end (who waits for a death that does not come)
};

struct Scenario {
  std::vector<Actor> actors;
  // A sleeper may wake up without a signal once nothing else can happen: the slices of wait_for.
  bool slices = false;
};

struct Outcome {
  std::size_t states = 0;
  std::size_t ends = 0;
  std::size_t deaths = 0;
  std::string wrong;  // the first thing found that must not be; empty: nothing
};

// Everything that can happen. `make` builds the words and the actors over them.
Outcome explore(const std::function<Scenario()>& make);

}  // namespace hvd::explorer
