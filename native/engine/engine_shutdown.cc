// How an engine ends: in peace where the others let it, else within a time, and in a forked child
// not at all.
#include <thread>

#include "base/deadline.h"
#include "base/thread.h"
#include "engine/engine.h"

namespace hvd {
namespace {

// How long shutdown() waits for the progress lock before it goes without.
constexpr double kLeaveSeconds = 10;
constexpr double kGoodbyeSeconds = 5;
// Devices have no doorbell for when they are done.
constexpr std::chrono::microseconds kBetweenLooks(100);

}  // namespace

void Engine::shutdown() {
  if (forked()) return abandon();
  const MutexLock once(shutdown_mutex_);
  if (mesh_ == nullptr) return;
  leave_in_time();
  if (thread_->joinable()) thread_->join();
  rundown_guard_.close_and_wait();
  tried([&] { stop_timeline(); });
  tried([&] { settle_devices(); });
  tried([&] { time_devices(); });
  tried([&] { mesh_->leave(); });
  tried([&] { await_goodbyes(); });
  progress_engine_.reset();
  devices_.reset();
  backends_.reset();
  regions_.reset();
  mesh_.reset();
}

// In a forked child: the threads are not here, sockets and memory are the parent's too. What would
// join, say goodbye or free is left alone.
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

// What was given to a device, here or at a peer, may still use this rank's memory.
void Engine::settle_devices() {
  const Deadline deadline = Deadline::after_seconds(kLeaveSeconds);
  while (!mesh_->abort().raised() && !devices_->idle()) {
    if (deadline.expired()) mesh_->raise_everywhere(shut_down_by(topology_.rank));
    std::this_thread::sleep_for(kBetweenLooks);
  }
  const bool in_peace = !mesh_->abort().raised();
  const Status cause = in_peace ? handles_.closed() : mesh_->abort().cause();
  devices_->abandon(std::make_shared<const Status>(cause));
  if (in_peace) regions_->part();
}

// Device memory that a peer has mapped may not be given back before the peer has closed it, which
// it does before it says goodbye. A peer that does not leave, in peace or not, is not waited for.
void Engine::await_goodbyes() {
  if (!devices_->used()) return;
  const Deadline deadline = Deadline::after_seconds(kGoodbyeSeconds);
  for (int peer = 0; peer < topology_.size; ++peer) {
    while (peer != topology_.rank && !mesh_->has_left(peer)) {
      if (mesh_->abort().raised() || deadline.expired()) return;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
}

void Engine::leave_in_time() {
  const bool asked = tried([&] {
    Request leave;
    leave.kind = Kind::kLeave;
    progress_engine_->submit(std::move(leave));
  });
  const Deadline deadline = Deadline::after_seconds(asked ? kLeaveSeconds : 0);
  while (stopped_.load(std::memory_order_acquire) == 0 && !deadline.expired()) {
    futex_wait(stopped_, 0, deadline.remaining());
  }
  if (stopped_.load(std::memory_order_acquire) == 0) {
    tried([&] { mesh_->raise_everywhere(shut_down_by(topology_.rank)); });
  }
}

}  // namespace hvd
