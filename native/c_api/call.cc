#include "c_api/call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "c_api/status.h"
#include "c_api/tensor.h"
#include "engine/message/request.h"

namespace hvd::c_api {

namespace {

// The kinds of requests of a plugin, and the arguments that they need.
struct Row {
  Kind kind;
  bool tensors;
  bool outputs;  // has outputs; otherwise the core allocates the results
  bool reduces;
};
constexpr std::array<Row, 9> kRows{{
    {Kind::kAllreduce, true, true, true},
    {Kind::kAllgather, true, false, false},
    {Kind::kBroadcast, true, true, false},
    {Kind::kBarrier, false, false, false},
    {Kind::kAlltoall, true, false, false},
    {Kind::kReducescatter, true, true, true},
    {Kind::kJoin, false, false, false},
    {Kind::kSend, true, true, false},
    {Kind::kProbe, false, false, false},
}};
static_assert(HVD_ALLREDUCE == static_cast<int>(Kind::kAllreduce));
static_assert(HVD_ALLGATHER == static_cast<int>(Kind::kAllgather));
static_assert(HVD_BROADCAST == static_cast<int>(Kind::kBroadcast));
static_assert(HVD_BARRIER == static_cast<int>(Kind::kBarrier));
static_assert(HVD_ALLTOALL == static_cast<int>(Kind::kAlltoall));
static_assert(HVD_REDUCESCATTER == static_cast<int>(Kind::kReducescatter));
static_assert(HVD_JOIN == static_cast<int>(Kind::kJoin));
static_assert(HVD_SEND == static_cast<int>(Kind::kSend));
static_assert(HVD_PROBE == static_cast<int>(Kind::kProbe));
static_assert(HVD_AVERAGE == static_cast<int>(ReduceOp::kAverage));
static_assert(HVD_SUM == static_cast<int>(ReduceOp::kSum));
static_assert(HVD_ADASUM == static_cast<int>(ReduceOp::kAdasum));
static_assert(HVD_MIN == static_cast<int>(ReduceOp::kMin));
static_assert(HVD_MAX == static_cast<int>(ReduceOp::kMax));
static_assert(HVD_PRODUCT == static_cast<int>(ReduceOp::kProduct));

Status refuse(const std::string& sentence) {
  return Status::make(Code::kInvalidArgument, sentence, "c_api/request");
}

// A request of a plugin that may know fewer fields.
hvd_request complete(const hvd_request& partial) {
  hvd_request request{};
  std::memcpy(&request, &partial, std::min(partial.struct_size, sizeof(request)));
  return request;
}

// The address of empty results: a null pointer would request an allocation.
void* empty_result() {
  alignas(64) static std::byte place[64];
  return place;
}

Result<void*> output_of(const DLTensor& output, const TensorMeta& input, bool same_shape,
                        const std::string& which) {
  const Result<TensorMeta> meta = meta_of(output, which);
  if (!meta) return meta.status();
  const TensorMeta& its = meta.value();
  if (its.dtype != input.dtype || its.device != input.device) {
    return refuse(which + " is not of the type and on the device of its input");
  }
  if (same_shape && its.count() != input.count()) {
    return refuse(which + " has the shape " + shape_text(its.shape) + ", its input " +
                  shape_text(input.shape));
  }
  void* const data = data_of(output);
  if (data == nullptr && its.count() > 0) {
    return refuse(which + " is not empty, but its pointer is null");
  }
  return data == nullptr ? empty_result() : data;
}

// Check a member's share of the rows, which the engine will write.
Status share_fits(const DLTensor& output, const TensorMeta& input, const std::vector<int>& ranks,
                  int rank, const std::string& which) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (input.shape.empty() || found == ranks.end()) return Status::ok();  // the engine reports it
  std::vector<std::int64_t> share = input.shape;
  const auto group_rank = static_cast<std::size_t>(found - ranks.begin());
  const auto rows = static_cast<std::size_t>(input.shape.front());
  share.front() = static_cast<std::int64_t>(slice_begin(rows, group_rank + 1, ranks.size()) -
                                            slice_begin(rows, group_rank, ranks.size()));
  const std::vector<std::int64_t> shape(output.shape, output.shape + output.ndim);
  if (shape == share) return Status::ok();
  return refuse(which + " has the shape " + shape_text(shape) + ", the share of this rank " +
                shape_text(share));
}

Status add_tensor(const Engine& engine, const hvd_request& given, const Row& row, std::size_t i,
                  Call& call) {
  const std::string which = std::to_string(i) + " of " + call.request.name;
  Result<TensorMeta> meta = meta_of(given.inputs[i], "tensor " + which);
  if (!meta) return meta.status();
  Operand operand;
  operand.in = data_of(given.inputs[i]);
  operand.count = static_cast<std::size_t>(meta.value().count());
  if (row.outputs && given.outputs != nullptr) {
    const bool scatters = row.kind == Kind::kReducescatter;
    const std::string its = "output " + which;
    const Result<void*> out = output_of(given.outputs[i], meta.value(), !scatters, its);
    if (!out) return out.status();
    operand.out = out.value();
    const Status fits = !scatters
                            ? Status::ok()
                            : share_fits(given.outputs[i], meta.value(), engine.ranks_of(given.set),
                                         engine.topology().rank, its);
    if (!fits) return fits;
  }
  call.operands.push_back(operand);
  call.request.tensors.push_back(meta.take());
  return Status::ok();
}

Status add_tensors(const Engine& engine, const hvd_request& given, const Row& row, Call& call) {
  const std::string title = lower_name_of(row.kind);
  if (!row.tensors && given.count > 0) return refuse(title + " takes no tensors");
  if (given.count > 0 && given.inputs == nullptr) return refuse(title + " without inputs");
  const bool must = row.outputs && row.kind != Kind::kReducescatter;
  if (must && given.outputs == nullptr) return refuse(title + " without outputs");
  call.operands.reserve(given.count);
  call.request.tensors.reserve(given.count);
  for (std::size_t i = 0; i < given.count; ++i) {
    if (Status status = add_tensor(engine, given, row, i, call); !status) return status;
  }
  return Status::ok();
}

Status add_splits(const Engine& engine, const hvd_request& given, Request& request) {
  if (given.splits_count > 0) {
    if (given.splits == nullptr) return refuse("alltoall without its splits");
    request.sizes.assign(given.splits, given.splits + given.splits_count);
    return Status::ok();
  }
  Result<std::vector<std::int64_t>> shares =
      equal_shares(request, engine.ranks_of(request.set).size());
  if (!shares) return shares.status();
  request.sizes = shares.take();
  return Status::ok();
}

}  // namespace

Result<Call> call_of(const Engine& engine, const hvd_request* their) {
  if (their == nullptr) return refuse("no request was given");
  const hvd_request given = complete(*their);
  const auto* const row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& one) {
    return static_cast<int>(one.kind) == given.kind;
  });
  if (row == kRows.end()) return refuse("there is no kind " + std::to_string(given.kind));
  if (given.done == nullptr) return refuse("a request needs a function `done`");
  Call call;
  if (row->kind == Kind::kSend) {
    call.request = send_request(given.root, given.destination, given.tag, engine.topology().size);
  } else if (row->kind == Kind::kProbe) {
    call.request = probe_request(given.tag);
  } else {
    call.request.kind = row->kind;
    call.request.set = given.set;
  }
  if (given.name != nullptr) call.request.name = given.name;
  if (row->reduces) {
    if (given.op < 0 || given.op >= kReduceOpCount) {
      return refuse("reduction op " + std::to_string(given.op) + " does not exist");
    }
    call.request.op = static_cast<ReduceOp>(given.op);
    call.request.prescale = given.prescale;
    call.request.postscale = given.postscale;
  }
  if (row->kind == Kind::kBroadcast) call.request.root = given.root;
  Status status = add_tensors(engine, given, *row, call);
  if (status && row->kind == Kind::kAlltoall) status = add_splits(engine, given, call.request);
  if (!status) return status;
  call.stream = given.stream;
  call.done = given.done;
  call.context = given.context;
  return call;
}

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
    const Kind kind = task.request.kind;
    if (kind == Kind::kJoin || kind == Kind::kProbe) outcome.number = task.number;
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
