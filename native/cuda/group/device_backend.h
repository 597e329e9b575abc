// A backend whose operations are given to the stream of one device and are done there later.
#pragma once

#include "collective/accelerator.h"
#include "collective/backend/backend.h"

namespace hvd::cuda {

class DeviceBackend : public Backend {
 public:
  // The engine has ended: what waits in the device's queue for other ranks shall wait no longer,
  // with whatever data there is. Called again and again until the stream is idle; on any thread,
  // but never at the same time as another call of this object. Does not wait.
  virtual Status abort_waits() = 0;
  // No operation comes any more: gives the stream a wait for what other ranks still read here. When
  // the stream is idle after that, this backend may go. Does not wait.
  virtual Status settle() { return Status::ok(); }
  // The stream is idle behind settle(), or failed: closes what is mapped of the others' memory,
  // which they give back when all have done so. Nothing is asked of this object any more.
  virtual void part() {}
  // By how many algorithms it can do an allreduce of floats; take() settles for one of them.
  virtual std::size_t algorithms() const { return 1; }
  virtual void take(std::size_t /*algorithm*/) {}
  // While it is on self-test a failure is nobody's but its own: no abort comes of it, and no call
  // waits longer than so many seconds for other members. 0: the self-test is over, it is relied on.
  virtual void set_self_test(double /*seconds*/) {}
  // What it knows to have gone wrong on the device.
  virtual Status health() { return Status::ok(); }
  // Accelerator::share(). Not through the proxy: no operation is begun meanwhile. own: what keeps
  // this member from having any; the others hear of it. All members call.
  virtual Result<DeviceRegion> share_memory(std::size_t /*bytes*/, const Status& /*own*/) {
    return Status::make(Code::kUnavailable,
                        "this device backend cannot share memory between ranks, the ring can",
                        "cuda/device_backend");
  }
  // Only where members map each other's memory: those of a ring.
  Status allreduce_shared(const Group& /*group*/, const std::vector<Operand>& /*operands*/,
                          const std::vector<std::ptrdiff_t>& /*offsets*/,
                          const Reduction& /*reduction*/) override {
    return Status::make(Code::kInternal, "this device backend cannot share memory between ranks",
                        "cuda/device_backend");
  }
};

}  // namespace hvd::cuda
