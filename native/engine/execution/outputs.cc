#include "engine/execution/outputs.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <string>
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

// Allocate an output of the tensor's shape with another number of rows.
Result<std::byte*> add_output(Task& task, const TensorMeta& tensor, std::int64_t rows,
                              const Placement& placement) {
  auto output = std::make_shared<Buffer>();
  output->dtype = tensor.dtype;
  output->shape = tensor.shape;
  output->shape.front() = rows;
  output->bytes = static_cast<std::size_t>(rows) * bytes_of_row(tensor);
  Status status = output->allocate(placement);
  if (!status && status.code != Code::kUnavailable) return status;
  if (!status) {
    return Status::make(Code::kUnavailable,
                        "no memory for the " + std::to_string(output->bytes) +
                            " bytes that come out of " + task.request.name,
                        "engine/outputs");
  }
  std::byte* const data = output->data();
  task.outputs.push_back(std::move(output));
  return data;
}

// Tensor `index` of the task. rows: per member of the group.
Result<Gather> gather_of(Task& task, std::size_t index, const Group& group,
                         const std::int64_t* rows, const Placement& placement) {
  const TensorMeta& tensor = task.request.tensors[index];
  const auto n = static_cast<std::size_t>(group.size());
  Result<std::byte*> out =
      add_output(task, tensor, std::accumulate(rows, rows + n, std::int64_t{0}), placement);
  if (!out) return out.status();
  Gather gather;
  gather.in = static_cast<const std::byte*>(task.operands[index].in);
  std::byte* at = out.value();
  for (std::size_t group_rank = 0; group_rank < n; ++group_rank) {
    gather.out.push_back(at);
    gather.bytes.push_back(static_cast<std::size_t>(rows[group_rank]) * bytes_of_row(tensor));
    at += gather.bytes.back();
  }
  return gather;
}

std::int64_t gathered_bytes(const Work& work, const Group& group) {
  std::int64_t bytes = 0;
  const std::int64_t* rows = work.response.sizes.data();
  for (const TaskPtr& task : work.tasks) {
    for (const TensorMeta& tensor : task->request.tensors) {
      const std::int64_t all = std::accumulate(rows, rows + group.size(), std::int64_t{0});
      bytes += all * static_cast<std::int64_t>(bytes_of_row(tensor));
      rows += group.size();
    }
  }
  return bytes;
}

std::int64_t exchanged_bytes(const Work& work, const Group& group, int group_rank) {
  const auto n = static_cast<std::size_t>(group.size());
  std::int64_t rows = 0;
  for (std::size_t p = 0; p < n; ++p) {
    rows += work.response.sizes[p * n + static_cast<std::size_t>(group_rank)];
  }
  return rows * static_cast<std::int64_t>(bytes_of_row(work.request(0)->tensors.front()));
}

// Memory of a rank that has joined, which substitutes for all tensors; the other ranks need none.
std::int64_t stand_in_bytes(const Work& work) {
  std::int64_t bytes = 0;
  for (const Request& request : work.response.absent) bytes += request.bytes();
  return bytes;
}

constexpr std::int64_t kMostBytes =
    0x0100'0000'0000'0000;  // of one result; more than any machine has

Status wrong_sizes(const Work& work) {
  return Status::make(
      Code::kInternal,
      "rank 0 sent sizes for " + work.response.names.front() + " that do not fit its tensors",
      "engine/outputs", 0);
}

// True if non-negative counts of elements of `bytes` bytes sum to a possible size in memory.
bool is_possible(const std::int64_t* first, std::size_t count, std::int64_t bytes) {
  std::int64_t most = kMostBytes / std::max<std::int64_t>(bytes, 1);
  for (std::size_t i = 0; i < count; ++i) {
    if (first[i] < 0 || first[i] > most) return false;
    most -= first[i];
  }
  return true;
}

bool gather_fits(const Work& work, const Group& group) {
  const auto n = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t>& sizes = work.response.sizes;
  std::size_t at = 0;
  for (const TaskPtr& task : work.tasks) {
    for (const TensorMeta& tensor : task->request.tensors) {
      if (at + n > sizes.size() || tensor.shape.empty()) return false;
      const std::int64_t* const rows = sizes.data() + at;
      if (!is_possible(rows, n, static_cast<std::int64_t>(bytes_of_row(tensor)))) return false;
      if (rows[group.group_rank] != tensor.shape.front()) return false;
      at += n;
    }
  }
  return at == sizes.size();
}

bool exchange_fits(const Work& work, const Group& group) {
  const auto n = static_cast<std::size_t>(group.size());
  const auto mine = static_cast<std::size_t>(group.group_rank);
  const std::vector<std::int64_t>& sizes = work.response.sizes;
  const TensorMeta& tensor = work.tasks.front()->request.tensors.front();
  const auto row = static_cast<std::int64_t>(bytes_of_row(tensor));
  if (tensor.shape.empty() || sizes.size() != n * n || !is_possible(sizes.data(), n * n, row))
    return false;
  const auto sent = sizes.begin() + static_cast<std::ptrdiff_t>(mine * n);
  const std::int64_t all = std::accumulate(sent, sent + group.size(), std::int64_t{0});
  return all <= tensor.shape.front();
}

}  // namespace

Status sizes_fit(const Work& work, const Group& group) {
  const bool fit = work.response.kind == Kind::kAllgather  ? gather_fits(work, group)
                   : work.response.kind == Kind::kAlltoall ? exchange_fits(work, group)
                                                           : true;
  return fit ? Status::ok() : wrong_sizes(work);
}

std::int64_t needed_bytes(const Work& work, const Group& group, int group_rank) {
  switch (work.response.kind) {
    case Kind::kAllgather:
      return gathered_bytes(work, group);
    case Kind::kAlltoall:
      return exchanged_bytes(work, group, group_rank);
    case Kind::kAllreduce:
      return stand_in_bytes(work);
    default:
      return 0;
  }
}

std::int64_t whole_bytes(const Work& work, const Group& group) {
  std::int64_t bytes = 0;
  switch (work.response.kind) {
    case Kind::kAllgather:
      return gathered_bytes(work, group);
    case Kind::kAlltoall:
      for (int group_rank = 0; group_rank < group.size(); ++group_rank)
        bytes += exchanged_bytes(work, group, group_rank);
      return bytes;
    default:
      for (std::size_t i = 0; i < work.tasks.size(); ++i) bytes += work.request(i)->bytes();
      return bytes;
  }
}

std::int64_t most_needed_bytes(const Work& work, const Group& group) {
  const int different = work.response.kind == Kind::kAlltoall ? group.size() : 1;
  std::int64_t most = 0;
  for (int group_rank = 0; group_rank < different; ++group_rank) {
    most = std::max(most, needed_bytes(work, group, group_rank));
  }
  return most;
}

Result<std::vector<Gather>> gathers_of(const Work& work, const Group& group,
                                       const Placement& placement) {
  std::vector<Gather> gathers;
  const std::int64_t* rows = work.response.sizes.data();
  for (const TaskPtr& task : work.tasks) {
    for (std::size_t i = 0; i < task->request.tensors.size(); ++i) {
      Result<Gather> gather = gather_of(*task, i, group, rows, placement);
      if (!gather) return gather.status();
      gathers.push_back(gather.take());
      rows += group.size();
    }
  }
  return gathers;
}

Result<Exchange> exchange_of(Task& task, const Group& group, const std::vector<std::int64_t>& rows,
                             const Placement& placement) {
  const TensorMeta& tensor = task.request.tensors.front();
  const auto n = static_cast<std::size_t>(group.size());
  const auto mine = static_cast<std::size_t>(group.group_rank);
  for (std::size_t p = 0; p < n; ++p) task.sizes.push_back(rows[p * n + mine]);
  Result<std::byte*> out =
      add_output(task, tensor,
                 std::accumulate(task.sizes.begin(), task.sizes.end(), std::int64_t{0}), placement);
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

Scatter scatter_of(const Task& task, std::size_t index, const Group& group) {
  const TensorMeta& tensor = task.request.tensors[index];
  const auto n = static_cast<std::size_t>(group.size());
  const auto rows = static_cast<std::size_t>(tensor.shape.front());
  const auto row = static_cast<std::size_t>(elements_of_row(tensor));
  Scatter scatter;
  scatter.in = task.operands[index].in;
  for (std::size_t p = 0; p <= n; ++p) scatter.begins.push_back(slice_begin(rows, p, n) * row);
  scatter.out = task.operands[index].out;
  return scatter;
}

Status find_shares(Task& task, const Group& group, const Placement& placement) {
  const auto n = static_cast<std::size_t>(group.size());
  const auto mine = static_cast<std::size_t>(group.group_rank);
  for (std::size_t i = 0; i < task.operands.size(); ++i) {
    const TensorMeta& tensor = task.request.tensors[i];
    if (task.operands[i].out != nullptr) continue;
    const auto rows = static_cast<std::size_t>(tensor.shape.front());
    const std::size_t share = slice_begin(rows, mine + 1, n) - slice_begin(rows, mine, n);
    Result<std::byte*> out = add_output(task, tensor, static_cast<std::int64_t>(share), placement);
    if (!out) return out.status();
    task.operands[i].out = out.value();
  }
  return Status::ok();
}

namespace {

// "4.3 GB"
std::string size_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"kB", "MB", "GB", "TB", "PB"};
  constexpr double kStep = 1000;
  double size = static_cast<double>(bytes) / kStep;
  std::size_t unit = 0;
  for (; size >= kStep && unit + 1 < kUnits.size(); ++unit) size /= kStep;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", size, kUnits[unit]);
  return text.data();
}

// "allgather 'x' and 2 more". The frontends put the kind before the user's name.
std::string operation_text(const Response& response) {
  const std::string kind = lower_name_of(response.kind);
  const std::string& name = response.names.front();
  const bool prefixed = name.rfind(kind + ".", 0) == 0;
  const std::size_t others = response.names.size() - 1;
  return kind + " '" + (prefixed ? name.substr(kind.size() + 1) : name) + "'" +
         (others == 0 ? "" : " and " + std::to_string(others) + " more");
}

Status lacks_memory(const Work& work, const Group& group, int group_rank) {
  const bool reduces = work.response.kind == Kind::kAllreduce;
  const int rank = group.ranks[static_cast<std::size_t>(group_rank)];
  return Status::make(Code::kNoMemory,
                      "rank " + std::to_string(rank) + " has no " +
                          (work.device() == kCpu ? "memory" : "device memory") + " for the " +
                          size_text(needed_bytes(work, group, group_rank)) +
                          (reduces ? " stand-in for " : " output of ") +
                          operation_text(work.response),
                      "engine/vote", rank);
}

}  // namespace

Result<int> first_failing(Backend& backend, const Group& group, bool failed) {
  std::int32_t group_rank = failed ? group.group_rank : group.size();
  Reduction reduction;
  reduction.dtype = Dtype::kInt32;
  reduction.op = ReduceOp::kMin;
  Status status = backend.allreduce(group, {{&group_rank, &group_rank, 1}}, reduction);
  if (!status) return status;
  return group_rank;
}

Result<Ending> vote_on_memory(Backend& backend, const Work& work, const Group& group,
                              const Status& mine) {
  if (!mine && mine.code != Code::kUnavailable) return mine;
  const std::int64_t unvoted = work.device() == kCpu ? kVotedBytes : 0;
  if (most_needed_bytes(work, group) <= unvoted) {
    if (!mine) return mine;
    return Ending();
  }
  const Result<int> group_rank = first_failing(backend, group, !mine);
  if (!group_rank) return group_rank.status();
  if (group_rank.value() == group.size()) return Ending();
  return std::make_shared<const Status>(lacks_memory(work, group, group_rank.value()));
}

}  // namespace hvd
