#include "cuda/accelerator.h"

#include <utility>

#include "base/deadline.h"
#include "base/log.h"

namespace hvd::cuda {
namespace {

// All events are ours: the core only passes them through. The newest event of the default stream
// implies its earlier ones.
std::vector<CUevent> last_of(const std::vector<DeviceEventPtr>& ready) {
  std::vector<CUevent> last;
  std::uint64_t newest = 0;
  CUevent of_newest = nullptr;
  for (const DeviceEventPtr& one : ready) {
    const auto& event = static_cast<CudaEvent&>(*one);
    if (event.of_default_stream() == 0) last.push_back(event.event());
    if (event.of_default_stream() <= newest) continue;
    newest = event.of_default_stream();
    of_newest = event.event();
  }
  if (of_newest != nullptr) last.push_back(of_newest);
  return last;
}

// Let later work of `later` wait for the work enqueued on `sooner`.
Status wait_for_stream_of(Device& later, Device& sooner) {
  Result<Device::Event> event = sooner.recorded(sooner.stream());
  if (!event) return event.status();
  return later.stream_wait(later.stream(), event.value().get());
}

}  // namespace

Result<std::unique_ptr<CudaAccelerator>> CudaAccelerator::open(Mesh& mesh, Backend& cpu,
                                                               const AcceleratorOptions& options) {
  const Result<const Driver*> driver = load_driver(options.driver);
  if (!driver) return driver.status();
  return std::unique_ptr<CudaAccelerator>(new CudaAccelerator(*driver.value(), mesh, cpu, options));
}

CudaAccelerator::CudaAccelerator(const Driver& driver, Mesh& mesh, Backend& cpu,
                                 const AcceleratorOptions& options)
    : mesh_(mesh),
      cpu_(cpu),
      options_(options),
      device_context_(std::make_shared<DeviceContext>(driver, mesh.topology().rank,
                                                      mesh.topology().local_rank)) {}

CudaAccelerator::~CudaAccelerator() { device_context_->leave(); }

Result<DeviceEventPtr> CudaAccelerator::record(int device, void* stream) {
  const auto on = device_context_->device(device);
  if (!on) return on.status();
  if (stream != nullptr) return record_event(on.value(), static_cast<CUstream>(stream));
  const MutexLock in_this_order(recording_);
  Result<DeviceEventPtr> event = record_event(on.value(), nullptr);
  if (event) static_cast<CudaEvent&>(*event.value()).set_of_default_stream(++recorded_);
  return event;
}

Result<std::shared_ptr<void>> CudaAccelerator::allocate(int device, std::size_t bytes) {
  const auto on = device_context_->device(device);
  if (!on) return on.status();
  return on.value()->allocate(bytes);
}

// A new group must meet even if this rank has no device, because the other members wait for it.
Result<DeviceCommunicator*> CudaAccelerator::communicator_of(int device, const Group& group) {
  const auto on = device_context_->device(device);
  if (DeviceCommunicator* const met = device_context_->find(group); met != nullptr) {
    if (!on) return on.status();
    return met;
  }
  const LocalDevice local{on ? on.value() : nullptr, on.status()};
  Result<ChosenBackend> agreed = init_backend(local, mesh_, cpu_, group, options_, known_devices_);
  if (!agreed) return agreed.status();
  in_turns_ = in_turns_ ||
              (on && !on.value()->is_mps_client() && known_devices_.shares(mesh_.topology().rank));
  const std::string& notice = agreed.value().notice;
  if (!notice.empty() && notices_.insert(notice).second)
    log(Level::kWarning, "cuda/accelerator", notice);
  return device_context_->add(group, {local.device, std::move(agreed.value().backend)});
}

Result<Backend*> CudaAccelerator::begin(int device, const Group& group, std::size_t /*bytes*/,
                                        const std::vector<DeviceEventPtr>& ready) {
  const Result<DeviceCommunicator*> communicator = communicator_of(device, group);
  if (!communicator) return communicator.status();
  const auto on = device_context_->device(device);
  if (!on) return on.status();
  home_ = communicator.value()->home;
  abroad_ = on.value();
  if (Status status = begin_measuring(); !status) return status;
  for (CUevent const event : last_of(ready)) {
    if (Status status = home_->stream_wait(home_->stream(), event); !status) return status;
  }
  if (Status status = home_->in_flight_limiter().step(*home_, mesh_.abort()); !status)
    return status;
  if (Status status = begin_timing(); !status) return status;
  device_context_->proxy().open_to(way_to(*communicator.value()));
  return static_cast<Backend*>(&device_context_->proxy());
}

Backend* CudaAccelerator::way_to(const DeviceCommunicator& communicator) {
  if (home_ == abroad_) return communicator.backend.get();
  return &cross_device_copy_.emplace(*communicator.backend, home_, abroad_);
}

Result<DeviceEventPtr> CudaAccelerator::end() {
  if (begun_ != nullptr) return end_timing();
  if (home_ != abroad_) {
    if (Status status = wait_for_stream_of(*abroad_, *home_); !status) return status;
  }
  return record_event(abroad_, abroad_->stream(), home_->captures(home_->stream()));
}

// Called before it is known whether the operation becomes part of a graph.
Status CudaAccelerator::begin_measuring() {
  measured_.reset();
  if (!measuring_ || home_ != abroad_ || home_->captures(home_->stream())) return Status::ok();
  Measured measured;
  Result<Device::Event> anchor = home_->instant();
  measured.anchor_ns = measured.enqueued_ns = now_ns();
  if (!anchor) return anchor.status();
  Result<Device::Event> queued = home_->recorded(home_->stream(), Device::Timing::kOn);
  if (!queued) return queued.status();
  measured.anchor = anchor.take();
  measured.queued = queued.take();
  measured_ = std::move(measured);
  return Status::ok();
}

// Not for captured operations, nor for copied ones: there is no time between events of two devices.
Status CudaAccelerator::begin_timing() {
  begun_ = nullptr;
  if (home_ != abroad_ || home_->captures(home_->stream())) return Status::ok();
  Result<Device::Event> begun = home_->recorded(home_->stream(), Device::Timing::kOn);
  if (!begun) return begun.status();
  begun_ = begun.take();
  return Status::ok();
}

Result<DeviceEventPtr> CudaAccelerator::end_timing() {
  Result<Device::Event> done = home_->recorded(home_->stream(), Device::Timing::kOn);
  if (!done) return done.status();
  const Device::Event begun = std::exchange(begun_, nullptr);
  watch_->operation(home_, begun, done.value());
  if (measured_) {
    measured_->begun = begun;
    return DeviceEventPtr(
        std::make_shared<MeasuredEvent>(home_, done.take(), watch_, std::move(*measured_)));
  }
  return DeviceEventPtr(std::make_shared<CudaEvent>(home_, done.take(), watch_));
}

Result<DeviceRegion> CudaAccelerator::share(int device, const Group& group, std::size_t bytes) {
  const Result<DeviceCommunicator*> communicator = communicator_of(device, group);
  if (!communicator) return communicator.status();
  const auto on = device_context_->device(device);
  Status own = on.status();
  if (own && on.value() != communicator.value()->home)
    own = Status::make(Code::kInvalidArgument,
                       on.value()->site().name + ": the ranks share memory on " +
                           communicator.value()->home->site().name +
                           ", the device of their first operation, only",
                       "cuda/accelerator", on.value()->site().rank);
  Result<DeviceRegion> region = communicator.value()->backend->share_memory(bytes, own);
  if (region) device_context_->keep(region.value());
  return region;
}

Status CudaAccelerator::fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) {
  const Current current(*abroad_);
  if (!current) return current.status();
  return abroad_->kernels().fill_identity(abroad_->stream(), dtype, op, out, count);
}

}  // namespace hvd::cuda
