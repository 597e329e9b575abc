// What the fake driver knows. It is made at the first call and never destroyed: its threads may
// still look at it when the process ends.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda/fake_cuda.h"

constexpr int kMostDevices = 16;

// A device's primary context.
struct CUctx_st {
  int device = 0;
  int retained = 0;           // guarded by the world's mutex
  std::set<int> peers;        // enabled; guarded by the world's mutex
  CUstream stream = nullptr;  // the default one
};

// A point in a queue that is reached once.
struct Point {
  std::uint32_t reached = 0;  // atomic; also what waits sleep on
  std::int64_t at_ns = 0;     // written before `reached`
  bool captured = false;
};

struct CUevent_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<Point> point;  // of the last recording
};

struct CUmod_st {
  CUcontext context = nullptr;
};
struct CUfunc_st {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  const FakeKernel* kernel = nullptr;
};

// Device memory: of this process, or mapped from another.
struct Memory {
  CUcontext context = nullptr;
  std::size_t bytes = 0;   // as asked for
  std::size_t mapped = 0;  // of address space
  int fd = -1;             // of memory that others may map
  std::uint64_t token = 0;
  int opened = 0;       // how often, if it is another process's
  bool pooled = false;  // allocated in stream order
};

namespace fake {

struct Failure {
  std::string function;
  int nth;  // 1: the next call; 0: every one
  CUresult error;
};

struct Switches {
  int devices = 1;
  std::vector<int> visible;  // which of the machine's devices the numbers stand for
  std::size_t memory = std::size_t{1} << 30U;
  int version = CUDA_VERSION;
  bool reachable = true;
  bool word_operations = true;
  std::vector<Failure> failures;
  std::map<std::string, std::chrono::milliseconds> slow;  // what a call of the function takes
};

struct World {
  World();
  std::mutex mutex;  // guards all that follows, but what is atomic
  Switches switches;
  std::map<std::string, std::size_t> calls;
  bool initialised = false;
  std::array<CUctx_st, kMostDevices> contexts;
  std::array<std::atomic<int>, kMostDevices> lost{};  // the error
  std::atomic<int> turn{0}, turns{1};                 // of time slices
  std::atomic<bool> mps{false};
  std::map<CUdeviceptr, Memory> memory;     // by where it begins
  std::map<CUdeviceptr, std::size_t> gone;  // what was memory once; never used again
  std::map<void*, std::size_t> pinned;
  std::set<CUstream> streams;  // all there are, the default ones too
  std::set<CUevent> events;
  std::set<CUmodule> modules;
  std::map<std::pair<CUmodule, std::string>, std::unique_ptr<CUfunc_st>> functions;
  // Also those that are gone: no handle is ever given out twice.
  std::vector<std::unique_ptr<CUstream_st>> all_streams;
  std::vector<std::unique_ptr<CUevent_st>> all_events;
  std::vector<std::unique_ptr<CUmod_st>> all_modules;
  std::array<std::size_t, kMostDevices> used{};  // bytes
  std::size_t freed_under_others = 0;            // since the start
  std::size_t lost_streams = 0;                  // the same
};

World& world();

// Counts the call. An error: it shall fail, or the driver is not initialised, or the current
// context's device is lost.
CUresult entered(const char* name);
CUcontext current_context();
// The same for what needs a current context, which it gives.
CUresult entered(const char* name, CUcontext& context);
CUresult lost(CUcontext context);
void lose(CUcontext context, CUresult error);

}  // namespace fake

#define FAKE_CALL(name) \
  if (const CUresult refused = fake::entered(name); refused != CUDA_SUCCESS) return refused
#define FAKE_CONTEXT_CALL(name, context) \
  CUcontext context = nullptr;           \
  if (const CUresult refused = fake::entered(name, context); refused != CUDA_SUCCESS) return refused
