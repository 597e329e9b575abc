// What the coordinator does to wait for control messages, in its simplest form.
#pragma once

#include <chrono>

#include "base/deadline.h"
#include "transport/mesh/mesh.h"

namespace hvd::test {

// The next message; from == -1 when the doorbell was rung without one, on an abort and after
// `longest`.
inline ControlMessage wait_control(Mesh& mesh, std::chrono::nanoseconds longest) {
  Doorbell& doorbell = mesh.doorbell();
  const std::uint32_t seen = doorbell.heard();
  ControlMessage message = mesh.poll_control();
  if (message.from >= 0 || mesh.abort().raised()) return message;
  doorbell.announce();
  message = mesh.poll_control();
  if (message.from < 0 && !mesh.abort().raised()) doorbell.wait(seen, longest);
  doorbell.awake();
  return message.from >= 0 ? message : mesh.poll_control();
}

// The next message, unless an abort comes first or nothing for a long time.
inline ControlMessage next_control(Mesh& mesh) {
  const Deadline deadline = Deadline::after_seconds(20);
  ControlMessage message;
  while (message.from < 0 && !mesh.abort().raised() && !deadline.expired())
    message = wait_control(mesh, deadline.remaining());
  return message;
}

}  // namespace hvd::test
