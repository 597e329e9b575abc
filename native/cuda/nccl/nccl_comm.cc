#include "cuda/nccl/nccl_comm.h"

#include <chrono>

#include "base/backoff.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/thread.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/nccl_comm";
constexpr double kOrderlySeconds = 2;  // then it is aborted
constexpr double kEndSeconds = 5;      // then its thread is detached
constexpr double kCauseSeconds = 0.5;  // for the mesh to identify the peer
constexpr std::chrono::milliseconds kPollInterval{50};

// True if a call of a nonblocking communicator has succeeded or is in progress.
bool accepted(NcclResult result) {
  return result == NcclResult::kSuccess || result == NcclResult::kInProgress;
}

// True: no member uses another's memory any more, and this one's is freed.
bool closed(const Nccl& nccl, NcclHandle handle) {
  if (!accepted(nccl.CommFinalize(handle))) return false;
  const Deadline deadline = Deadline::after_seconds(kOrderlySeconds);
  for (Polling polling = Polling::of_device();; polling.pause()) {
    NcclResult state = NcclResult::kSuccess;
    if (nccl.CommGetAsyncError(handle, &state) != NcclResult::kSuccess) return false;
    if (state == NcclResult::kSuccess) return nccl.CommDestroy(handle) == NcclResult::kSuccess;
    if (state != NcclResult::kInProgress || deadline.expired()) return false;
  }
}

}  // namespace

void Communicator::Shared::end() {
  const MutexLock lock(mutex);
  over = true;
  changed.notify_all();
}

Communicator::Communicator(const Nccl& nccl, std::shared_ptr<Device> device, Mesh& mesh)
    : nccl_(nccl), device_(std::move(device)), mesh_(mesh), shared_(std::make_shared<Shared>()) {}

Communicator::~Communicator() {
  {
    const MutexLock lock(shared_->mutex);
    leaving_ = true;
    shared_->changed.notify_all();
  }
  if (watch_.joinable()) watch_.join();
  if (const Status status = end(true); !status) log(Level::kWarning, kRoom, status.message);
  const Deadline deadline = Deadline::after_seconds(kEndSeconds);
  MutexLock lock(shared_->mutex);
  while (shared_->ended && !shared_->over && !deadline.expired())
    shared_->changed.wait_for(lock, deadline.remaining());
}

Status Communicator::begin(const NcclId& id, int size, int group_rank) {
  const Current current(*device_);
  if (!current) return current.status();
  NcclConfig config;
  NcclResult result = NcclResult::kSuccess;
  {
    const MutexLock lock(shared_->mutex);
    result = nccl_.CommInitRankConfig(&shared_->handle, size, id, group_rank, &config);
  }
  return accepted(result) ? Status::ok() : explain(result, "building a communicator");
}

// NCCL does not name the peer; the mesh does, if a rank has died.
Status Communicator::explain(NcclResult result, const std::string& what) const {
  const Deadline deadline = Deadline::after_seconds(kCauseSeconds);
  Polling polling = Polling::of_device();
  while (result == NcclResult::kRemoteError && !mesh_.abort().raised() && !deadline.expired())
    polling.pause();
  return mesh_.abort().raised() ? mesh_.abort().cause() : blame(result, what);
}

Status Communicator::blame(NcclResult result, const std::string& what) const {
  Status status = check(nccl_, result, what + " over NCCL");
  status.message = device_->site().name + ": " + status.message;
  status.rank = device_->site().rank;
  return status;
}

Status Communicator::wait_ready(const std::string& what, const Deadline& deadline) {
  for (Polling polling = Polling::of_device();; polling.pause()) {
    if (mesh_.abort().raised()) return mesh_.abort().cause();
    NcclResult state = NcclResult::kSuccess;
    NcclResult queried = NcclResult::kSuccess;
    {
      const MutexLock lock(shared_->mutex);
      if (shared_->ended) return gone(what);
      queried = nccl_.CommGetAsyncError(shared_->handle, &state);
    }
    if (queried != NcclResult::kSuccess) return explain(queried, what);
    if (state == NcclResult::kSuccess) return Status::ok();
    if (state != NcclResult::kInProgress) return explain(state, what);
    if (deadline.expired())
      return Status::make(Code::kTimeout,
                          device_->site().name + ": " + what +
                              " over NCCL is not done in time: another rank does not answer; "
                              "NCCL_DEBUG=INFO shows more, NCCL_SOCKET_IFNAME names the network",
                          kRoom, device_->site().rank);
  }
}

Status Communicator::gone(const std::string& what) const {
  return Status::make(Code::kShutdown,
                      device_->site().name + ": " + what + ": NCCL's communicator has ended", kRoom,
                      device_->site().rank);
}

Status Communicator::group(const std::string& what, const NcclCalls& calls) {
  if (calls.empty()) return Status::ok();
  if (Status paced = device_->in_flight_limiter().step(*device_, mesh_.abort()); !paced)
    return paced;
  NcclResult result = NcclResult::kSuccess;
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->ended) return gone(what);
    result = nccl_.GroupStart();
    for (std::size_t i = 0; i < calls.size() && accepted(result); ++i) result = calls[i]();
    const NcclResult last = nccl_.GroupEnd();  // a started group must be ended in any case
    if (accepted(result)) result = last;
  }
  if (!accepted(result)) return explain(result, what);
  const bool relied_on = self_test_seconds_ == 0;
  Status status =
      wait_ready(what, relied_on ? Deadline::never() : Deadline::after_seconds(self_test_seconds_));
  return status && relied_on ? watch_over_it() : status;
}

Status Communicator::health() {
  const MutexLock lock(shared_->mutex);
  if (shared_->ended) return gone("an operation");
  const NcclResult known = error();
  return known == NcclResult::kSuccess ? Status::ok() : blame(known, "an operation");
}

// The error of the operation in flight.
NcclResult Communicator::error() const {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult result = nccl_.CommGetAsyncError(shared_->handle, &state);
  if (result != NcclResult::kSuccess) return result;
  return accepted(state) ? NcclResult::kSuccess : state;
}

Status Communicator::watch_over_it() {
  Result<Device::Event> event = device_->recorded(device_->stream());
  if (!event) return event.status();
  if (!watch_.joinable()) {
    Status status = start_thread(
        watch_, [this] { watch(); },
        [this](const char* what) {
          mesh_.raise_everywhere(Status::make(
              Code::kInternal,
              device_->site().name + ": the thread that watches NCCL has ended: " + what, kRoom,
              device_->site().rank));
        });
    if (!status) return status;
  }
  const MutexLock lock(shared_->mutex);
  if (last_ == nullptr) shared_->changed.notify_all();
  last_ = event.take();
  return Status::ok();
}

void Communicator::watch() {
  name_thread("hvd-nccl");
  block_signals();
  Deadline cause = Deadline::after_seconds(kCauseSeconds);
  MutexLock lock(shared_->mutex);
  while (!leaving_) {
    if (last_ == nullptr) {
      shared_->changed.wait(lock);
      continue;
    }
    shared_->changed.wait_for(lock, kPollInterval);
    failpoint("nccl.watch");
    const NcclResult error = check_async();
    if (error != NcclResult::kRemoteError) cause = Deadline::after_seconds(kCauseSeconds);
    if (error == NcclResult::kSuccess || (error == NcclResult::kRemoteError && !cause.expired()))
      continue;
    last_ = nullptr;
    mesh_.raise_everywhere(blame(error, "an operation"));
  }
}

// The error of the operation in flight, unless the mesh's abort is raised, which is the better
// cause.
NcclResult Communicator::check_async() {
  if (leaving_ || last_ == nullptr) return NcclResult::kSuccess;
  const Current current(*device_);
  const Result<bool> done = device_->query(last_.get());
  // The waiting code reports a failed device.
  if (!done || done.value() || mesh_.abort().raised()) {
    last_ = nullptr;
    return NcclResult::kSuccess;
  }
  return error();
}

Status Communicator::abort() { return end(false); }

Status Communicator::end(bool orderly) {
  const std::shared_ptr<Shared> shared = shared_;
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->ended || shared_->handle == nullptr) return Status::ok();
    shared_->ended = true;
    last_ = nullptr;
  }
  auto body = [shared, orderly, &nccl = nccl_, device = device_]() mutable {
    name_thread("hvd-nccl-end");
    block_signals();
    {
      const Current current(*device);
      if (!orderly || !closed(nccl, shared->handle)) nccl.CommAbort(shared->handle);
    }
    device.reset();
    shared->end();
  };
  const auto failed = [shared](const char* what) {
    shared->end();
    log(Level::kError, kRoom, what);
  };
  std::thread thread;
  if (Status status = start_thread(thread, std::move(body), failed); !status) return status;
  thread.detach();
  return Status::ok();
}

}  // namespace hvd::cuda
