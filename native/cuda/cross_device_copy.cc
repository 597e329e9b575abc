#include "cuda/cross_device_copy.h"

#include <utility>

#include "tensor/dtype.h"

namespace hvd::cuda {
namespace {

struct Place {
  const void* address;
  CUcontext context;
};

// Memory that was allocated in stream order is accessible only from its own device; other copies
// must name both devices.
Status copy(const Device& on, const Place& to, const Place& from, std::size_t bytes) {
  const Current current(on);
  if (!current) return current.status();
  const Driver& driver = on.driver();
  return driver.check(
      driver.cuMemcpyPeerAsync(reinterpret_cast<CUdeviceptr>(to.address), to.context,
                               reinterpret_cast<CUdeviceptr>(from.address), from.context, bytes,
                               on.stream()),
      "copying from device to device");
}

}  // namespace

CrossDeviceCopy::CrossDeviceCopy(Backend& at_home, std::shared_ptr<Device> home,
                                 std::shared_ptr<Device> abroad)
    : at_home_(at_home), home_(std::move(home)), abroad_(std::move(abroad)) {}

Status CrossDeviceCopy::begin_copies() {
  rooms_.clear();
  returns_.clear();
  Result<Device::Event> there = abroad_->recorded(abroad_->stream());
  if (!there) return there.status();
  return home_->stream_wait(home_->stream(), there.value().get());
}

Result<std::byte*> CrossDeviceCopy::room(std::size_t bytes) {
  if (bytes == 0) return static_cast<std::byte*>(nullptr);
  Result<std::shared_ptr<void>> memory = home_->allocate(bytes);
  if (!memory) return memory.status();
  rooms_.push_back(memory.take());
  return static_cast<std::byte*>(rooms_.back().get());
}

Result<std::byte*> CrossDeviceCopy::carried(const void* from, std::size_t bytes) {
  Result<std::byte*> at = room(bytes);
  if (!at || bytes == 0) return at;
  Status status = copy(*home_, {at.value(), home_->context()}, {from, abroad_->context()}, bytes);
  if (!status) return status;
  return at;
}

void CrossDeviceCopy::expect(void* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) returns_.push_back({to, from, bytes});
}

Status CrossDeviceCopy::copy_back(const Status& operation) {
  Status status = operation;
  for (const Return& one : returns_)
    if (status)
      status = copy(*home_, {one.to, abroad_->context()}, {one.from, home_->context()}, one.bytes);
  rooms_.clear();
  returns_.clear();
  return status;
}

Result<std::vector<Operand>> CrossDeviceCopy::carry(const std::vector<Operand>& operands,
                                                    std::size_t width) {
  std::vector<Operand> at_home;
  for (const Operand& operand : operands) {
    Result<std::byte*> in = carried(operand.in, operand.count * width);
    if (!in) return in.status();
    at_home.push_back({in.value(), in.value(), operand.count});
    if (operand.out != nullptr) expect(operand.out, in.value(), operand.count * width);
  }
  return at_home;
}

Status CrossDeviceCopy::allreduce(const Group& group, const std::vector<Operand>& operands,
                                  const Reduction& reduction) {
  if (Status status = begin_copies(); !status) return status;
  Result<std::vector<Operand>> at_home = carry(operands, size_of(reduction.dtype));
  if (!at_home) return at_home.status();
  return copy_back(at_home_.allreduce(group, at_home.value(), reduction));
}

Status CrossDeviceCopy::allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                                         const std::vector<std::ptrdiff_t>& offsets,
                                         const Reduction& reduction) {
  return at_home_.allreduce_shared(group, operands, offsets, reduction);
}

// Without data to send there may be no input: pass the output instead.
Status CrossDeviceCopy::broadcast(const Group& group, const std::vector<Operand>& operands,
                                  int group_root) {
  if (Status status = begin_copies(); !status) return status;
  std::vector<Operand> sources = operands;
  for (Operand& operand : sources)
    if (group.group_rank != group_root) operand.in = operand.out;
  Result<std::vector<Operand>> at_home = carry(sources, 1);
  if (!at_home) return at_home.status();
  return copy_back(at_home_.broadcast(group, at_home.value(), group_root));
}

Status CrossDeviceCopy::allgather(const Group& group, const std::vector<Gather>& tensors) {
  if (Status status = begin_copies(); !status) return status;
  std::vector<Gather> at_home = tensors;
  for (Gather& tensor : at_home) {
    Result<std::byte*> in =
        carried(tensor.in, tensor.bytes[static_cast<std::size_t>(group.group_rank)]);
    if (!in) return in.status();
    tensor.in = in.value();
    for (std::size_t group_rank = 0; group_rank < tensor.out.size(); ++group_rank) {
      Result<std::byte*> out = room(tensor.bytes[group_rank]);
      if (!out) return out.status();
      expect(tensor.out[group_rank], out.value(), tensor.bytes[group_rank]);
      tensor.out[group_rank] = out.value();
    }
  }
  return copy_back(at_home_.allgather(group, at_home));
}

Status CrossDeviceCopy::alltoall(const Group& group, const Exchange& exchange) {
  if (Status status = begin_copies(); !status) return status;
  Exchange at_home = exchange;
  for (std::size_t group_rank = 0; group_rank < exchange.in.size(); ++group_rank) {
    Result<std::byte*> in = carried(exchange.in[group_rank], exchange.in_bytes[group_rank]);
    if (!in) return in.status();
    Result<std::byte*> out = room(exchange.out_bytes[group_rank]);
    if (!out) return out.status();
    expect(exchange.out[group_rank], out.value(), exchange.out_bytes[group_rank]);
    at_home.in[group_rank] = in.value();
    at_home.out[group_rank] = out.value();
  }
  return copy_back(at_home_.alltoall(group, at_home));
}

Status CrossDeviceCopy::reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                                      const Reduction& reduction) {
  if (Status status = begin_copies(); !status) return status;
  const std::size_t width = size_of(reduction.dtype);
  const auto group_rank = static_cast<std::size_t>(group.group_rank);
  std::vector<Scatter> at_home = tensors;
  for (Scatter& tensor : at_home) {
    const std::size_t share = tensor.begins[group_rank + 1] - tensor.begins[group_rank];
    Result<std::byte*> in = carried(tensor.in, tensor.begins.back() * width);
    if (!in) return in.status();
    Result<std::byte*> out = room(share * width);
    if (!out) return out.status();
    expect(tensor.out, out.value(), share * width);
    tensor.in = in.value();
    tensor.out = out.value();
  }
  return copy_back(at_home_.reducescatter(group, at_home, reduction));
}

}  // namespace hvd::cuda
