// MXNet's C API, declared by hand and found at run time: no header of MXNet.
//
// The functions are those of mxnet/c_api.h without their "MX"; `mxnet()->NDArrayFree(...)` calls
// MXNDArrayFree. Each returns 0, or -1 and why in GetLastError().
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace hvd::mxnet {

using Array = void*;  // NDArrayHandle

// mxnet::Context. MXNet copies its own size from it.
struct Context {
  int device_type, device_id;
};
constexpr int kCpu = 1;

// mxnet::engine::CallbackOnComplete, which may be copied: an operation ends when it is called, on
// any thread. dmlc::Error is a std::runtime_error without anything of its own.
struct OnComplete {
  void (*callback)(void* engine, void* operation, const std::runtime_error* error);
  void* engine;
  void* operation;
};

// FnProperty for the engine's threads for short CPU operations, so that a long one does not delay
// the start of ours.
constexpr int kCpuPrioritized = 3;

using Run = void (*)(void* context, void* on_complete, void* argument);
using Delete = void (*)(void* argument);

// X(return type, name without MX, arguments)
#define HVD_MXNET_FUNCTIONS(X)                                                               \
  X(const char*, GetLastError, ())                                                           \
  X(int, ShallowCopyNDArray, (Array, Array*))                                                \
  X(int, NDArrayFree, (Array))                                                               \
  X(int, NDArrayGetData, (Array, void**))                                                    \
  X(int, NDArrayGetDType, (Array, int*))                                                     \
  X(int, NDArrayGetShapeEx64, (Array, int*, const std::int64_t**))                           \
  X(int, EnginePushAsyncND,                                                                  \
    (Run, void*, Delete, const Context*, Array* read, int reads, Array* written, int writes, \
     const int* property, int priority, const char* name, bool wait))

struct Foreign {
#define HVD_MXNET_MEMBER(type, name, arguments) \
  type(*name) arguments = nullptr;  // NOLINT(bugprone-macro-parentheses): a declaration
  HVD_MXNET_FUNCTIONS(HVD_MXNET_MEMBER)
#undef HVD_MXNET_MEMBER
  // NDArray::Reorder2DefaultAsync() const: queues a conversion to row-major order. oneDNN may use
  // another order, whose memory must not be accessed meanwhile.
  void (*reorder)(Array) = nullptr;
};

// Finds the functions in the libmxnet of this path, which this process has loaded; "" or why they
// cannot be used. Once, before anything else here.
std::string find_mxnet(const char* library);
const Foreign* mxnet();

// Identifies the memory of an array, equal for views of the same memory: the first word of an
// NDArray points to it.
inline void* memory_of(Array array) { return *static_cast<void**>(array); }

}  // namespace hvd::mxnet
