// Common parts of framework plugins: the core's table, the engine of this moment, element types and
// the names of failures.
//
// A plugin is a library of its own and includes this file, so each has its own table: Python tells
// it where the core is when it loads it.
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
inline const hvd_core* core() { return table(); }  // nullptr: nobody has set it yet

// The engine of this moment, counted; none between shutdown and init.
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

// The class of hvd_kernel.errors that a failure has in Python, by the core's code; "": it is the
// caller's own fault, a ValueError.
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

// A framework's number of an element type, and the type in DLPack's words.
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

// A contiguous tensor as the core sees it, in the memory of the host if nothing else is said.
// `shape` must outlive it.
inline DLTensor view(void* data, const DLDataType& type, std::vector<std::int64_t>* shape,
                     DLDevice device = {kDLCPU, 0}) {
  return {data, device, static_cast<std::int32_t>(shape->size()), type, shape->data(), nullptr, 0};
}

}  // namespace hvd::plugin
