#include "collective/accelerator.h"

#include <string>

#include "base/library.h"

namespace hvd {

namespace {

const char* const kRoom = "collective/accelerators";

Status refuse(const std::string& why) {
  return Status::make(Code::kInvalidArgument,
                      "tensors on a device cannot be used here: " + why +
                          "; move the tensor to the CPU first (tensor.cpu())",
                      kRoom);
}

// nullptr and the reason. Never unloaded: events and memory outlive engines.
OpenAccelerator open_of_plugin(std::string& why_not) {
  const std::string file = own_folder() + kCudaPlugin;
  const Library plugin = Library::open(file);
  if (!plugin) {
    why_not = plugin.why_not() +
              " (the plugin is built where nvcc is found: install hvd-kernel again on a machine "
              "with CUDA)";
    return nullptr;
  }
  OpenAccelerator open = nullptr;
  if (!plugin.find(kCudaSymbol, open))
    why_not = file + " is of another version of hvd-kernel (install it again)";
  return open;
}

}  // namespace

Accelerators::Accelerators(Mesh& mesh, Backend& cpu, const AcceleratorOptions& options,
                           OpenAccelerator open)
    : mesh_(mesh), cpu_(cpu), options_(options), open_(open) {}

Result<Accelerator*> Accelerators::get() {
  if (Accelerator* const known = loaded()) return known;
  const MutexLock lock(mutex_);
  if (!tried_) {
    accelerator_.reset(load(why_not_));
    tried_ = true;
    loaded_.store(accelerator_.get(), std::memory_order_release);
  }
  if (accelerator_ == nullptr) return refuse(why_not_);
  return accelerator_.get();
}

std::string Accelerators::why_not(int device) {
  const Result<Accelerator*> accelerator = get();
  if (!accelerator) {
    const MutexLock lock(mutex_);
    return why_not_;
  }
  const Status opened = accelerator.value()->open(device);
  return opened.code == Code::kInvalidArgument ? opened.message : "";
}

Accelerator* Accelerators::load(std::string& why_not) {
  const OpenAccelerator open = open_ != nullptr ? open_ : open_of_plugin(why_not);
  if (open == nullptr) return nullptr;
  Status why;
  Accelerator* const accelerator = open(kAcceleratorVersion, mesh_, cpu_, options_, why);
  if (accelerator == nullptr) why_not = why.message.empty() ? "no reason given" : why.message;
  return accelerator;
}

}  // namespace hvd
