// Calls of a plugin: the conversion of their requests for the engine, and their outcomes.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/status.h"
#include "c_api/hvd_core.h"
#include "engine/engine.h"
#include "engine/execution/handles.h"

// Outcome of an operation for a plugin, with its buffers and events.

// Counted: the core's own reference, until `done` has returned, and the plugin's.
struct hvd_buffer {
  std::shared_ptr<hvd::Buffer> memory;
  std::atomic<int> count{1};
};

// Valid during a call of `done`.
struct hvd_event {
  hvd::DeviceEventPtr of_device;
};

namespace hvd::c_api {

// The completion that calls `done`. All its memory is allocated beforehand, because there may be
// none when an operation ends.
class DoneCall final : public Completion {
 public:
  DoneCall(hvd_done done, void* context, std::size_t most_outputs);
  ~DoneCall() override;
  DoneCall(const DoneCall&) = delete;
  DoneCall& operator=(const DoneCall&) = delete;
  void ended(Task& task) noexcept override;

 private:
  void show_outputs(Task& task, hvd_outcome& outcome) noexcept;

  const hvd_done done_;
  void* const context_;
  std::vector<hvd_output> outputs_;
  std::vector<hvd_buffer*> buffers_;
};

void keep(hvd_buffer* buffer) noexcept;
void drop(hvd_buffer* buffer) noexcept;
std::int32_t stream_wait(hvd_event* event, void* stream, char* text,
                         std::size_t text_size) noexcept;
std::int32_t event_query(hvd_event* event) noexcept;

// Conversion of hvd_request for the engine: read once, checked, copied.

struct Call {
  Request request;
  std::vector<Operand> operands;
  void* stream = nullptr;
  hvd_done done = nullptr;
  void* context = nullptr;
};

// The engine, which knows the ranks, checks the rest (engine/message/request.h).
Result<Call> call_of(const Engine& engine, const hvd_request* request);

}  // namespace hvd::c_api
