// One rank's engine: the face that the bindings and the tests use. Any thread may call anything.
// A call checks its own arguments, takes a handle and returns; the coordinator thread does the
// rest; wait() gives the outcome.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "engine/coordinator.h"
#include "engine/counters.h"
#include "engine/handles.h"
#include "engine/options.h"
#include "transport/bootstrap.h"
#include "transport/mesh.h"

namespace hvd {

struct Outcome {
  Status status;
  std::shared_ptr<Buffer> output;  // allgather
};

struct Pending {
  std::string name;
  Kind kind;
  double seconds;
  std::vector<int> missing;  // known on rank 0
};

class Engine {
 public:
  // Collective: finds the other ranks over the bootstrap.
  static Result<std::unique_ptr<Engine>> start(int rank, int size, Bootstrap& bootstrap,
                                               const EngineOptions& options);
  Engine(std::unique_ptr<Mesh> mesh, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return topology_; }
  std::string transport_to(int peer) const;

  // An empty name becomes "<op>.noname.<handle>". The operands' memory belongs to the engine until
  // the handle is done.
  Result<std::int64_t> enqueue(Request request, std::vector<Operand> operands);
  // Null handle: never given out or already waited for.
  Result<bool> poll(std::int64_t handle) const;
  // Nothing when it is not done after `longest`. The outcome is given once.
  Result<std::unique_ptr<Outcome>> wait(std::int64_t handle, std::chrono::nanoseconds longest);

  void abort(const std::string& message);
  Status ended() const;  // ok while it works
  std::vector<Pending> pending() const;
  const Counters& counters() const { return counters_; }
  std::vector<TraceRecord> trace(std::uint64_t& cursor) const { return trace_.read(cursor); }
  void shutdown();

 private:
  void leave_in_time();

  const Topology topology_;
  const std::vector<std::string> transports_;
  Handles handles_;
  Counters counters_;
  Trace trace_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Coordinator> coordinator_;
  Word stopped_{0};            // the thread's body has returned
  std::mutex shutdown_mutex_;  // one shutdown at a time; the second finds nothing to do
  // Guards mesh_ and coordinator_ against shutdown() taking them away.
  mutable std::mutex life_mutex_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace hvd
