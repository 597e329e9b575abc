#include "engine/outputs.h"

#include <numeric>
#include <utility>

namespace hvd {
namespace {

std::int64_t elements_of_row(const TensorMeta& tensor) {
  std::int64_t count = 1;
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) count *= tensor.shape[i];
  return count;
}

std::size_t bytes_of_row(const TensorMeta& tensor) {
  return static_cast<std::size_t>(elements_of_row(tensor)) * size_of(tensor.dtype);
}

// The tensor's shape with other rows, in memory of the core.
Result<std::byte*> add_output(Task& task, const TensorMeta& tensor, std::int64_t rows) {
  auto output = std::make_shared<Buffer>();
  output->dtype = tensor.dtype;
  output->shape = tensor.shape;
  output->shape.front() = rows;
  output->bytes = static_cast<std::size_t>(rows) * bytes_of_row(tensor);
  if (!output->allocate()) {
    return Status::make(Code::kUnavailable,
                        "no memory for the " + std::to_string(output->bytes) +
                            " bytes that come out of " + task.request.name,
                        "engine/outputs");
  }
  std::byte* const data = output->data();
  task.outputs.push_back(std::move(output));
  return data;
}

}  // namespace

Result<Gather> gather_of(Task& task, std::size_t index, const Team& team,
                         const std::int64_t* rows) {
  const TensorMeta& tensor = task.request.tensors[index];
  const auto n = static_cast<std::size_t>(team.size());
  Result<std::byte*> out =
      add_output(task, tensor, std::accumulate(rows, rows + n, std::int64_t{0}));
  if (!out) return out.status();
  Gather gather;
  gather.in = static_cast<const std::byte*>(task.operands[index].in);
  std::byte* at = out.value();
  for (std::size_t place = 0; place < n; ++place) {
    gather.out.push_back(at);
    gather.bytes.push_back(static_cast<std::size_t>(rows[place]) * bytes_of_row(tensor));
    at += gather.bytes.back();
  }
  return gather;
}

Result<Exchange> exchange_of(Task& task, const Team& team, const std::vector<std::int64_t>& rows) {
  const TensorMeta& tensor = task.request.tensors.front();
  const auto n = static_cast<std::size_t>(team.size());
  const auto mine = static_cast<std::size_t>(team.place);
  for (std::size_t p = 0; p < n; ++p) task.sizes.push_back(rows[p * n + mine]);
  Result<std::byte*> out = add_output(
      task, tensor, std::accumulate(task.sizes.begin(), task.sizes.end(), std::int64_t{0}));
  if (!out) return out.status();
  Exchange exchange;
  const auto* in = static_cast<const std::byte*>(task.operands.front().in);
  std::byte* at = out.value();
  for (std::size_t p = 0; p < n; ++p) {
    exchange.in.push_back(in);
    exchange.in_bytes.push_back(static_cast<std::size_t>(rows[mine * n + p]) *
                                bytes_of_row(tensor));
    in += exchange.in_bytes.back();
    exchange.out.push_back(at);
    exchange.out_bytes.push_back(static_cast<std::size_t>(task.sizes[p]) * bytes_of_row(tensor));
    at += exchange.out_bytes.back();
  }
  return exchange;
}

Result<Scatter> scatter_of(Task& task, std::size_t index, const Team& team) {
  const TensorMeta& tensor = task.request.tensors[index];
  const auto n = static_cast<std::size_t>(team.size());
  const auto rows = static_cast<std::size_t>(tensor.shape.front());
  const auto row = static_cast<std::size_t>(elements_of_row(tensor));
  Scatter scatter;
  scatter.in = task.operands[index].in;
  for (std::size_t p = 0; p <= n; ++p) scatter.begins.push_back(slice_begin(rows, p, n) * row);
  scatter.out = task.operands[index].out;
  if (scatter.out != nullptr) return scatter;
  const auto mine = static_cast<std::size_t>(team.place);
  const std::size_t share = slice_begin(rows, mine + 1, n) - slice_begin(rows, mine, n);
  Result<std::byte*> out = add_output(task, tensor, static_cast<std::int64_t>(share));
  if (!out) return out.status();
  scatter.out = out.value();
  return scatter;
}

}  // namespace hvd
