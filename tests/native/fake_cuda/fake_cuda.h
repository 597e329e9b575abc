// A fake CUDA driver: libfake_cuda.so has every function of native/cuda/driver/driver.h and those
// below. Its device memory is host memory (memfds, so that IPC handles open in other processes), a
// stream is a queue with a thread that really blocks at waits, kernels are functions of the host.
// It refuses what the driver refuses: handles that are gone, a stream of another device than the
// current one, an IPC handle in the process that made it, unknown kernels, addresses that are
// nobody's. Memory comes filled with garbage.
//
// By the environment, read at the first call:
//   FAKE_CUDA_DEVICES=n              devices (default 1); CUDA_VISIBLE_DEVICES=0,2 hides the others
//   FAKE_CUDA_MEMORY=bytes           of each device and process (default 1 GiB)
//   FAKE_CUDA_TURN=turn/of           of time slices: fake_cuda_time_slices()
//   FAKE_CUDA_MPS=1                  fake_cuda_set_mps()
//   FAKE_CUDA_FAIL=name:nth:error    the nth call (from 1) of the function gives that CUresult;
//                                    several with ';'; nth *: every call
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct FakeDim {
  unsigned x, y, z;
};

// A kernel: run() does all blocks and threads of a launch. Parameters are pointers to copies of the
// arguments, which were taken at the launch.
struct FakeKernel {
  const char* name;
  const std::size_t* parameter_bytes;
  std::size_t parameters;
  void (*run)(FakeDim grid, FakeDim block, void** parameters);
};
// All there are: kernels_host.cc.
const FakeKernel* fake_cuda_kernels(std::size_t* count);

// What is there now in this process, of all devices, when streams without a handle have ended.
struct FakeCounts {
  std::size_t allocations, bytes, pinned, mappings, streams, events, modules, contexts;
};
void fake_cuda_counts(FakeCounts* counts);

// As FAKE_CUDA_DEVICES and FAKE_CUDA_MEMORY. Only while nothing is there.
void fake_cuda_set_devices(int count);
void fake_cuda_set_memory(std::size_t bytes);
// The nth call from now (1: the next, 0: every one) of the function gives `error`; once.
void fake_cuda_fail(const char* function, int nth, int error);
void fake_cuda_fail_nothing();
// Every call of the function takes so long from now on.
void fake_cuda_slow(const char* function, int milliseconds);
// Every call for the device gives `error` from now on, and its queues stop; 0: it is well again.
void fake_cuda_lose(int device, int error);
// As cuDriverGetVersion says it; default: that of the cuda.h which this was built with.
void fake_cuda_set_version(int version);
// Devices reach each other (cuDeviceCanAccessPeer) or not; default: yes.
void fake_cuda_set_reachable(int reachable);
// Word operations (cuStreamBatchMemOp) are supported or not; default: yes.
void fake_cuda_set_word_operations(int supported);
// This process's contexts run in each turn `turn` of `of` (2 ms long, by a clock that all processes
// share) and stand still in the others', as those of processes that share a device do. What has
// been begun is finished, and memory and host calls go on. of = 1: always (default).
void fake_cuda_time_slices(int turn, int of);
// MPS makes one context of those of all processes: there are no time slices. Default: no.
void fake_cuda_set_mps(int on);
// A stream is being captured: cuStreamIsCapturing returns it, and its events are captured.
// Its work is still executed at once.
void fake_cuda_set_capturing(void* stream, int capturing);
// The stream's queue stops before its next piece of work until it is released.
void fake_cuda_hold(void* stream);
void fake_cuda_release(void* stream);
// Work of another fake on the stream, in its order; it may wait there for other streams' work.
// Gives a CUresult.
int fake_cuda_enqueue(void* stream, void (*run)(void*), void* argument);
// Of this thread's current context; -1: there is none.
int fake_cuda_current_device();
// How much memory was freed while another process had it open, since the start: of that the
// driver's documentation says that anything may happen.
std::size_t fake_cuda_freed_under_others();
// How often a stream was named that is none, or no longer, since the start: the driver may crash.
std::size_t fake_cuda_lost_streams();
// How often a function was called since the start.
std::size_t fake_cuda_calls(const char* function);
// Puts all switches back as they were at the start (not the counts).
void fake_cuda_reset();

}  // extern "C"
