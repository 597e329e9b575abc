#include "tf/collectives.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tf/memory.h"

namespace hvd::tf {
namespace {

std::int64_t whole_number(TF_OpKernelConstruction* construction, const char* attribute,
                          std::int64_t otherwise) {
  const Status status;
  std::int64_t value = otherwise;
  tf()->OpKernelConstruction_GetAttrInt64(construction, attribute, &value, status.get());
  return status ? value : otherwise;
}

std::int32_t number(TF_OpKernelConstruction* construction, const char* attribute,
                    std::int32_t otherwise) {
  return static_cast<std::int32_t>(whole_number(construction, attribute, otherwise));
}

// TensorFlow's float attributes have 32 bits, so a scale is passed as the bits of a double.
double scale(TF_OpKernelConstruction* construction, const char* attribute) {
  constexpr std::int64_t kOne = 0x3FF0000000000000;
  const std::int64_t bits = whole_number(construction, attribute, kOne);
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool yes(TF_OpKernelConstruction* construction, const char* attribute) {
  const Status status;
  unsigned char value = 0;
  tf()->OpKernelConstruction_GetAttrBool(construction, attribute, &value, status.get());
  return status && value != 0;
}

bool is_number_of_unfolding(const std::string& part) {
  return part.size() > 1 && part[0] == '_' &&
         std::all_of(part.begin() + 1, part.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Status at_least_one_dimension(const Call& call, const char* what) {
  for (const std::vector<std::int64_t>& shape : call.shapes) {
    if (shape.empty()) {
      return {Code::kInvalidArgument,
              std::string(what) + " of " + call.name +
                  " needs a tensor of at least one dimension; reshape it to [1]"};
    }
  }
  return {};
}

}  // namespace

Attributes::Attributes(TF_OpKernelConstruction* construction)
    : op(number(construction, "reduce_op", HVD_SUM)),
      root(number(construction, "root_rank", 0)),
      set(number(construction, "process_set_id", 0)),
      prescale(scale(construction, "prescale_bits")),
      postscale(scale(construction, "postscale_bits")) {
  const TF_StringView node = tf()->OpKernelConstruction_GetName(construction);
  name = wire_name({node.data, node.len}, yes(construction, "ignore_name_scope"));
}

std::string wire_name(const std::string& node, bool last_part_only) {
  if (last_part_only) return node.substr(node.rfind('/') + 1);  // everything without a slash
  std::string name;
  for (std::size_t begin = 0; begin <= node.size();) {
    const std::size_t slash = std::min(node.find('/', begin), node.size());
    const std::string part = node.substr(begin, slash - begin);
    if (!is_number_of_unfolding(part)) name += (name.empty() ? "" : "/") + part;
    begin = slash + 1;
  }
  return name;
}

void Collective::compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): it owns itself until its end
  auto* const call = new Call(this, context, done);
  call->name = attributes_.name;
  call->set = attributes_.set;
  call->step = tf()->StepId(context);
  node_.begin(call->step);
  const int ticket = tf()->NumInputs(context) - 1;
  if (ticket >= 0) {
    if (const Status status = read_ticket(*call, ticket); !status) return end(call, status);
  }
  if (const std::int64_t turn = tf()->GetIterId(context) % kTurns; turn > 0)
    call->name += "#" + std::to_string(turn);
  const Status status = gather(*call, ticket);
  if (!status) return end(call, status);
  begin(call);
}

void Collective::describe(hvd_request* request) const {
  request->kind = kind_;
  request->set = attributes_.set;
  request->op = attributes_.op;
  request->root = attributes_.root;
  request->prescale = attributes_.prescale;
  request->postscale = attributes_.postscale;
}

Status Collective::take(Call& /*call*/, const hvd_outcome& /*outcome*/) const { return {}; }

Status Elementwise::gather(Call& call, int inputs) const {
  for (int i = 0; i < inputs; ++i) {
    if (Status status = read_and_forward(call, i); !status) return status;
  }
  return {};
}

Status Scattered::gather(Call& call, int inputs) const {
  const Engine engine;
  if (!engine) return not_initialized();
  const std::int64_t size = core()->set_size(engine.get(), call.set),
                     rank = core()->set_rank(engine.get(), call.set);
  for (int i = 0; i < inputs; ++i) {
    if (Status status = read(call, i); !status) return status;
    if (call.shapes.back().empty())
      return {Code::kInvalidArgument, "Reducescatter does not support scalar inputs"};
    std::vector<std::int64_t> shape = call.shapes.back();
    // Of a rank outside the set the core says so.
    if (size > 0) shape[0] = shape[0] / size + (rank < shape[0] % size ? 1 : 0);
    const int type = tf()->TensorType(call.held.back().get());
    void* data = nullptr;
    if (Status status = allocate(call, i, shape, type, bytes(shape, call.types.back()), &data);
        !status)
      return status;
    call.output_data.push_back(data);
    call.output_shapes.push_back(std::move(shape));
  }
  return {};
}

Status Gathered::gather(Call& call, int inputs) const {
  for (int i = 0; i < inputs; ++i) {
    if (Status status = read(call, i); !status) return status;
  }
  return at_least_one_dimension(call, "Allgather");
}

Status Gathered::take(Call& call, const hvd_outcome& outcome) const {
  return set_outputs(call, outcome);
}

Status Exchanged::gather(Call& call, int /*inputs*/) const {
  if (Status status = read(call, 0); !status) return status;
  Tensor splits;
  if (Status status = input(call.context, 1, &splits); !status) return status;
  if (tf()->NumDims(splits.get()) != 1) {
    return {Code::kInvalidArgument,
            "the splits of " + call.name + " must be a vector: the rows for each rank"};
  }
  const auto* const rows = static_cast<const std::int32_t*>(tf()->TensorData(splits.get()));
  call.splits.assign(rows, rows + tf()->Dim(splits.get(), 0));
  return at_least_one_dimension(call, "Alltoall");
}

Status Exchanged::take(Call& call, const hvd_outcome& outcome) const {
  if (Status status = set_outputs(call, outcome); !status) return status;
  void* data = nullptr;
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(outcome.sizes_count)};
  Status status =
      allocate(call, 1, shape, kInt32, outcome.sizes_count * sizeof(std::int32_t), &data);
  if (!status) return status;
  for (std::size_t i = 0; i < outcome.sizes_count; ++i) {
    static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(outcome.sizes[i]);
  }
  return status;
}

// Also in a loop under that name, so that it meets one outside of TensorFlow.

Status Met::gather(Call& call, int /*inputs*/) const {
  call.name = attributes().name;
  return {};
}

Status Joined::gather(Call& call, int /*inputs*/) const {
  call.name = attributes().name;
  return {};
}

Status Joined::take(Call& call, const hvd_outcome& outcome) const {
  return put_number(call, 0, static_cast<std::int32_t>(outcome.number));
}

}  // namespace hvd::tf
