// Carries one response out on this rank's tensors, finishes their tasks, and writes down when.
#pragma once

#include <memory>
#include <vector>

#include "base/trace.h"
#include "collective/select.h"
#include "engine/counters.h"
#include "engine/handles.h"
#include "engine/request.h"
#include "transport/mesh.h"

namespace hvd {

class Executor {
 public:
  Executor(Mesh& mesh, Handles& handles, Counters& counters, Trace& trace);

  // A failure here has left the links in the middle of something: the engine cannot go on.
  Status perform(const Response& response);

 private:
  using Tasks = std::vector<std::shared_ptr<Task>>;

  Tasks tasks_of(const Response& response) const;
  Status run(const Response& response, const Tasks& tasks);
  Status allreduce(const Tasks& tasks);
  Status broadcast(const Tasks& tasks);
  Status allgather(const Response& response, Task& task);
  void note(const Response& response, const Tasks& tasks, std::int64_t begin_ns);

  const int rank_;
  const int size_;
  Handles& handles_;
  Counters& counters_;
  Trace& trace_;
  Backends backends_;
};

}  // namespace hvd
