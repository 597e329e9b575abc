// Common parts of framework plugins: the core's table, the current engine, element types and the
// names of failures. Each plugin is a separate library that includes this file and has its own
// table: Python passes it the core when it loads the plugin.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "c_api/hvd_core.h"

namespace hvd::plugin {

inline std::atomic<const hvd_core*>& table() {
  static std::atomic<const hvd_core*> given{nullptr};
  return given;
}
inline const hvd_core* core() { return table(); }  // nullptr: not set yet

// The current engine, counted; none between shutdown and init.
class Engine {
 public:
  Engine() : engine_(core() == nullptr ? nullptr : core()->current()) {}
  ~Engine() {
    if (engine_ != nullptr) core()->release(engine_);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  explicit operator bool() const { return engine_ != nullptr; }
  hvd_engine* get() const { return engine_; }

 private:
  hvd_engine* engine_;
};

constexpr const char* kNotInitialized = "Horovod has not been initialized; use hvd.init().";

// The class of hvd_kernel.errors for one of the core's codes; "": the caller's own error, a
// ValueError.
inline const char* error_class(std::int32_t code) {
  constexpr std::array<const char*, 11> kClasses{"",
                                                 "",
                                                 "Mismatch",
                                                 "RankFailed",
                                                 "RankDied",
                                                 "HorovodInternalError",
                                                 "HvdTimeout",
                                                 "HorovodInternalError",
                                                 "HorovodInternalError",
                                                 "RankStalled",
                                                 "OutOfMemory"};
  const bool known = code >= 0 && static_cast<std::size_t>(code) < kClasses.size();
  return kClasses.at(
      static_cast<std::size_t>(known ? code : static_cast<std::int32_t>(HVD_INTERNAL)));
}

// A framework's number of an element type, and DLPack's type.
struct Type {
  int number;
  DLDataType type;
};
template <std::size_t kCount>
bool dlpack_type(const std::array<Type, kCount>& types, int number, DLDataType* type) {
  for (const Type& row : types) {
    if (row.number != number) continue;
    *type = row.type;
    return true;
  }
  return false;
}

// A contiguous tensor for the core, by default in host memory. `shape` must outlive it.
inline DLTensor view(void* data, const DLDataType& type, std::vector<std::int64_t>* shape,
                     DLDevice device = {kDLCPU, 0}) {
  return {data, device, static_cast<std::int32_t>(shape->size()), type, shape->data(), nullptr, 0};
}

}  // namespace hvd::plugin
