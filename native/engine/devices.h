// What this rank's operations do on devices: from the marks behind which their inputs are to the
// end of the engine.
//
// An engine that fails lets its devices go on, with whatever data there is. A mark that had not
// been reached by then tells the cause for ever: nobody takes that data for a result. Who is told
// may free the memory: it is told once the device has let it go.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "collective/accelerators.h"
#include "collective/team.h"
#include "engine/buffer.h"
#include "engine/handles.h"

namespace hvd {

class DoneMark;

class Devices {
 public:
  explicit Devices(Accelerators& accelerators);

  // Any thread. Ok: there is an accelerator (loaded here the first time).
  Status available();
  // Any thread. The mark behind which the inputs of an operation are.
  Result<MarkPtr> ready(int device, void* stream);

  // Turn-holder, as Accelerator has them. device: kAnyDevice where this rank stands in for others.
  struct Begun {
    Backend* backend = nullptr;
    Ground ground;
  };
  Result<Begun> begin(int device, const Team& team, std::int64_t bytes,
                      const std::vector<MarkPtr>& ready);
  Result<MarkPtr> end();
  Result<DeviceRegion> share(int device, const Team& team, std::size_t bytes);
  Status drain();
  void release(const DeviceRegion& region);

  // Any thread.
  bool idle() const;  // nothing is under way
  bool used() const;  // a tensor on a device has come
  DeviceTimes times() const;
  // Nothing is begun afterwards. The first call counts.
  void abandon(const Ending& cause) noexcept;

 private:
  void remember(const std::shared_ptr<DoneMark>& mark);

  Accelerators& accelerators_;
  const std::shared_ptr<std::mutex> mutex_;  // shared with the marks
  bool abandoned_ = false;                   // guarded by mutex_, as the list below
  std::vector<std::weak_ptr<DoneMark>> marks_;
  std::size_t swept_ = 0;  // so many marks were left when it was looked through last
};

}  // namespace hvd
