#include "engine/execution/passes.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of_stand_ins(const Work& work) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < work.tasks.size(); ++i) {
    if (work.tasks[i] != nullptr) continue;
    for (const TensorMeta& tensor : work.request(i)->tensors) bytes += aligned(tensor.bytes());
  }
  return bytes;
}

Pass& pass_for(std::vector<Pass>& passes, Dtype dtype, std::int64_t region) {
  for (Pass& pass : passes) {
    if (pass.dtype == dtype && pass.region == region) return pass;
  }
  return passes.emplace_back(Pass{dtype, region, {}, {}});
}

Result<Operand> stand_in(const TensorMeta& tensor, ReduceOp op, const Placement& placement,
                         std::byte* at) {
  const auto count = static_cast<std::size_t>(tensor.count());
  if (placement.accelerator == nullptr) {
    fill_identity(tensor.dtype, op, at, count);
  } else {
    Status status = placement.accelerator->fill_identity(tensor.dtype, op, at, count);
    if (!status) return status;
  }
  return Operand{at, at, count};
}

Status no_room(const Work& work, const Buffer& scratch, const Status& why) {
  if (why.code != Code::kUnavailable) return why;
  return Status::make(Code::kUnavailable,
                      "no memory to stand in for the " + std::to_string(scratch.bytes) +
                          " bytes of " + work.response.names.front(),
                      "engine/passes");
}

}  // namespace

Reduction reduction_of(const Request& request, const Group& group) {
  Reduction reduction;
  reduction.op = request.op;
  reduction.scaling.before = request.prescale;
  reduction.scaling.after = request.postscale;
  if (request.op == ReduceOp::kAverage) reduction.scaling.divisor = group.size();
  return reduction;
}

int Work::device() const {
  for (const TaskPtr& task : tasks) {
    if (task != nullptr) return task->request.on_device() ? task->request.tensors[0].device : kCpu;
  }
  return !response.absent.empty() && response.absent.front().on_device() ? kAnyDevice : kCpu;
}

Result<std::vector<Pass>> passes_of(const Work& work, bool shared, const Placement& placement,
                                    Buffer& scratch) {
  scratch.bytes = bytes_of_stand_ins(work);
  if (scratch.bytes > 0) {
    if (Status status = scratch.allocate(placement); !status) return no_room(work, scratch, status);
  }
  std::vector<Pass> passes;
  std::byte* at = scratch.data();
  for (std::size_t i = 0; i < work.tasks.size(); ++i) {
    const Request& request = *work.request(i);
    for (std::size_t t = 0; t < request.tensors.size(); ++t) {
      const TensorMeta& tensor = request.tensors[t];
      const std::int64_t region = shared ? tensor.place / kRegionSpan : kPrivate;
      Pass& pass = pass_for(passes, tensor.dtype, region);
      if (scratch.bytes > 0) pass.stands_in.push_back(work.tasks[i] == nullptr);
      if (work.tasks[i] != nullptr) {
        pass.operands.push_back(work.tasks[i]->operands[t]);
      } else {
        Result<Operand> operand = stand_in(tensor, request.op, placement, at);
        if (!operand) return operand.status();
        pass.operands.push_back(operand.value());
        at += aligned(tensor.bytes());
      }
    }
  }
  return passes;
}

std::vector<std::ptrdiff_t> offsets_of(const Regions& regions, const Topology& topology,
                                       const Group& group, std::int64_t region) {
  std::vector<std::ptrdiff_t> offsets;
  if (region == kPrivate) return offsets;
  if (regions.is_on_devices(region) && group.size() != topology.size) return offsets;
  const auto host_of = [&](int rank) { return topology.host_of[static_cast<std::size_t>(rank)]; };
  for (const int rank : group.ranks) {
    const auto offset = regions.offset_to(region * kRegionSpan, rank);
    if (!offset || host_of(rank) != host_of(group.ranks.front())) return {};
    offsets.push_back(*offset);
  }
  return offsets;
}

void prescale_own(Pass& pass, Reduction& reduction) {
  const auto& stands_in = pass.stands_in;
  const bool any = std::find(stands_in.begin(), stands_in.end(), true) != stands_in.end();
  if (!any || reduction.scaling.before == 1.0) return;
  for (std::size_t i = 0; i < pass.operands.size(); ++i) {
    if (stands_in[i]) continue;
    Operand& operand = pass.operands[i];
    prescale(reduction, operand.out, operand.in, operand.count);
    operand.in = operand.out;
  }
  reduction.scaling.before = 1.0;
}

}  // namespace hvd
