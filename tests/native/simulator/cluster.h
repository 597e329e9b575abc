// The production Controller, once per virtual rank, over a virtual network in virtual time.
//   input    what a rank's thread has to look at: a message, data of an eager round, a request of
//            the user, a departure
// A rank looks at everything that has come, takes what follows from it, sends it (one message after
// the other), and then carries its agenda out; while it is in an operation it looks at nothing. An
// operation goes on when all ranks are in it. Nothing is random but the delays, which have a seed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "engine/controller/controller.h"
#include "simulator/model.h"
#include "simulator/networks.h"
#include "transport/link/link.h"

namespace hvd::sim {

struct Setting {
  int ranks = 2;
  int fanout = 64;
  Algorithm algorithm = Algorithm::kHierarchical;
  Costs costs;
  double backward = 0;   // ns over which the gradients come; 0: all at once
  double jitter = 0.05;  // of backward, and at least this many microseconds: each rank's own delay
  unsigned seed = 1;
  int leaves = -1;  // this rank leaves in the last step, half way through it
  std::vector<std::int64_t> tensors = resnet50();  // bytes
  // Of blocking calls, one after the other, each for the first tensor; 0: every tensor is asked for
  // once, and no rank waits.
  int calls = 0;
  // Calls whose data may agree on them (engine/eager): where the core would send them so.
  bool eager() const {
    return calls > 0 && algorithm == Algorithm::kDirect && costs.ranks_per_host == 1 &&
           ranks <= kMostEagerRanks && ranks <= fanout + 1;
  }
};

struct Step {
  double time = 0;                 // from the first request to the last result
  double negotiation = 0;          // from the last request of all to the last decision heard
  std::int64_t most_messages = 0;  // sent and received by one rank
  int most_rank = 0;
  std::int64_t messages = 0, bytes = 0;  // of all ranks
  int operations = 0;
  int eager = 0;              // those that their data agreed on, counted on every rank
  int failed = 0, ended = 0;  // requests that failed, ranks that have ended
};

class Cluster {
 public:
  explicit Cluster(const Setting& setting);
  // Every rank asks for every tensor once; until nothing happens any more.
  Step step(bool last = false);
  int waiting() const;  // ranks that have not ended and wait for something

 private:
  struct Input {
    int from = -1;  // negative: of the user
    int tensor = -1;
    bool leaves = false;
    std::string bytes;
    std::optional<EagerTag> data;
  };
  struct Event {
    double at;
    std::uint64_t number;  // of two at the same time the first comes first
    int rank;
    int input;  // negative: look at the inbox
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at > b.at || (a.at == b.at && a.number > b.number);
    }
  };
  struct Rank {
    std::unique_ptr<Controller> controller;
    std::deque<int> inbox;
    std::deque<int> agenda;  // operations
    double free_at = 0;      // its thread
    bool awake = false;      // an event to look at the inbox is on its way
    bool busy = false;       // in an operation
    bool ends = false;       // with the operations that it has agreed on
    std::int64_t messages = 0;
    int operations = 0;
    int calls = 0;                           // still to come
    double sent_at = 0;                      // its link has carried all data until then
    std::vector<std::deque<EagerTag>> data;  // by peer: what has come
  };
  struct Operation {
    std::int64_t bytes = 0;
    int in_it = 0;
  };

  void at(double time, int rank, Input input);
  void wake(Rank& rank, int number, double time);
  void look(int number, double time);
  void digest(int number, Input& input);
  void ask(int number, Request request);
  void send_data(int number, const EagerTag& tag, std::int64_t bytes);
  void look_at_data(int number);
  void deliver(int number);
  void heard(int number, const Response& response);
  void begin_next(int number);
  void carry_out(int operation);
  void call_again(Rank& rank, int number);

  Setting setting_;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::vector<Input> inputs_;
  std::vector<int> spare_;  // of inputs_
  std::uint64_t events_made_ = 0;
  std::vector<Operation> operations_;
  std::vector<double> begun_;
  double now_ = 0, last_ask_ = 0, last_heard_ = 0;
  Step step_;
};

}  // namespace hvd::sim
