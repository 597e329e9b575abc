// The thread that does the work of one rank: it sends what this rank asks for to rank 0, learns
// what to do next, and does it. On rank 0 it also decides (negotiate, fusion). It sleeps until a
// request, a message, an abort or a held-back fusion is due.
//
// Leaving is a request like any other, so it takes its turn: everything that all ranks had asked
// for before is carried out first, what nobody can complete any more fails by name, and only then
// the rank is let go. Nobody ever waits for a rank that is gone.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "engine/counters.h"
#include "engine/executor.h"
#include "engine/fusion.h"
#include "engine/handles.h"
#include "engine/negotiate.h"
#include "engine/options.h"
#include "engine/queue.h"
#include "engine/request.h"
#include "transport/mesh.h"

namespace hvd {

class Coordinator {
 public:
  Coordinator(Mesh& mesh, const EngineOptions& options, Handles& handles, Counters& counters,
              Trace& trace);

  void run();  // the thread's body; returns when this engine has ended

  // Any thread.
  void submit(Request request);
  std::vector<Waiting> waiting() const;  // what rank 0 knows of missing ranks; empty elsewhere

 private:
  void forward(std::vector<Request> requests);
  void decide();
  void work();
  void listen();
  void receive(const ControlMessage& message);
  void ask(int rank, Request request);
  void notice_departures();
  void send(int peer, const std::string& bytes);
  void depart(int rank);
  void end(const Status& status);
  void fail_everywhere(const Status& status);
  std::chrono::nanoseconds longest_sleep() const;

  Mesh& mesh_;
  const int rank_;
  const int size_;
  Handles& handles_;
  Counters& counters_;
  Executor executor_;
  Queue queue_;
  std::deque<Response> agenda_;  // agreed, not yet done
  bool ended_ = false;
  int first_departure_ = -1;  // the others may leave because of it: it is the one to name

  // Rank 0 only.
  mutable std::mutex table_mutex_;  // for waiting(); the thread itself is the only writer
  Negotiator negotiator_;
  Fuser fuser_;
  std::vector<int> departures_;  // not yet announced
  std::vector<bool> gone_;
};

}  // namespace hvd
