// The CUDA driver, found at run time: nothing links libcuda, and load_driver() returns an error
// without a driver. Tests pass the file of a fake.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace hvd::cuda {

// Name here, name in the library (with its version).
#define HVD_CUDA_FUNCTIONS(X)                                             \
  X(cuInit, cuInit)                                                       \
  X(cuDriverGetVersion, cuDriverGetVersion)                               \
  X(cuDeviceGetCount, cuDeviceGetCount)                                   \
  X(cuDeviceGet, cuDeviceGet)                                             \
  X(cuDeviceGetName, cuDeviceGetName)                                     \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2)                                  \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute)                           \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer)                         \
  X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId)                         \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                   \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)              \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2)                                \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2)                                  \
  X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess)                         \
  X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange)             \
  X(cuModuleLoadData, cuModuleLoadData)                                   \
  X(cuModuleUnload, cuModuleUnload)                                       \
  X(cuModuleGetFunction, cuModuleGetFunction)                             \
  X(cuLaunchKernel, cuLaunchKernel)                                       \
  X(cuMemAlloc, cuMemAlloc_v2)                                            \
  X(cuMemFree, cuMemFree_v2)                                              \
  X(cuMemAllocAsync, cuMemAllocAsync)                                     \
  X(cuMemFreeAsync, cuMemFreeAsync)                                       \
  X(cuMemHostAlloc, cuMemHostAlloc)                                       \
  X(cuMemFreeHost, cuMemFreeHost)                                         \
  X(cuMemGetInfo, cuMemGetInfo_v2)                                        \
  X(cuMemcpyAsync, cuMemcpyAsync)                                         \
  X(cuMemcpyPeerAsync, cuMemcpyPeerAsync)                                 \
  X(cuMemsetD8Async, cuMemsetD8Async)                                     \
  X(cuMemsetD32Async, cuMemsetD32Async)                                   \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority)               \
  X(cuStreamDestroy, cuStreamDestroy_v2)                                  \
  X(cuStreamQuery, cuStreamQuery)                                         \
  X(cuStreamSynchronize, cuStreamSynchronize)                             \
  X(cuStreamWaitEvent, cuStreamWaitEvent)                                 \
  X(cuStreamIsCapturing, cuStreamIsCapturing)                             \
  X(cuStreamBatchMemOp, cuStreamBatchMemOp_v2)                            \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode) \
  X(cuEventCreate, cuEventCreate)                                         \
  X(cuEventRecord, cuEventRecord)                                         \
  X(cuEventQuery, cuEventQuery)                                           \
  X(cuEventSynchronize, cuEventSynchronize)                               \
  X(cuEventElapsedTime, cuEventElapsedTime)                               \
  X(cuEventDestroy, cuEventDestroy_v2)                                    \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle)                                 \
  X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2)                            \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle)                             \
  X(cuPointerGetAttribute, cuPointerGetAttribute)                         \
  X(cuGetErrorName, cuGetErrorName)                                       \
  X(cuGetErrorString, cuGetErrorString)

// The functions as members, called as in the manual: driver.cuInit(0).
struct Driver {
#define HVD_CUDA_MEMBER(name, symbol) \
  decltype(&::symbol) name = nullptr;  // NOLINT(bugprone-macro-parentheses): a name
  HVD_CUDA_FUNCTIONS(HVD_CUDA_MEMBER)
#undef HVD_CUDA_MEMBER
  std::string file;  // its path

  // Ok, or a status with the driver's name and description of the error, the attempted action
  // `what`, and the device. CUDA_ERROR_OUT_OF_MEMORY is kUnavailable, the rest is kInternal.
  Status check(CUresult result, const char* what) const;
};

// Loads the file ("" is libcuda.so.1), finds every function, calls cuInit. Never unloaded; the same
// file returns the same driver. kUnavailable: no driver, too old for a function, no device; the
// message names the cause and the remedy.
Result<const Driver*> load_driver(const std::string& file);

// Call site of this thread's driver calls, for messages: "rank 2, device 0 (NVIDIA H200)".

struct Site {
  std::string name;
  int rank = -1;
};

// Of this thread; nullptr: no particular device. Set by Current (device.h), read by Driver::check.
const Site* current_site();
void set_current_site(const Site* site);

}  // namespace hvd::cuda
