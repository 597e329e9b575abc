// A backend whose operations are enqueued on the stream of one device and completed there later.
#pragma once

#include "collective/accelerator.h"
#include "collective/backend/backend.h"

namespace hvd::cuda {

class DeviceBackend : public Backend {
 public:
  // The engine has ended: release work in the device's queue that waits for other ranks, with
  // whatever data there is. Called repeatedly until the stream is idle; on any thread, but never
  // concurrently with another call of this object. Does not block.
  virtual Status abort_waits() = 0;
  // No more operations follow: enqueue a wait for peers that still read here. When the stream is
  // idle after that, this backend may be destroyed. Does not block.
  virtual Status finalize() { return Status::ok(); }
  // The stream is idle after finalize(), or has failed: unmap the peers' memory, which they free
  // when all have done so. The last call of this object.
  virtual void part() {}
  // Number of its algorithms for an allreduce of floats; take() selects one.
  virtual std::size_t algorithms() const { return 1; }
  virtual void take(std::size_t /*algorithm*/) {}
  // During a self-test a failure stays local: it raises no abort, and no call waits longer than
  // `seconds` for other members. 0: the self-test is over, and the backend is in use.
  virtual void set_self_test(double /*seconds*/) {}
  // The known failure of the device, if any.
  virtual Status health() { return Status::ok(); }
  // Accelerator::share(). Not through the proxy, because no operation runs meanwhile. own: the
  // error that prevents this member's share, sent to the other members. All members call it.
  virtual Result<DeviceRegion> share_memory(std::size_t /*bytes*/, const Status& /*own*/) {
    return Status::make(Code::kUnavailable,
                        "this device backend cannot share memory between ranks, the ring can",
                        "cuda/device_backend");
  }
  // Only for backends that map the members' memory: rings.
  Status allreduce_shared(const Group& /*group*/, const std::vector<Operand>& /*operands*/,
                          const std::vector<std::ptrdiff_t>& /*offsets*/,
                          const Reduction& /*reduction*/) override {
    return Status::make(Code::kInternal, "this device backend cannot share memory between ranks",
                        "cuda/device_backend");
  }
};

}  // namespace hvd::cuda
