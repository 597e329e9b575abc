// The accelerator of one engine. Its plugin is loaded with the first device tensor, from the folder
// of this library; without a plugin, a driver or a device there is none, and why is kept.
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
  // mesh and cpu outlive it. open: instead of the plugin's (tests); null: the plugin's.
  Accelerators(Mesh& mesh, Backend& cpu, const AcceleratorOptions& options, OpenAccelerator open);

  // Any thread; the first one loads. kInvalidArgument: there is none, why, and what to do.
  Result<Accelerator*> get();
  // Any thread. Why tensors on a device are none for it, now and later; "": it takes them. What
  // else goes wrong with a device is told by its operations, on all ranks.
  std::string why_not(int device);
  // Null: nobody has asked for it yet, or there is none.
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
