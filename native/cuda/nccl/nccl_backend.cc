#include "cuda/nccl/nccl_backend.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/device.h"
#include "cuda/nccl/nccl.h"
#include "cuda/nccl/nccl_comm.h"
#include "cuda/staged/staged_backend.h"
#include "tensor/dtype.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/nccl_backend";
// NCCL accepts at least this many calls in one group; all ranks split their lists alike.
constexpr std::size_t kMostGrouped = 512;

bool is_one(const Scaling& scaling) { return scaling.after == 1.0 && scaling.divisor == 1.0; }

// The remaining steps after the sum.
Reduction after_sum(const Reduction& reduction) {
  Reduction rest = reduction;
  rest.scaling.before = 1.0;
  return rest;
}

// NCCL's sums of integers wrap around, which exactly folded sums must not.
std::optional<NcclKind> kind_of(const Reduction& reduction) {
  return folds_exactly(reduction) ? std::nullopt : nccl_kind(reduction.dtype, reduction.op);
}

std::size_t share(const Scatter& tensor, std::size_t group_rank) {
  return tensor.begins[group_rank + 1] - tensor.begins[group_rank];
}

bool all_equal(const std::vector<std::size_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [&](std::size_t number) { return number == numbers.front(); });
}

class NcclBackend : public DeviceBackend {
 public:
  NcclBackend(const BootstrapGroup& bootstrap, const Nccl& nccl,
              std::unique_ptr<DeviceBackend> staged)
      : nccl_(nccl),
        device_(bootstrap.device),
        staged_(std::move(staged)),
        comm_(nccl, bootstrap.device, *bootstrap.mesh) {}

  Communicator& communicator() { return comm_; }

  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override;
  Status broadcast(const Group& group, const std::vector<Operand>& operands,
                   int group_root) override;
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override;
  Status alltoall(const Group& group, const Exchange& exchange) override;
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override;
  const char* last_algorithm() const override { return last_; }
  Status abort_waits() override { return comm_.abort(); }
  void set_self_test(double seconds) override { comm_.set_self_test(seconds); }
  Status health() override { return comm_.health(); }

 private:
  Status enqueue(const std::string& what, const NcclCalls& calls);
  void gather_evenly(const Gather& tensor, NcclCalls& calls);
  void gather_block_by_block(const Group& group, const Gather& tensor, NcclCalls& calls);
  void scatter(const Group& group, const Scatter& tensor, const std::byte* in,
               const Reduction& reduction, const NcclKind& kind, NcclCalls& calls);
  Result<std::shared_ptr<void>> prescaled(const Scatter& tensor, const Reduction& reduction);

  const Nccl& nccl_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<DeviceBackend> staged_;  // for operations that NCCL cannot do
  Communicator comm_;
  const char* last_ = "NCCL";
};

// In groups, all ranks the same.
Status NcclBackend::enqueue(const std::string& what, const NcclCalls& calls) {
  for (std::size_t begin = 0; begin < calls.size(); begin += kMostGrouped) {
    const std::size_t end = std::min(calls.size(), begin + kMostGrouped);
    const NcclCalls part(calls.begin() + static_cast<std::ptrdiff_t>(begin),
                         calls.begin() + static_cast<std::ptrdiff_t>(end));
    if (Status status = comm_.group(what, part); !status) return status;
  }
  return Status::ok();
}

Status NcclBackend::allreduce(const Group& group, const std::vector<Operand>& operands,
                              const Reduction& reduction) {
  last_ = "NCCL_ALLREDUCE";
  const std::optional<NcclKind> kind = kind_of(reduction);
  if (!kind) {
    warn_staged(group, "NCCL", reduction);
    const Status status = staged_->allreduce(group, operands, reduction);
    last_ = staged_->last_algorithm();
    return status;
  }
  const Current current(*device_);
  if (!current) return current.status();
  const bool scaled = reduction.scaling.before != 1.0;
  std::vector<Piece> inputs, results;
  NcclCalls calls;
  for (const Operand& operand : operands) {
    if (operand.count == 0) continue;
    inputs.push_back({operand.in, operand.out, operand.count});
    results.push_back({operand.out, operand.out, operand.count});
    const void* const in = scaled ? operand.out : operand.in;
    calls.emplace_back([this, in, out = operand.out, count = operand.count, kind] {
      return nccl_.AllReduce(in, out, count * kind->parts, kind->type, kind->op, comm_.handle(),
                             device_->stream());
    });
  }
  if (calls.empty()) return Status::ok();
  if (scaled) {
    Status status = device_->kernels().prescale(device_->stream(), reduction, inputs);
    if (!status) return status;
  }
  if (Status status = enqueue("an allreduce", calls); !status) return status;
  if (is_one(reduction.scaling)) return Status::ok();
  return device_->kernels().scale(device_->stream(), after_sum(reduction), results);
}

Status NcclBackend::broadcast(const Group& group, const std::vector<Operand>& operands,
                              int group_root) {
  last_ = "NCCL_BCAST";
  const Current current(*device_);
  if (!current) return current.status();
  NcclCalls calls;
  for (const Operand& operand : operands) {
    if (operand.count == 0) continue;
    // Only the root's input is used.
    const void* const in = group.group_rank == group_root ? operand.in : operand.out;
    calls.emplace_back([this, in, out = operand.out, count = operand.count, group_root] {
      return nccl_.Broadcast(in, out, count, NcclType::kUint8, group_root, comm_.handle(),
                             device_->stream());
    });
  }
  return enqueue("a broadcast", calls);
}

void NcclBackend::gather_evenly(const Gather& tensor, NcclCalls& calls) {
  if (tensor.bytes.front() == 0) return;
  calls.emplace_back(
      [this, in = tensor.in, out = tensor.out.front(), bytes = tensor.bytes.front()] {
        return nccl_.AllGather(in, out, bytes, NcclType::kUint8, comm_.handle(), device_->stream());
      });
}

void NcclBackend::gather_block_by_block(const Group& group, const Gather& tensor,
                                        NcclCalls& calls) {
  for (int group_rank = 0; group_rank < group.size(); ++group_rank) {
    const auto at = static_cast<std::size_t>(group_rank);
    if (tensor.bytes[at] == 0) continue;
    const void* const in = group_rank == group.group_rank ? tensor.in : tensor.out[at];
    calls.emplace_back([this, in, out = tensor.out[at], bytes = tensor.bytes[at], group_rank] {
      return nccl_.Broadcast(in, out, bytes, NcclType::kUint8, group_rank, comm_.handle(),
                             device_->stream());
    });
  }
}

Status NcclBackend::allgather(const Group& group, const std::vector<Gather>& tensors) {
  last_ = "NCCL_ALLGATHER";
  const Current current(*device_);
  if (!current) return current.status();
  NcclCalls calls;
  for (const Gather& tensor : tensors) {
    if (!all_equal(tensor.bytes)) {
      gather_block_by_block(group, tensor, calls);
    } else if (tensor.out.back() - tensor.out.front() ==
               static_cast<std::ptrdiff_t>((tensor.out.size() - 1) * tensor.bytes.front())) {
      gather_evenly(tensor, calls);
    } else {
      return Status::make(Code::kInternal, "the blocks of a gather do not lie one behind the other",
                          kRoom);
    }
  }
  return enqueue("an allgather", calls);
}

// One group of any size: matching sends and receives must be in the same group.
Status NcclBackend::alltoall(const Group& group, const Exchange& exchange) {
  last_ = "NCCL_ALLTOALL";
  const auto own = static_cast<std::size_t>(group.group_rank);
  const Current current(*device_);
  if (!current) return current.status();
  Status status = copy_on(*device_, exchange.out[own], exchange.in[own], exchange.in_bytes[own]);
  if (!status) return status;
  NcclCalls calls;
  for (int step = 1; step < group.size(); ++step) {
    const int to = (group.group_rank + step) % group.size();
    const int from = (group.group_rank + group.size() - step) % group.size();
    const auto in = static_cast<std::size_t>(to);
    const auto out = static_cast<std::size_t>(from);
    if (exchange.in_bytes[in] > 0) {
      calls.emplace_back([this, data = exchange.in[in], bytes = exchange.in_bytes[in], to] {
        return nccl_.Send(data, bytes, NcclType::kUint8, to, comm_.handle(), device_->stream());
      });
    }
    if (exchange.out_bytes[out] > 0) {
      calls.emplace_back([this, data = exchange.out[out], bytes = exchange.out_bytes[out], from] {
        return nccl_.Recv(data, bytes, NcclType::kUint8, from, comm_.handle(), device_->stream());
      });
    }
  }
  return comm_.group("an alltoall", calls);
}

// The whole tensor, prescaled, in separate memory.
Result<std::shared_ptr<void>> NcclBackend::prescaled(const Scatter& tensor,
                                                     const Reduction& reduction) {
  Result<std::shared_ptr<void>> memory =
      device_->allocate(tensor.begins.back() * size_of(reduction.dtype));
  if (!memory) return memory.status();
  Status status = device_->kernels().prescale(
      device_->stream(), reduction, {{tensor.in, memory.value().get(), tensor.begins.back()}});
  if (!status) return status;
  return memory;
}

void NcclBackend::scatter(const Group& group, const Scatter& tensor, const std::byte* in,
                          const Reduction& reduction, const NcclKind& kind, NcclCalls& calls) {
  const auto n = static_cast<std::size_t>(group.size());
  bool even = true;
  for (std::size_t group_rank = 1; group_rank < n; ++group_rank)
    even &= share(tensor, group_rank) == share(tensor, 0);
  if (even) {
    calls.emplace_back([this, in, out = tensor.out, count = share(tensor, 0) * kind.parts, kind] {
      return nccl_.ReduceScatter(in, out, count, kind.type, kind.op, comm_.handle(),
                                 device_->stream());
    });
    return;
  }
  for (int root = 0; root < group.size(); ++root) {
    const auto group_rank = static_cast<std::size_t>(root);
    const std::size_t count = share(tensor, group_rank) * kind.parts;
    if (count == 0) continue;
    const std::byte* const from = in + tensor.begins[group_rank] * size_of(reduction.dtype);
    void* const out = root == group.group_rank ? tensor.out : nullptr;
    calls.emplace_back([this, from, out, count, kind, root] {
      return nccl_.Reduce(from, out, count, kind.type, kind.op, root, comm_.handle(),
                          device_->stream());
    });
  }
}

Status NcclBackend::reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                                  const Reduction& reduction) {
  last_ = "NCCL_REDUCESCATTER";
  const auto own = static_cast<std::size_t>(group.group_rank);
  const std::optional<NcclKind> kind = kind_of(reduction);
  if (!kind) {
    warn_staged(group, "NCCL", reduction);
    const Status status = staged_->reducescatter(group, tensors, reduction);
    last_ = staged_->last_algorithm();
    return status;
  }
  const Current current(*device_);
  if (!current) return current.status();
  std::vector<Operand> results;
  std::vector<std::shared_ptr<void>> scratch;  // freed after the work enqueued here
  NcclCalls calls;
  for (const Scatter& tensor : tensors) {
    if (tensor.begins.back() == 0) continue;
    results.push_back({tensor.out, tensor.out, share(tensor, own)});
    const void* in = tensor.in;
    if (reduction.scaling.before != 1.0) {
      Result<std::shared_ptr<void>> memory = prescaled(tensor, reduction);
      if (!memory) return memory.status();
      in = memory.value().get();
      scratch.push_back(memory.take());
    }
    scatter(group, tensor, static_cast<const std::byte*>(in), reduction, *kind, calls);
  }
  if (Status status = enqueue("a reducescatter", calls); !status) return status;
  if (is_one(reduction.scaling)) return Status::ok();
  return scale_on(*device_, results, after_sum(reduction));
}

// Group rank 0's id, if all members have NCCL.
Result<NcclId> make_id(const BootstrapGroup& bootstrap, const Result<const Nccl*>& nccl) {
  NcclId id{};
  Status status = nccl.status();
  if (status && bootstrap.group.group_rank == 0)
    status = check(*nccl.value(), nccl.value()->GetUniqueId(&id), "ncclGetUniqueId");
  if (!status) {
    status.message = bootstrap.device->site().name + ": " + status.message;
    status.rank = bootstrap.device->site().rank;
  }
  if (Status met = all_went_well(bootstrap, status); !met) return met;
  const Result<std::vector<NcclId>> ids = bootstrap_allgather(bootstrap, id);
  if (!ids) return ids.status();
  return ids.value().front();
}

// A member that cannot begin reports that before the other members wait for it.
Status build(Communicator& comm, const BootstrapGroup& bootstrap, const NcclId& id,
             double start_timeout_s) {
  const Deadline deadline = Deadline::after_seconds(start_timeout_s);
  const Status begun = comm.begin(id, bootstrap.group.size(), bootstrap.group.group_rank);
  if (Status status = all_went_well(bootstrap, begun); !status) return status;
  return all_went_well(bootstrap, comm.wait_ready("building a communicator", deadline));
}

// With NCCL_COMM_BLOCKING=1 NCCL's calls block where no deadline and no abort can end them.
bool blocks() {
  const char* const value = std::getenv("NCCL_COMM_BLOCKING");  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr && std::string(value) == "1";
}

}  // namespace

int nccl_version() {
  if (blocks()) return 0;
  const Result<const Nccl*> nccl = load_nccl("");
  return nccl ? nccl.value()->version : 0;
}

Result<std::unique_ptr<DeviceBackend>> make_nccl_backend(const BootstrapGroup& bootstrap,
                                                         double start_timeout_s) {
  if (bootstrap.group.size() == 1)
    return make_staged_backend(bootstrap);  // which needs no exchange either
  const Result<const Nccl*> nccl = load_nccl("");
  const Result<NcclId> id = make_id(bootstrap, nccl);
  if (!id) return id.status();
  Result<std::unique_ptr<DeviceBackend>> staged = make_staged_backend(bootstrap);
  if (!staged) return staged.status();
  auto backend = std::make_unique<NcclBackend>(bootstrap, *nccl.value(), staged.take());
  const Status trouble = build(backend->communicator(), bootstrap, id.value(), start_timeout_s);
  if (trouble) return std::unique_ptr<DeviceBackend>(std::move(backend));
  if (Status status = backend->abort_waits(); !status) return status;
  return trouble;
}

}  // namespace hvd::cuda
