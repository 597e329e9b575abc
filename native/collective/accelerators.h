// The accelerator of one engine. Its plugin is loaded with the first device tensor, from the folder
// of this library. Without a plugin, a driver or a device there is no accelerator, and the reason
// is kept.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "collective/accelerator.h"
#include "collective/backend/backend.h"
#include "transport/mesh/mesh.h"

namespace hvd {

class Accelerators {
 public:
  // mesh and cpu outlive it. open: replaces the plugin's function (tests); nullptr: the plugin's.
  Accelerators(Mesh& mesh, Backend& cpu, const AcceleratorOptions& options, OpenAccelerator open);

  // Any thread; the first call loads it. kInvalidArgument: no accelerator, with reason and remedy.
  Result<Accelerator*> get();
  // Any thread. The reason why tensors on a device are never supported; "": they are. Other
  // failures of a device are reported by its operations, on all ranks.
  std::string why_not(int device);
  // nullptr: not loaded yet, or not available.
  Accelerator* loaded() const { return loaded_.load(std::memory_order_acquire); }

 private:
  Accelerator* load(std::string& why_not) REQUIRES(mutex_);

  Mesh& mesh_;
  Backend& cpu_;
  const AcceleratorOptions options_;
  const OpenAccelerator open_;
  Mutex mutex_;
  bool tried_ GUARDED_BY(mutex_) = false;
  std::string why_not_ GUARDED_BY(mutex_);
  std::unique_ptr<Accelerator> accelerator_ GUARDED_BY(mutex_);
  std::atomic<Accelerator*> loaded_{nullptr};
};

}  // namespace hvd
