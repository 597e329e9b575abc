// One device of this process: its primary context (retained, never reset), a private stream with
// the highest priority, kernels, and a pool of events.
//   Current   scope in which this thread's driver calls use the device, and errors of Driver::check
//             name it. Every caller of the driver needs one; they nest.
//   event     from the device's pool, with timing or without; returned with its last pointer, on
//             any thread. Enqueued waits for it still wait for its old meaning.
// Any thread may use a device at any time; the progress-lock owner decides about the work on its
// stream. All objects of a device keep it alive.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/abort.h"
#include "base/mutex.h"
#include "base/status.h"
#include "collective/backend/plan.h"
#include "cuda/driver/driver.h"
#include "cuda/kernels/kernels.h"

namespace hvd::cuda {

using Uuid = std::array<unsigned char, 16>;

class Device;

// In-flight limiter: how far the host runs ahead of a device.
//   step     work enqueued on the stream: a launch, or a batch of words
//   window   kWindow steps, followed by an event
// A stream holds about a thousand steps. More would block inside the driver, where the abort is not
// checked; if a peer has died, room would never become free. So the host waits here before that,
// and checks the abort.
class InFlightLimiter {
 public:
  static constexpr std::size_t kWindow = 32;
  static constexpr std::size_t kWindows = 8;  // maximum in flight, besides the one being filled

  // Called before the next step of the device's stream. Progress-lock owner. Waits for the device
  // if too much is in flight; returns the abort's cause. Captured steps do not count.
  Status step(Device& device, const Abort& abort);
  // Called at the end of the device's life, with its context current.
  void destroy(const Driver& driver);

 private:
  std::size_t steps_ = 0;
  std::array<CUevent, kWindows> ends_{};  // of the last windows, cyclically
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  using Event = std::shared_ptr<CUevent_st>;  // get() is the CUevent

  // rank: of the engine, for messages. kInvalidArgument: no such device.
  static Result<std::shared_ptr<Device>> open(const Driver& driver, int number, int rank);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int number() const { return number_; }  // among the visible devices of this process
  CUdevice handle() const { return handle_; }
  CUcontext context() const { return context_; }
  CUstream stream() const { return stream_; }
  Kernels& kernels() const { return *kernels_; }
  InFlightLimiter& in_flight_limiter() { return in_flight_limiter_; }
  const Uuid& uuid() const { return uuid_; }
  // True if its work runs concurrently with that of other processes; otherwise they are
  // time-sliced.
  bool is_mps_client() const;
  const Site& site() const { return site_; }

  enum class Timing : std::uint8_t { kOff, kOn };
  Result<Event> event(Timing timing = Timing::kOff);
  // An event after all work enqueued on `stream` so far (nullptr: the default one).
  Result<Event> recorded(CUstream stream, Timing timing = Timing::kOff);
  // An event with timing that the device reaches at once, whatever it does.
  Result<Event> instant();
  // Later work on `stream` waits for `event`. The host does not block.
  Status stream_wait(CUstream stream, CUevent event);
  // False: not yet. An event of a step that is being captured has nothing to wait for: true.
  Result<bool> query(CUevent event);
  // Time on the device between two events with timing; nullopt: not both are reached.
  Result<std::optional<double>> seconds_between(const Event& from, const Event& to) const;
  // True if work on the stream is captured into a graph.
  bool captures(CUstream stream) const;
  // True if no work is in flight on our stream and, if a graph was ever captured, on streams that
  // have waited for an event (stream_wait), because replays do not run on ours. An error: the
  // device has failed.
  Result<bool> idle();

  // Device memory on our stream, usable by its later work. When the last pointer is dropped, it is
  // freed after the work enqueued on our stream and on every stream that has waited since: such a
  // stream must live as long. kUnavailable: not enough memory.
  Result<std::shared_ptr<void>> allocate(std::size_t bytes);

  // The devices that kernels of this one can read and write directly, itself among them.
  const std::vector<Uuid>& reachable() const { return reachable_; }
  // True if waiting for words and writing them in stream order (cuStreamBatchMemOp) works here.
  bool has_word_operations() const { return has_word_operations_; }
  int attribute(CUdevice_attribute which) const;  // 0: unknown to the driver

 private:
  Device(const Driver& driver, int number, int rank);
  Status identify();
  Status retain();
  Result<CUstream> clock();
  Status make_stream(int priority, CUstream& stream);
  Status prepare();
  void find_reachable();
  void probe_word_operations();
  void take_back(CUevent event, Timing timing);
  void take_back_memory(CUdeviceptr memory);
  void sweep();
  void return_after(CUstream stream);
  void remember(CUstream stream);
  void forget_waiting_streams() REQUIRES(mutex_);
  std::vector<CUstream> users_of_dying() const REQUIRES(mutex_);
  bool waiting_streams_idle();

  const Driver& driver_;
  int number_;
  Site site_;
  CUdevice handle_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUstream clock_ GUARDED_BY(mutex_) = nullptr;  // no work on it ever waits
  CUstream return_ = nullptr;  // frees memory, so that the main stream never waits for that
  Uuid uuid_{};
  std::vector<Uuid> reachable_;
  bool has_word_operations_ = false;
  bool has_pools_ = false;
  CUdeviceptr probe_word_ = 0;
  mutable std::atomic<bool> has_captured_{false};
  std::unique_ptr<Kernels> kernels_;
  InFlightLimiter in_flight_limiter_;
  Mutex mutex_;
  std::array<std::vector<CUevent>, 2> free_events_ GUARDED_BY(mutex_);  // by Timing
  // A handle may not be used once its owner has destroyed the stream, which is not reported. So
  // handles are kept only while memory lives that existed at their last wait, or if a graph was
  // captured, which may be replayed on any of them.
  struct WaitingStream {
    CUstream stream;
    std::uint64_t last;  // number of its last wait
  };
  std::vector<WaitingStream> waiting_streams_ GUARDED_BY(mutex_);
  std::uint64_t stream_waits_ GUARDED_BY(mutex_) = 0;
  // Live memory and the number of waits before its allocation.
  std::map<CUdeviceptr, std::uint64_t> living_ GUARDED_BY(mutex_);
  // The same for memory without owners.
  std::map<CUdeviceptr, std::uint64_t> dying_ GUARDED_BY(mutex_);
  Mutex sweep_mutex_;  // serialises sweeps
};

class Current {
 public:
  explicit Current(const Device& device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  const Status& status() const { return status_; }
  explicit operator bool() const { return status_.is_ok(); }

 private:
  const Driver& driver_;
  const Site* before_;
  CUstreamCaptureMode mode_;  // captures of other threads do not matter
  Status status_;
};

// Operations of a single rank on its own device.

// On the device's stream: to = from.
Status copy_on(const Device& device, void* to, const void* from, std::size_t bytes);

// On the device's stream: out = round(after * round(before * in) / divisor).
Status scale_on(const Device& device, const std::vector<Operand>& operands,
                const Reduction& reduction);

}  // namespace hvd::cuda
