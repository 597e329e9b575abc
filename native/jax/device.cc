#include "jax/device.h"

#include <atomic>

#include "base/library.h"

namespace hvd::jax {
namespace {

constexpr int kOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

std::atomic<PointerAttribute>& replacement() {
  static std::atomic<PointerAttribute> function{nullptr};
  return function;
}

// XLA has loaded the driver by now.
PointerAttribute attribute_of_driver() {
  static const auto function = [] {
    PointerAttribute attribute = nullptr;
    Library::loaded("libcuda.so.1").find("cuPointerGetAttribute", attribute);
    return attribute;
  }();
  return function;
}

}  // namespace

void replace_driver(PointerAttribute attribute) { replacement() = attribute; }

std::string device_of(const Frame& frame, DLDevice* device) {
  *device = {kDLCUDA, 0};
  for (std::int64_t i = 0; i < frame.inputs.count; ++i) {
    const auto pointer = reinterpret_cast<std::uintptr_t>(frame.inputs.all[i]->data);
    if (pointer == 0) continue;  // no elements
    const PointerAttribute replaced = replacement();
    const PointerAttribute attribute = replaced != nullptr ? replaced : attribute_of_driver();
    if (attribute == nullptr || attribute(&device->device_id, kOrdinal, pointer) != 0)
      return "CUDA's driver does not say which GPU an array is on: set HVD_JAX=callback";
    return "";
  }
  return "";
}

}  // namespace hvd::jax
