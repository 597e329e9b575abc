#include "cuda/accelerator.h"

#include <utility>

#include "base/deadline.h"

namespace hvd::cuda {
namespace {

// All marks are ours: the core only hands them through.
CUevent event_of(const MarkPtr& mark) { return static_cast<EventMark&>(*mark).event(); }

// What is given to `later` comes behind what `sooner` has been given.
Status queue_behind(Device& later, Device& sooner) {
  Result<Device::Event> event = sooner.recorded(sooner.stream());
  if (!event) return event.status();
  return later.follow(later.stream(), event.value().get());
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
      household_(
          std::make_shared<Household>(driver, mesh.topology().rank, mesh.topology().local_rank)) {}

CudaAccelerator::~CudaAccelerator() { household_->leave(); }

Result<MarkPtr> CudaAccelerator::mark(int device, void* stream) {
  const auto on = household_->device(device);
  if (!on) return on.status();
  return mark_of(on.value(), static_cast<CUstream>(stream));
}

Result<std::shared_ptr<void>> CudaAccelerator::allocate(int device, std::size_t bytes) {
  const auto on = household_->device(device);
  if (!on) return on.status();
  return on.value()->allocate(bytes);
}

// A team that has not met does so also where this rank has no device: the others wait for it.
Result<Table*> CudaAccelerator::table_of(int device, const Team& team) {
  const auto on = household_->device(device);
  if (Table* const met = household_->find(team); met != nullptr) {
    if (!on) return on.status();
    return met;
  }
  const Guest guest{on ? on.value() : nullptr, on.status()};
  Result<Agreed> agreed = meet(guest, mesh_, cpu_, team, options_);
  if (!agreed) return agreed.status();
  return household_->add({team, guest.device, std::move(agreed.value().backend)});
}

Result<Backend*> CudaAccelerator::begin(int device, const Team& team, std::size_t /*bytes*/,
                                        const std::vector<MarkPtr>& ready) {
  const Result<Table*> table = table_of(device, team);
  if (!table) return table.status();
  const auto on = household_->device(device);
  if (!on) return on.status();
  home_ = table.value()->home;
  abroad_ = on.value();
  if (Status status = begin_measuring(); !status) return status;
  for (const MarkPtr& mark : ready) {
    if (Status status = home_->follow(home_->stream(), event_of(mark)); !status) return status;
  }
  if (Status status = home_->pace().step(*home_, mesh_.abort()); !status) return status;
  if (Status status = begin_timing(); !status) return status;
  household_->gate().open_to(way_to(*table.value()));
  return static_cast<Backend*>(&household_->gate());
}

Backend* CudaAccelerator::way_to(const Table& table) {
  if (home_ == abroad_) return table.backend.get();
  return &ferry_.emplace(*table.backend, home_, abroad_);
}

Result<MarkPtr> CudaAccelerator::end() {
  if (begun_ != nullptr) return end_timing();
  if (home_ != abroad_) {
    if (Status status = queue_behind(*abroad_, *home_); !status) return status;
  }
  return mark_of(abroad_, abroad_->stream(), home_->captures(home_->stream()));
}

// Before it is known whether it becomes part of a graph.
Status CudaAccelerator::begin_measuring() {
  measured_.reset();
  if (!measuring_ || home_ != abroad_ || home_->captures(home_->stream())) return Status::ok();
  Measured measured;
  Result<Device::Event> anchor = home_->instant();
  measured.anchor_ns = measured.given_ns = now_ns();
  if (!anchor) return anchor.status();
  Result<Device::Event> queued = home_->recorded(home_->stream(), Device::Timing::kOn);
  if (!queued) return queued.status();
  measured.anchor = anchor.take();
  measured.queued = queued.take();
  measured_ = std::move(measured);
  return Status::ok();
}

// Not what becomes part of a graph, nor what is ferried: events of two devices have no distance.
Status CudaAccelerator::begin_timing() {
  begun_ = nullptr;
  if (home_ != abroad_ || home_->captures(home_->stream())) return Status::ok();
  Result<Device::Event> begun = home_->recorded(home_->stream(), Device::Timing::kOn);
  if (!begun) return begun.status();
  begun_ = begun.take();
  return Status::ok();
}

Result<MarkPtr> CudaAccelerator::end_timing() {
  Result<Device::Event> done = home_->recorded(home_->stream(), Device::Timing::kOn);
  if (!done) return done.status();
  const Device::Event begun = std::exchange(begun_, nullptr);
  watch_->operation(home_, begun, done.value());
  if (measured_) {
    measured_->begun = begun;
    return MarkPtr(
        std::make_shared<MeasuredMark>(home_, done.take(), watch_, std::move(*measured_)));
  }
  return MarkPtr(std::make_shared<EventMark>(home_, done.take(), watch_));
}

Result<DeviceRegion> CudaAccelerator::share(int device, const Team& team, std::size_t bytes) {
  const Result<Table*> table = table_of(device, team);
  if (!table) return table.status();
  const auto on = household_->device(device);
  Status own = on.status();
  if (own && on.value() != table.value()->home)
    own = Status::make(Code::kInvalidArgument,
                       on.value()->site().name + ": the ranks share memory on " +
                           table.value()->home->site().name + " only, where they have met",
                       "cuda/accelerator", on.value()->site().rank);
  Result<DeviceRegion> region = table.value()->backend->share_memory(bytes, own);
  if (region) household_->keep(region.value());
  return region;
}

Status CudaAccelerator::fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) {
  const Current current(*abroad_);
  if (!current) return current.status();
  return abroad_->kernels().fill_identity(abroad_->stream(), dtype, op, out, count);
}

}  // namespace hvd::cuda
