// A stream: a queue of work and a thread that does it, piece by piece. When the device is lost the
// rest is not done any more.
#pragma once

#include <condition_variable>
#include <deque>

#include "fake_cuda/world.h"

struct CUstream_st {
  CUcontext context = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;  // guarded by mutex, as what follows
  bool busy = false;
  bool held = false;
  bool ending = false;
  bool capturing = false;
};

namespace fake {

// The world's mutex is not held in any of these.
CUstream make_stream(CUcontext context);
// The handle is gone. Its queued work is still executed.
void end_stream(CUstream stream);
// Null is the default one of the context. CUDA_ERROR_INVALID_HANDLE: there is no such stream.
CUresult find_stream(CUstream given, CUcontext context, CUstream& stream);
// The same, and it must be this context's.
CUresult find_own_stream(CUstream given, CUcontext context, CUstream& stream);
// Waits, as the driver does, while the queue is full.
void submit(CUstream stream, std::function<void()> piece);
bool idle(CUstream stream);
// Until it is idle or the device is lost.
void drain(CUstream stream);
void drain_device(CUcontext context);
// Streams without a handle, for which nobody can wait any more: until they have done what they were
// given, or for some seconds.
void drain_ended();

// Until it is the turn of this process's contexts, or the device is lost.
void await_turn(CUcontext context);
// Looks at `done` until it is true or the device is lost. word: whose change is told by wake(), in
// whatever process; a change that nobody tells is seen some milliseconds later.
void block(CUcontext context, const std::function<bool()>& done, const std::uint32_t* word);
void wake(const std::uint32_t* word);

}  // namespace fake
