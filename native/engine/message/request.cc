#include "engine/message/request.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

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
    {"SEND", "send"},
    {"PROBE", "probe"},
}};

}  // namespace

const char* name_of(Kind kind) { return kRows[static_cast<std::size_t>(kind)].upper; }
const char* lower_name_of(Kind kind) { return kRows[static_cast<std::size_t>(kind)].lower; }

int pair_id(int a, int b, int size) {
  const auto [low, high] = std::minmax(a, b);
  if (low < 0 || low == high || high >= size || size > kMostRanksWithPairs) return -1;
  return kFirstPair + low * size + high;
}

std::optional<Pair> pair_of(int id, int size) {
  if (id < kFirstPair || size <= 0) return std::nullopt;
  const Pair pair{(id - kFirstPair) / size, (id - kFirstPair) % size};
  if (pair_id(pair.low, pair.high, size) != id || pair.low > pair.high) return std::nullopt;
  return pair;
}

Request send_request(int source, int destination, std::int64_t tag, int size) {
  Request request;
  request.kind = Kind::kSend;
  request.set = pair_id(source, destination, size);
  request.root = source;
  request.sizes = {tag};
  return request;
}

Request probe_request(std::int64_t tag) {
  Request request;
  request.kind = Kind::kProbe;
  request.sizes = {tag};
  return request;
}

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

namespace {

Status refuse(const std::string& message, Code code = Code::kInvalidArgument) {
  return Status::make(code, message, "engine/validate");
}

// "Allreduce", "Add process set"
std::string title_of(Kind kind) {
  std::string title = lower_name_of(kind);
  title[0] = static_cast<char>(title[0] - 'a' + 'A');
  std::replace(title.begin(), title.end(), '_', ' ');
  return title;
}

bool moves_tensors(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce:
    case Kind::kAllgather:
    case Kind::kBroadcast:
    case Kind::kAlltoall:
    case Kind::kReducescatter:
    case Kind::kSend:
      return true;
    default:
      return false;
  }
}

Status check_shape(const TensorMeta& tensor, const std::string& name) {
  if (tensor.countable()) return Status::ok();
  return refuse("tensor " + name + " has the shape " + shape_text(tensor.shape) +
                ", which is not one that memory can hold");
}

Status check_operand(const Operand& operand, const std::string& name) {
  if (operand.count > 0 && operand.in == nullptr) {
    return refuse("tensor " + name + " is not empty, but its pointer is null");
  }
  return Status::ok();
}

std::string device_text(int device) {
  return device == kCpu ? "the CPU" : "device " + std::to_string(device);
}

// All tensors of an operation are on one device or on the host.
Status check_devices(const Request& request) {
  const int first = request.tensors.empty() ? kCpu : request.tensors.front().device;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const int device = request.tensors[i].device;
    if (device < kCpu) {
      return refuse("tensor " + request.name + " is on " + device_text(device) +
                    ", and no device has a negative number");
    }
    if (device == first) continue;
    return refuse("the tensors of " + request.name + " are not all on one device: tensor 0 is on " +
                  device_text(first) + ", tensor " + std::to_string(i) + " on " +
                  device_text(device) + "; move them to one, or make them several operations");
  }
  return Status::ok();
}

Status check_dtypes(const Request& request) {
  for (const TensorMeta& tensor : request.tensors) {
    if (can_reduce(tensor.dtype, request.op)) continue;
    return refuse(std::string(lower_name_of(request.kind)) + " of " + name_of(tensor.dtype) +
                  " with op " + name_of(request.op) + " is not available (" + request.name +
                  "): " + remedy_of(tensor.dtype, request.op));
  }
  if (std::isfinite(request.prescale) && std::isfinite(request.postscale)) return Status::ok();
  return refuse("the prescale and postscale factors of " + request.name + " must be finite");
}

Status check_reducescatter(const Request& request) {
  if (request.op != ReduceOp::kAverage && request.op != ReduceOp::kSum) {
    return refuse("Reducescatter currently only supports AVERAGE and SUM.", Code::kUnavailable);
  }
  for (const TensorMeta& tensor : request.tensors) {
    if (tensor.shape.empty()) return refuse("Reducescatter does not support scalar inputs");
  }
  return check_dtypes(request);
}

Status check_allgather(const Request& request) {
  for (const TensorMeta& tensor : request.tensors) {
    if (tensor.shape.empty()) {
      return refuse("allgather of " + request.name +
                    " needs a tensor of at least one dimension; reshape it to [1]");
    }
  }
  return Status::ok();
}

Status check_alltoall(const Request& request, std::size_t members) {
  if (request.tensors.size() != 1 || request.tensors.front().shape.empty()) {
    return refuse("alltoall of " + request.name + " needs one tensor of at least one dimension");
  }
  if (request.sizes.size() != members) {
    return refuse("Number of entries in splits does not equal number of workers.");
  }
  std::int64_t rest = request.tensors.front().shape.front();
  for (const std::int64_t rows : request.sizes) {
    if (rows < 0) return refuse("the splits of " + request.name + " must not be negative");
    if (rows > rest) {
      return refuse("Sum of splits entries is greater than the first dimension of tensor.");
    }
    rest -= rows;
  }
  return Status::ok();
}

// On a device: with one tensor, which names the device.
Status check_allocate(const Request& request) {
  if (request.sizes.size() != 1 || request.sizes.front() <= 0)
    return refuse("allocate needs a number of bytes");
  const bool here = request.tensors.empty();
  if (here || (request.tensors.size() == 1 && request.on_device() &&
               request.bytes() == request.sizes.front()))
    return Status::ok();
  return refuse("allocate needs one device at most, and as many bytes there as it asks for");
}

Status check_new_set(const Request& request, int size) {
  std::vector<std::int64_t> ranks = request.sizes;
  std::sort(ranks.begin(), ranks.end());
  const std::string text = shape_text(request.sizes);
  if (ranks.empty()) return refuse("a process set needs at least one rank");
  if (ranks.front() < 0 || ranks.back() >= size) {
    return refuse("Tried to register process set with invalid rank: " + text + " in a job of " +
                  std::to_string(size) + " ranks");
  }
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return refuse("a process set names every rank once at most: " + text);
  }
  return Status::ok();
}

Status check_root(const Request& request, const std::vector<int>& members) {
  if ((request.kind != Kind::kBroadcast && request.kind != Kind::kSend) ||
      std::binary_search(members.begin(), members.end(), request.root)) {
    return Status::ok();
  }
  return refuse(std::string(lower_name_of(request.kind)) + " received invalid root rank " +
                std::to_string(request.root) + " for provided process set");
}

Status check_kind(const Request& request, std::size_t members, int size) {
  switch (request.kind) {
    case Kind::kAllreduce:
      return check_dtypes(request);
    case Kind::kReducescatter:
      return check_reducescatter(request);
    case Kind::kAllgather:
      return check_allgather(request);
    case Kind::kAlltoall:
      return check_alltoall(request, members);
    case Kind::kAddSet:
      return check_new_set(request, size);
    case Kind::kAllocate:
      return check_allocate(request);
    case Kind::kRemoveSet:
    case Kind::kRelease:
    case Kind::kPark:
    case Kind::kSend:
    case Kind::kProbe:
      if (request.sizes.size() == 1) return Status::ok();
      return refuse(std::string(lower_name_of(request.kind)) + " needs one number");
    case Kind::kBroadcast:
    case Kind::kBarrier:
    case Kind::kLeave:
    case Kind::kJoin:
    case Kind::kBlocked:
      return Status::ok();
    case Kind::kTune:
      return refuse("only rank 0 sets tuned parameters");
  }
  return Status::ok();
}

// Operations of all ranks.
bool is_global(Kind kind) { return !moves_tensors(kind) && kind != Kind::kBarrier; }

}  // namespace

Status sensible(const Request& request, std::size_t members, int size) {
  if (is_global(request.kind) && request.set != 0) {
    return refuse(title_of(request.kind) + ": only of all ranks, not of process set " +
                  std::to_string(request.set));
  }
  if ((request.kind == Kind::kSend) != (request.set >= kFirstPair)) {
    return refuse(title_of(request.kind) + ": " +
                  (request.kind == Kind::kSend ? "only between two ranks"
                                               : "needs a process set, not a pair of ranks"));
  }
  if (moves_tensors(request.kind) && request.tensors.empty()) {
    return refuse(request.name + ": a group of no tensors");
  }
  for (const TensorMeta& tensor : request.tensors) {
    if (Status status = check_shape(tensor, request.name); !status) return status;
  }
  if (Status status = check_devices(request); !status) return status;
  return check_kind(request, members, size);
}

Status validate(const Request& request, const std::vector<Operand>& operands, int rank, int size,
                const std::vector<int>& members) {
  const std::string title = title_of(request.kind) + ": ";
  if (request.kind == Kind::kSend && members.empty()) {
    return refuse(title + "source and destination must be different ranks from 0 to " +
                  std::to_string(size - 1) + ", in a job of at most " +
                  std::to_string(kMostRanksWithPairs) + " ranks");
  }
  if (members.empty()) {
    return refuse(title + "Process set provided does not exist, or has not been registered.");
  }
  if (!std::binary_search(members.begin(), members.end(), rank)) {
    return refuse(title + "Rank " + std::to_string(rank) +
                  " is not a member of the provided process set.");
  }
  Status status = sensible(request, members.size(), size);
  if (status) status = check_root(request, members);
  for (std::size_t i = 0; status && i < request.tensors.size(); ++i) {
    status = check_operand(operands[i], request.name);
  }
  return status;
}

Result<std::vector<std::int64_t>> equal_shares(const Request& request, std::size_t members) {
  std::vector<std::int64_t> shares;
  const bool known = !request.tensors.empty() && !request.tensors.front().shape.empty();
  if (!known || members == 0) return shares;
  const std::int64_t rows = request.tensors.front().shape.front();
  const auto ranks = static_cast<std::int64_t>(members);
  if (rows % ranks == 0) {
    shares.assign(members, rows / ranks);
    return shares;
  }
  return refuse(
      "splits not provided, but first dimension of tensor is not an even multiple of the number of "
      "workers.");
}

}  // namespace hvd
