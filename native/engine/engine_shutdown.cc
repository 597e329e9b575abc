// Shutdown of an engine: orderly if the other ranks take part, else after a timeout; in a forked
// child the engine is leaked.
#include <thread>

#include "base/deadline.h"
#include "base/thread.h"
#include "engine/engine.h"

namespace hvd {
namespace {

// How long shutdown() waits for the progress engine before it aborts.
constexpr double kLeaveSeconds = 10;
constexpr double kGoodbyeSeconds = 5;
// Devices do not ring the doorbell when they are done.
constexpr std::chrono::microseconds kPollInterval(100);

}  // namespace

void Engine::shutdown() {
  if (forked()) return abandon();
  const MutexLock once(shutdown_mutex_);
  if (mesh_ == nullptr) return;
  leave_in_time();
  if (thread_->joinable()) thread_->join();
  rundown_guard_.close_and_wait();
  tried([&] { stop_timeline(); });
  tried([&] { drain_devices(); });
  tried([&] { time_devices(); });
  tried([&] { mesh_->leave(); });
  tried([&] { await_goodbyes(); });
  progress_engine_.reset();
  devices_.reset();
  backends_.reset();
  regions_.reset();
  mesh_.reset();
}

// In a forked child the threads do not exist, and sockets and memory are shared with the parent, so
// nothing may be joined, sent or freed.
void Engine::abandon() {
  // NOLINTBEGIN(bugprone-unused-return-value)
  static_cast<void>(thread_.release());
  static_cast<void>(timeline_.release());
  static_cast<void>(progress_engine_.release());
  static_cast<void>(devices_.release());
  static_cast<void>(backends_.release());
  static_cast<void>(regions_.release());
  static_cast<void>(mesh_.release());
  // NOLINTEND(bugprone-unused-return-value)
}

// Wait until no operation on a device, here or at a peer, can use this rank's memory any more.
void Engine::drain_devices() {
  const Deadline deadline = Deadline::after_seconds(kLeaveSeconds);
  while (!mesh_->abort().raised() && !devices_->idle()) {
    if (deadline.expired()) mesh_->raise_everywhere(shut_down_by(topology_.rank));
    std::this_thread::sleep_for(kPollInterval);
  }
  const bool orderly = !mesh_->abort().raised();
  const Status cause = orderly ? handles_.closed() : mesh_->abort().cause();
  devices_->abandon(std::make_shared<const Status>(cause));
  if (orderly) regions_->part();
}

// Device memory that a peer has mapped may not be freed before the peer has unmapped it, which it
// does before it sends its goodbye. The wait for peers that do not leave is limited.
void Engine::await_goodbyes() {
  if (!devices_->used()) return;
  const Deadline deadline = Deadline::after_seconds(kGoodbyeSeconds);
  for (int peer = 0; peer < topology_.size; ++peer) {
    while (peer != topology_.rank && !mesh_->has_left(peer)) {
      if (mesh_->abort().raised() || deadline.expired()) return;
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

void Engine::leave_in_time() {
  const bool submitted = tried([&] {
    Request leave;
    leave.kind = Kind::kLeave;
    progress_engine_->submit(std::move(leave));
  });
  const Deadline deadline = Deadline::after_seconds(submitted ? kLeaveSeconds : 0);
  while (stopped_.load(std::memory_order_acquire) == 0 && !deadline.expired()) {
    futex_wait(stopped_, 0, deadline.remaining());
  }
  if (stopped_.load(std::memory_order_acquire) == 0) {
    tried([&] { mesh_->raise_everywhere(shut_down_by(topology_.rank)); });
  }
}

}  // namespace hvd
