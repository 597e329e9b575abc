// Streams and events.
#include <utility>

#include "base/deadline.h"
#include "fake_cuda/queue.h"

using fake::world;

namespace fake {
namespace {

void reach(Point& point) {
  point.at_ns = hvd::now_ns();
  __atomic_store_n(&point.reached, 1U, __ATOMIC_RELEASE);
  wake(&point.reached);
}

bool is_reached(const Point& point) {
  return __atomic_load_n(&point.reached, __ATOMIC_ACQUIRE) == 1;
}

CUresult find_event(CUevent event) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  return world().events.count(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

std::shared_ptr<Point> point_of(CUevent event) {
  const std::lock_guard<std::mutex> lock(event->mutex);
  return event->point;
}

// As the driver says it: a point of a device that is lost is never reached.
CUresult query(CUevent event) {
  const std::shared_ptr<Point> point = point_of(event);
  if (const CUresult error = lost(event->context); error != CUDA_SUCCESS) return error;
  if (point == nullptr) return CUDA_SUCCESS;
  if (point->captured) return CUDA_ERROR_CAPTURED_EVENT;
  return is_reached(*point) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

bool is_capturing(CUstream stream) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  return stream->capturing;
}

bool is_timed(CUevent event) {
  return find_event(event) == CUDA_SUCCESS && (event->flags & CU_EVENT_DISABLE_TIMING) == 0;
}

}  // namespace
}  // namespace fake

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  FAKE_CONTEXT_CALL("cuStreamCreateWithPriority", context);
  if (flags > CU_STREAM_NON_BLOCKING || priority > 0 || priority < -5)
    return CUDA_ERROR_INVALID_VALUE;
  *stream = fake::make_stream(context);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream given) {
  FAKE_CONTEXT_CALL("cuStreamDestroy", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  if (stream == stream->context->stream) return CUDA_ERROR_INVALID_VALUE;
  fake::end_stream(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream given) {
  FAKE_CONTEXT_CALL("cuStreamQuery", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  return fake::idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream given) {
  FAKE_CONTEXT_CALL("cuStreamSynchronize", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  fake::drain(stream);
  return fake::lost(stream->context);
}

CUresult cuStreamWaitEvent(CUstream given, CUevent event, unsigned flags) {
  FAKE_CONTEXT_CALL("cuStreamWaitEvent", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  if (flags != 0 || fake::find_event(event) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Point> point = fake::point_of(event);
  if (point == nullptr) return CUDA_SUCCESS;
  CUcontext const waiting = stream->context;
  CUcontext const recorded = event->context;
  fake::submit(stream, [=] {
    const auto over = [&] {
      return fake::is_reached(*point) || fake::lost(recorded) != CUDA_SUCCESS;
    };
    fake::block(waiting, over, &point->reached);
    fake::await_turn(waiting);
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream given, CUstreamCaptureStatus* status) {
  FAKE_CONTEXT_CALL("cuStreamIsCapturing", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  *status =
      fake::is_capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(current, *mode);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  FAKE_CONTEXT_CALL("cuEventCreate", context);
  auto made = std::make_unique<CUevent_st>();
  made->context = context;
  made->flags = flags;
  *event = made.get();
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().events.insert(made.get());
  world().all_events.push_back(std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  FAKE_CONTEXT_CALL("cuEventDestroy", context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  return world().events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream given) {
  FAKE_CONTEXT_CALL("cuEventRecord", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  if (fake::find_event(event) != CUDA_SUCCESS || event->context != stream->context)
    return CUDA_ERROR_INVALID_HANDLE;
  const auto point = std::make_shared<Point>();
  point->captured = fake::is_capturing(stream);
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    event->point = point;
  }
  fake::submit(stream, [=] { fake::reach(*point); });
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  FAKE_CALL("cuEventQuery");
  if (const CUresult found = fake::find_event(event); found != CUDA_SUCCESS) return found;
  return fake::query(event);
}

CUresult cuEventSynchronize(CUevent event) {
  FAKE_CALL("cuEventSynchronize");
  if (const CUresult found = fake::find_event(event); found != CUDA_SUCCESS) return found;
  const std::shared_ptr<Point> point = fake::point_of(event);
  if (point == nullptr) return CUDA_SUCCESS;
  fake::block(event->context, [&] { return fake::is_reached(*point); }, &point->reached);
  return fake::query(event);
}

#undef cuEventElapsedTime  // the name that the driver has had longest
CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  FAKE_CALL("cuEventElapsedTime");
  if (!fake::is_timed(begin) || !fake::is_timed(end)) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Point> from = fake::point_of(begin);
  const std::shared_ptr<Point> to = fake::point_of(end);
  if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!fake::is_reached(*from) || !fake::is_reached(*to)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(to->at_ns - from->at_ns) / 1e6F;
  return CUDA_SUCCESS;
}

}  // extern "C"
