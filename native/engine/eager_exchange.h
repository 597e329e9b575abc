// The data of eager rounds (eager/eager_rounds.h) on their way: sent by whoever asks for a sum, and
// looked for as long as this rank's round is open.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/controller/controller.h"
#include "engine/execution/executor.h"
#include "transport/link/eager_links.h"

namespace hvd {

// Progress-lock owner only, stir() excepted.
class EagerExchange {
 public:
  explicit EagerExchange(const Parts& parts) : parts_(parts), links_(parts.mesh.eager()) {}

  bool on() const { return links_ != nullptr; }
  bool may_send(const Task& task) const;
  void send(const Task& task, const EagerTag& tag) const;

  // Tells the controller of what has come. True: something has. An error: what must come will not.
  Result<bool> look(Controller& controller, std::int64_t now_ns);
  // As of the last look: this rank has sent, and waits for others.
  bool waits() const { return !awaited_.empty(); }
  // Until something comes, or the doorbell has been rung since `seen`.
  void wait(std::uint32_t seen, std::chrono::nanoseconds longest) const;
  // Rings the doorbell when something comes.
  void watch() const;
  // After the doorbell was rung. Any thread.
  void stir() const;

 private:
  const Parts parts_;
  EagerLinks* const links_;  // null: there are no rounds
  std::vector<int> awaited_;
};

}  // namespace hvd
