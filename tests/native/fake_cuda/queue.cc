#include "fake_cuda/queue.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>
#include <thread>

#include "base/deadline.h"

namespace fake {
namespace {

constexpr auto kLook = std::chrono::milliseconds(2);
constexpr std::int64_t kSliceNs = 2'000'000;
constexpr auto kEnd = std::chrono::seconds(30);
constexpr std::size_t kMostWork = 1000;  // about; whoever gives more waits

bool finished(const CUstream_st& stream) { return stream.work.empty() && !stream.busy; }

void work_off(CUstream stream) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  while (true) {
    stream->changed.wait(lock,
                         [&] { return stream->work.empty() ? stream->ending : !stream->held; });
    if (stream->work.empty()) return;
    const std::function<void()> piece = std::move(stream->work.front());
    stream->work.pop_front();
    stream->busy = true;
    lock.unlock();
    await_turn(stream->context);
    if (lost(stream->context) == CUDA_SUCCESS) piece();
    lock.lock();
    stream->busy = false;
    stream->changed.notify_all();
  }
}

}  // namespace

CUstream make_stream(CUcontext context) {
  auto made = std::make_unique<CUstream_st>();
  CUstream const stream = made.get();
  stream->context = context;
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    world().streams.insert(stream);
    world().all_streams.push_back(std::move(made));
  }
  std::thread(work_off, stream).detach();
  return stream;
}

void end_stream(CUstream stream) {
  {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    stream->ending = true;
    stream->changed.notify_all();
  }
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().streams.erase(stream);
}

CUresult find_stream(CUstream given, CUcontext context, CUstream& stream) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  stream = given == nullptr || given == CU_STREAM_LEGACY ? context->stream : given;
  if (world().streams.count(stream) == 1) return CUDA_SUCCESS;
  ++world().lost_streams;
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult find_own_stream(CUstream given, CUcontext context, CUstream& stream) {
  const CUresult found = find_stream(given, context, stream);
  if (found != CUDA_SUCCESS) return found;
  return stream->context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void submit(CUstream stream, std::function<void()> piece) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  while (stream->work.size() >= kMostWork && lost(stream->context) == CUDA_SUCCESS)
    stream->changed.wait_for(lock, kLook);
  stream->work.push_back(std::move(piece));
  stream->changed.notify_all();
}

bool idle(CUstream stream) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  return finished(*stream);
}

void drain(CUstream stream) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  while (!finished(*stream) && lost(stream->context) == CUDA_SUCCESS)
    stream->changed.wait_for(lock, kLook);
}

void drain_device(CUcontext context) {
  std::vector<CUstream> streams;
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    for (const auto& stream : world().all_streams)
      if (stream->context == context) streams.push_back(stream.get());
  }
  for (CUstream const stream : streams) drain(stream);
}

void drain_ended() {
  std::vector<CUstream> ended;
  {
    const std::lock_guard<std::mutex> lock(world().mutex);
    for (const auto& stream : world().all_streams)
      if (world().streams.count(stream.get()) == 0) ended.push_back(stream.get());
  }
  for (CUstream const stream : ended) {
    std::unique_lock<std::mutex> lock(stream->mutex);
    stream->changed.wait_for(lock, kEnd, [&] { return finished(*stream); });
  }
}

// Who wakes up too late for its turn has the next one.
void await_turn(CUcontext context) {
  const World& all = world();
  while (!all.mps && lost(context) == CUDA_SUCCESS) {
    const std::int64_t now = hvd::now_ns(), slice = now / kSliceNs;
    if (slice % all.turns == all.turn) return;
    std::this_thread::sleep_for(std::chrono::nanoseconds((slice + 1) * kSliceNs - now));
  }
}

void block(CUcontext context, const std::function<bool()>& done, const std::uint32_t* word) {
  const timespec look{0, std::chrono::nanoseconds(kLook).count()};
  while (lost(context) == CUDA_SUCCESS) {
    const std::uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (done()) return;
    ::syscall(SYS_futex, word, FUTEX_WAIT, seen, &look, nullptr, 0);
  }
}

void wake(const std::uint32_t* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fake
