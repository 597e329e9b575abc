#include "c_api/outcome.h"

#include <algorithm>

#include "c_api/status.h"
#include "c_api/tensor.h"

namespace hvd::c_api {
namespace {

static_assert(HVD_INVALID_ARGUMENT == static_cast<int>(Code::kInvalidArgument));
static_assert(HVD_MISMATCH == static_cast<int>(Code::kMismatch));
static_assert(HVD_ABORTED == static_cast<int>(Code::kAborted));
static_assert(HVD_RANK_DIED == static_cast<int>(Code::kRankDied));
static_assert(HVD_SHUTDOWN == static_cast<int>(Code::kShutdown));
static_assert(HVD_TIMEOUT == static_cast<int>(Code::kTimeout));
static_assert(HVD_UNAVAILABLE == static_cast<int>(Code::kUnavailable));
static_assert(HVD_INTERNAL == static_cast<int>(Code::kInternal));
static_assert(HVD_STALLED == static_cast<int>(Code::kStalled));
static_assert(HVD_NO_MEMORY == static_cast<int>(Code::kNoMemory));

hvd_output shown(hvd_buffer* owner) {
  Buffer& buffer = *owner->memory;
  hvd_output output{};
  output.struct_size = sizeof(output);
  output.owner = owner;
  output.tensor.data = buffer.data();
  output.tensor.device = dlpack_device(buffer.device);
  output.tensor.ndim = static_cast<std::int32_t>(buffer.shape.size());
  output.tensor.dtype = dlpack_type(buffer.dtype);
  output.tensor.shape = buffer.shape.data();
  return output;
}

}  // namespace

DoneCall::DoneCall(hvd_done done, void* context, std::size_t most_outputs)
    : done_(done), context_(context) {
  outputs_.reserve(most_outputs);
  buffers_.reserve(most_outputs);
  for (std::size_t i = 0; i < most_outputs; ++i) {
    buffers_.push_back(new hvd_buffer);  // NOLINT(cppcoreguidelines-owning-memory): counted
  }
}

DoneCall::~DoneCall() {
  for (hvd_buffer* const buffer : buffers_) drop(buffer);
}

void DoneCall::show_outputs(Task& task, hvd_outcome& outcome) noexcept {
  const std::size_t count = std::min(task.outputs.size(), buffers_.size());
  for (std::size_t i = 0; i < count; ++i) {
    buffers_[i]->memory = task.outputs[i];
    outputs_.push_back(shown(buffers_[i]));
  }
  outcome.outputs_count = count;
  outcome.outputs = outputs_.data();
  outcome.sizes_count = task.sizes.size();
  outcome.sizes = task.sizes.data();
}

void DoneCall::ended(Task& task) noexcept {
  hvd_outcome outcome{};
  outcome.struct_size = sizeof(outcome);
  outcome.text = "";
  outcome.rank = -1;
  outcome.number = -1;
  hvd_event event{task.event};
  if (task.ending == nullptr || task.ending->is_ok()) {
    show_outputs(task, outcome);
    if (task.request.kind == Kind::kJoin) outcome.number = task.number;
    if (event.of_device != nullptr) outcome.event = &event;
  } else {
    outcome.code = static_cast<std::int32_t>(task.ending->code);
    outcome.rank = task.ending->rank;
    outcome.text = task.ending->message.c_str();
  }
  done_(context_, &outcome);
  for (hvd_buffer* const buffer : buffers_) drop(buffer);
  buffers_.clear();
}

void keep(hvd_buffer* buffer) noexcept {
  if (buffer != nullptr) buffer->count.fetch_add(1, std::memory_order_relaxed);
}

void drop(hvd_buffer* buffer) noexcept {
  if (buffer == nullptr || buffer->count.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  delete buffer;  // NOLINT(cppcoreguidelines-owning-memory): counted
}

std::int32_t stream_wait(hvd_event* event, void* stream, char* text,
                         std::size_t text_size) noexcept {
  if (event == nullptr) return HVD_OK;
  return guarded(text, text_size, [&] { return event->of_device->stream_wait(stream); });
}

std::int32_t event_query(hvd_event* event) noexcept {
  if (event == nullptr) return 1;
  bool there = false;
  const std::int32_t code = guarded(nullptr, 0, [&] {
    const Result<bool> now = event->of_device->query();
    there = now && now.value();
    return now.status();
  });
  if (code != HVD_OK) return -code;
  return there ? 1 : 0;
}

}  // namespace hvd::c_api
