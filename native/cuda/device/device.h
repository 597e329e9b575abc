// One device of this process: its primary context (retained, never reset), a stream of our own with
// the highest priority, kernels, and events to use again.
//   Current   while it lives, this thread's driver calls go to the device, and errors that
//             Driver::check makes name it. Whoever calls the driver has one of its own; they nest.
//   event     from a pool of the device's, with timing or without; back there with its last
//             pointer, on any thread. What was given to wait for it keeps waiting for what it was.
// Any thread may use a device at any time; what the work on its stream is, the progress-lock owner
// decides. Everything that came from a device keeps it alive.
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

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/device/in_flight_limiter.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/site.h"
#include "cuda/kernels/kernels.h"

namespace hvd::cuda {

using Uuid = std::array<unsigned char, 16>;

class Device : public std::enable_shared_from_this<Device> {
 public:
  using Event = std::shared_ptr<CUevent_st>;  // get() is the CUevent

  // rank: of the engine, for messages. kInvalidArgument: there is no such device.
  static Result<std::shared_ptr<Device>> open(const Driver& driver, int number, int rank);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int number() const { return number_; }  // among those that this process sees
  CUdevice handle() const { return handle_; }
  CUcontext context() const { return context_; }
  CUstream stream() const { return stream_; }
  Kernels& kernels() const { return *kernels_; }
  InFlightLimiter& in_flight_limiter() { return in_flight_limiter_; }
  const Uuid& uuid() const { return uuid_; }
  // Its work runs beside that of other processes; else by turns with theirs.
  bool is_mps_client() const;
  const Site& site() const { return site_; }

  enum class Timing : std::uint8_t { kOff, kOn };
  Result<Event> event(Timing timing = Timing::kOff);
  // An event behind everything given to `stream` (null: the default one) so far.
  Result<Event> recorded(CUstream stream, Timing timing = Timing::kOff);
  // An event with timing that the device comes by at once, whatever it does.
  Result<Event> instant();
  // What is given to `stream` from now on comes behind `event`. The host does not wait.
  Status stream_wait(CUstream stream, CUevent event);
  // False: not yet. An event of a step that is being captured has nothing to wait for: true.
  Result<bool> query(CUevent event);
  // On the device, between two events with timing; nothing: it has not come to both of them yet.
  Result<std::optional<double>> seconds_between(const Event& from, const Event& to) const;
  // What is given to the stream becomes part of a graph.
  bool captures(CUstream stream) const;
  // Nothing is under way on our stream; where a graph was ever captured, nor on a stream that has
  // waited for an event (stream_wait): its replays are not on ours. An error: the device has
  // failed.
  Result<bool> idle();

  // Device memory on our stream: there for what is given to it from now on. It goes back behind
  // what our stream and every stream that has waited since have been given when the last pointer
  // goes: such a stream must live as long. kUnavailable: there is not that much.
  Result<std::shared_ptr<void>> allocate(std::size_t bytes);

  // The devices that kernels of this one can read and write directly, itself among them.
  const std::vector<Uuid>& reachable() const { return reachable_; }
  // Waiting for and writing of words in stream order (cuStreamBatchMemOp) work here.
  bool has_word_operations() const { return has_word_operations_; }
  int attribute(CUdevice_attribute which) const;  // 0: the driver does not know it

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
  void return_behind(CUstream stream);
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
  CUstream clock_ GUARDED_BY(mutex_) = nullptr;  // on which nothing ever waits
  CUstream return_ = nullptr;  // on which memory goes back: the other one never waits for that
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
  // A handle may not be touched once its owner has destroyed the stream, and nobody says when that
  // is: so they are kept only while memory lives that was there when they waited last, or where a
  // graph was captured, which may be replayed on any of them.
  struct WaitingStream {
    CUstream stream;
    std::uint64_t last;  // of the waits so far
  };
  std::vector<WaitingStream> waiting_streams_ GUARDED_BY(mutex_);
  std::uint64_t stream_waits_ GUARDED_BY(mutex_) = 0;
  // And how many waits were before.
  std::map<CUdeviceptr, std::uint64_t> living_ GUARDED_BY(mutex_);
  // The same; nobody has them any more.
  std::map<CUdeviceptr, std::uint64_t> dying_ GUARDED_BY(mutex_);
  Mutex sweep_mutex_;  // one at a time gives memory back
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
  CUstreamCaptureMode mode_;  // what other threads capture is none of our business
  Status status_;
};

}  // namespace hvd::cuda
