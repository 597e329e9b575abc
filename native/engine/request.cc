#include "engine/request.h"

#include <array>

namespace hvd {

const char* name_of(Kind kind) {
  static constexpr std::array<const char*, kKindCount> kNames{"ALLREDUCE", "ALLGATHER", "BROADCAST",
                                                              "BARRIER", "LEAVE"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* lower_name_of(Kind kind) {
  static constexpr std::array<const char*, kKindCount> kNames{"allreduce", "allgather", "broadcast",
                                                              "barrier", "leave"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::int64_t TensorMeta::count() const {
  std::uint64_t count = 1;  // wraps around on nonsense, which validate() then refuses
  for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
  return static_cast<std::int64_t>(count);
}

std::int64_t Request::bytes() const {
  std::int64_t bytes = 0;
  for (const TensorMeta& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

Status shut_down_by(int rank) {
  return Status::make(
      Code::kShutdown,
      "Horovod has been shut down. This was caused by an exception on one of the ranks or an "
      "attempt "
      "to allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If "
      "the shutdown was caused by an exception, you should see the exception in the log before the "
      "first shutdown message. (Rank " +
          std::to_string(rank) + " has shut down.)",
      "engine/coordinator", rank);
}

}  // namespace hvd
