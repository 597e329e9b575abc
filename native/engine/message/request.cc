#include "engine/message/request.h"

#include <array>
#include <cstddef>
#include <limits>

namespace hvd {
namespace {

struct Row {
  const char* upper;
  const char* lower;
};

constexpr std::array<Row, kKindCount> kRows{{
    {"ALLREDUCE", "allreduce"},
    {"ALLGATHER", "allgather"},
    {"BROADCAST", "broadcast"},
    {"BARRIER", "barrier"},
    {"LEAVE", "leave"},
    {"ALLTOALL", "alltoall"},
    {"REDUCESCATTER", "reducescatter"},
    {"JOIN", "join"},
    {"ADD_PROCESS_SET", "add_process_set"},
    {"REMOVE_PROCESS_SET", "remove_process_set"},
    {"ALLOCATE", "allocate"},
    {"RELEASE", "release"},
    {"TUNE", "tune"},
    {"PARK", "park"},
    {"BLOCKED", "blocked"},
}};

}  // namespace

const char* name_of(Kind kind) { return kRows[static_cast<std::size_t>(kind)].upper; }
const char* lower_name_of(Kind kind) { return kRows[static_cast<std::size_t>(kind)].lower; }

std::int64_t TensorMeta::count() const {
  std::uint64_t count = 1;  // wraps around for invalid shapes, which validate() then refuses
  for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
  return static_cast<std::int64_t>(count);
}

bool TensorMeta::countable() const {
  constexpr std::int64_t kMost = 72'057'594'037'927'936;  // 2^56
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && product > kMost / extent)) return false;
    product *= extent;
  }
  return shape.size() <= std::numeric_limits<std::uint8_t>::max();
}

std::int64_t Request::bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorMeta& tensor : tensors) bytes += static_cast<std::uint64_t>(tensor.bytes());
  return static_cast<std::int64_t>(bytes);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string shapes_text(const Request& request) {
  constexpr std::size_t kLong = 30;
  std::string text;
  for (const TensorMeta& tensor : request.tensors) {
    if (text.size() > kLong) return text + ", ...";
    text += (text.empty() ? "" : ", ") + shape_text(tensor.shape);
  }
  return text;
}

const char* dtype_text(const Request& request) {
  if (request.tensors.empty()) return "";
  const Dtype first = request.tensors.front().dtype;
  for (const TensorMeta& tensor : request.tensors) {
    if (tensor.dtype != first) return "mixed";
  }
  return name_of(first);
}

Status shut_down_by(int rank) {
  return Status::make(
      Code::kShutdown,
      "Horovod has been shut down. This was caused by an exception on one of the ranks or an "
      "attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished "
      "execution. If the shutdown was caused by an exception, you should see the exception in the "
      "log before the first shutdown message. (Rank " +
          std::to_string(rank) + " has shut down.)",
      "engine/controller", rank);
}

}  // namespace hvd
