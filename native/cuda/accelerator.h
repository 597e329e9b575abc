// The accelerator of CUDA devices; see collective/accelerator.h.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "collective/accelerator.h"
#include "cuda/cross_device_copy.h"
#include "cuda/device/event.h"
#include "cuda/device_context.h"

namespace hvd::cuda {

class CudaAccelerator final : public Accelerator {
 public:
  // kUnavailable: no driver or no device; the message names the remedy.
  static Result<std::unique_ptr<CudaAccelerator>> open(Mesh& mesh, Backend& cpu,
                                                       const AcceleratorOptions& options);
  ~CudaAccelerator() override;

  Status open(int device) override { return device_context_->device(device).status(); }
  Result<DeviceEventPtr> record(int device, void* stream) override;
  Result<std::shared_ptr<void>> allocate(int device, std::size_t bytes) override;
  Result<Backend*> begin(int device, const Group& group, std::size_t bytes,
                         const std::vector<DeviceEventPtr>& ready) override;
  Result<DeviceEventPtr> end() override;
  void measure(bool on) override { measuring_ = on; }
  bool in_turns() const override { return in_turns_; }
  Result<DeviceRegion> share(int device, const Group& group, std::size_t bytes) override;
  Status drain() override { return device_context_->drain(mesh_.abort()); }
  void release(const DeviceRegion& region) override { device_context_->forget(region); }
  Status fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) override;
  DeviceTimes times() override { return watch_->times(); }
  bool idle() override { return device_context_->finalized(); }
  void abandon() override { device_context_->abandon(); }

 private:
  CudaAccelerator(const Driver& driver, Mesh& mesh, Backend& cpu,
                  const AcceleratorOptions& options);
  Result<DeviceCommunicator*> communicator_of(int device, const Group& group);
  Status begin_measuring();
  Status begin_timing();
  Result<DeviceEventPtr> end_timing();
  Backend* way_to(const DeviceCommunicator& communicator);

  Mesh& mesh_;
  Backend& cpu_;
  const AcceleratorOptions options_;
  std::shared_ptr<DeviceContext> device_context_;
  Mutex recording_;
  std::uint64_t recorded_ GUARDED_BY(recording_) = 0;  // events of default streams
  KnownDevices known_devices_;
  std::set<std::string> notices_;  // logged already
  bool in_turns_ = false;
  // State of the current operation.
  std::shared_ptr<Device> home_, abroad_;  // equal if the tensors are on the group's home device
  std::optional<CrossDeviceCopy> cross_device_copy_;
  bool measuring_ = false;
  std::optional<Measured> measured_;
  Device::Event begun_;  // nullptr: not timed
  const std::shared_ptr<Stopwatch> watch_ = std::make_shared<Stopwatch>();
};

}  // namespace hvd::cuda
