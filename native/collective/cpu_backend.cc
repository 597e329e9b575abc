#include "collective/cpu_backend.h"

#include <algorithm>
#include <memory>

#include "collective/algorithm/algorithms.h"

namespace hvd {
namespace {

constexpr std::size_t kMostKnown =
    64;  // groups; with more, all are dropped, because they are cheap to build
constexpr std::int64_t kLarge = 1'000'000'000'000;
constexpr std::size_t kSegmentBytes = std::size_t{128} << 10U;
// Between hosts a chunk of this size is split in two: the link carries one part while the other is
// added (256 KiB on two hosts, 1 Gbit/s: 3.5 ms instead of 4.5).
constexpr std::size_t kNetworkSegmentBytes = std::size_t{64} << 10U;

// [Carrier][Pattern]
constexpr const char* kNames[3][8] = {{"SHM_DIRECT", "SHM_SLICES", "SHM_RING", "HIERARCHICAL",
                                       "SHM_SHARED", "SHM_STAR", "SHM_CHAIN", "SHM_PAIRS"},
                                      {"TCP_DIRECT", "TCP_SLICES", "TCP_RING", "HIERARCHICAL",
                                       "TCP_SHARED", "TCP_STAR", "TCP_CHAIN", "TCP_PAIRS"},
                                      {"MPI_DIRECT", "MPI_SLICES", "MPI_RING", "HIERARCHICAL",
                                       "MPI_SHARED", "MPI_STAR", "MPI_CHAIN", "MPI_PAIRS"}};

void copy(void* out, const void* in, std::size_t bytes) {
  if (out != in && bytes > 0) pass_on(out, nullptr, in, bytes);
}

// What is sent to, or received from, every member: one chunk each.
template <typename Make>
Plan by_group_rank(int group_ranks, std::size_t longest, const Make& make) {
  std::vector<std::vector<Operand>> chunks;
  chunks.reserve(static_cast<std::size_t>(group_ranks));
  for (int group_rank = 0; group_rank < group_ranks; ++group_rank)
    chunks.push_back({make(static_cast<std::size_t>(group_rank))});
  return Plan::listed(chunks, 1, longest);
}

Plan shares(const CommunicatorContext& context, const std::vector<Scatter>& tensors,
            std::size_t width, std::size_t longest) {
  const auto n = static_cast<std::size_t>(context.size());
  std::vector<std::vector<Operand>> chunks(n);
  for (std::size_t group_rank = 0; group_rank < n; ++group_rank) {
    const bool own = static_cast<int>(group_rank) == context.group_rank();
    for (const Scatter& tensor : tensors) {
      const std::size_t begin = tensor.begins[group_rank];
      chunks[group_rank].push_back({static_cast<const std::byte*>(tensor.in) + begin * width,
                                    own ? tensor.out : nullptr,
                                    tensor.begins[group_rank + 1] - begin});
    }
  }
  return Plan::listed(chunks, width, longest);
}

}  // namespace

CpuBackend::CpuBackend(Mesh& mesh, const AlgorithmOptions& options)
    : mesh_(mesh), options_(options) {}

void CpuBackend::set_options(const AlgorithmOptions& options) {
  options_ = options;
  known_.clear();  // their order depends on the options
}

CpuBackend::Known& CpuBackend::known(const Group& group) {
  Known* const met = known_.find(group);
  return met != nullptr ? *met : remember(group);
}

CpuBackend::Known& CpuBackend::remember(const Group& group) {
  if (known_.size() >= kMostKnown) known_.clear();
  Known& known = known_.add(group, std::make_unique<Known>(mesh_, group, options_));
  for (int group_rank = 0; group_rank < group.size(); ++group_rank) {
    if (group_rank == group.group_rank) continue;
    const std::string kind = mesh_.transport_to(group.ranks[static_cast<std::size_t>(group_rank)]);
    if (kind == "tcp") known.carrier = std::max(known.carrier, kSockets);
    if (kind == "mpi") known.carrier = kPlugin;
  }
  return known;
}

void CpuBackend::used(const Known& of, Pattern pattern) { last_ = kNames[of.carrier][pattern]; }

std::size_t CpuBackend::segment_bytes(const CommunicatorContext& context) const {
  const std::size_t wished = options_.segment_bytes > 0 ? options_.segment_bytes : kSegmentBytes;
  return std::min(std::max<std::size_t>(wished, 64), context.slot_bytes());
}

CpuBackend::Pattern CpuBackend::pattern_of(const CommunicatorContext& context, std::size_t bytes,
                                           std::size_t width) const {
  const auto chosen = [&](std::int64_t size) {
    return choose_allreduce(mesh_.topology(), context.group(), size, options_);
  };
  Algorithm algorithm = chosen(static_cast<std::int64_t>(bytes));
  const bool fits = bytes <= context.slot_bytes();
  if (algorithm == Algorithm::kDirect && !fits) algorithm = chosen(kLarge);
  if (algorithm == Algorithm::kDirect && fits) return kDirect;
  if (algorithm == Algorithm::kRing) return kRing;
  // A slot must have room for an element of every slice.
  const bool room = static_cast<std::size_t>(context.size()) * width <= segment_bytes(context);
  return algorithm == Algorithm::kHierarchical && room ? kHierarchical : kSlices;
}

Status CpuBackend::allreduce(const Group& group, const std::vector<Operand>& operands,
                             const Reduction& reduction) {
  last_ = "LOCAL";
  if (group.size() == 1) {
    for (const Operand& operand : operands)
      scale(reduction, operand.out, operand.in, operand.count);
    return Status::ok();
  }
  const std::size_t count = elements_of(operands);
  if (count == 0) return Status::ok();
  if (reduction.op == ReduceOp::kAdasum) {
    last_ = "ADASUM";
    return adasum(mesh_, group, operands, reduction.dtype, reduction.scaling);
  }
  Known& with = known(group);
  CommunicatorContext& context = with.context;
  const std::size_t width = size_of(reduction.dtype);
  Pattern pattern = pattern_of(context, count * width, width);
  if (pattern != kDirect && folds_exactly(reduction)) pattern = kSlices;  // no partial sums
  used(with, pattern);
  if (pattern == kDirect) return direct(context, with.order, operands, reduction);
  const std::size_t segment = segment_bytes(context);
  if (pattern == kHierarchical)
    return hierarchical(mesh_, context, with.order, operands, reduction,
                        {segment, options_.torus_hosts});
  const auto n = static_cast<std::size_t>(context.size());
  if (pattern == kRing) {
    const std::size_t longest = segment / size_of(wire_dtype(reduction.dtype));
    const Plan plan = Plan::sliced(operands, width, n, longest);
    return execute(context, allreduce_schedule(context.group_rank(), context.size()), plan,
                   reduction);
  }
  const std::size_t longest =
      context.hosts() > 1 ? std::min(segment, kNetworkSegmentBytes) : segment;
  const Plan plan = Plan::sliced(operands, width, n, longest / width);
  return slices(context, with.order, plan, reduction, Results::kToAll);
}

bool CpuBackend::is_single_exchange(const Group& group, std::size_t count, Dtype dtype) {
  if (group.size() == 1 || count == 0) return false;
  const std::size_t width = size_of(dtype);
  return pattern_of(known(group).context, count * width, width) == kDirect;
}

Status CpuBackend::allreduce_sent(const Group& group, const std::vector<Operand>& operands,
                                  const Reduction& reduction) {
  Known& with = known(group);
  used(with, kDirect);
  return direct_sent(with.context, with.order, operands, reduction);
}

Status CpuBackend::fold_seen(Known& with, const std::vector<Operand>& operands,
                             const Reduction& reduction) {
  used(with, kDirect);
  direct_fold(with.context, with.order, operands, reduction);
  return Status::ok();
}

Status CpuBackend::allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                                    const std::vector<std::ptrdiff_t>& offsets,
                                    const Reduction& reduction) {
  if (group.size() == 1) return allreduce(group, operands, reduction);
  Known& with = known(group);
  used(with, kShared);
  return shared(with.context, with.order, operands, offsets, reduction);
}

Status CpuBackend::broadcast(const Group& group, const std::vector<Operand>& operands,
                             int group_root) {
  last_ = "LOCAL";
  if (group.group_rank == group_root) {
    for (const Operand& operand : operands) copy(operand.out, operand.in, operand.count);
  }
  if (group.size() == 1) return Status::ok();
  Known& with = known(group);
  const std::size_t segment = segment_bytes(with.context);
  const Shape shape = broadcast_shape(with.context, elements_of(operands), segment);
  used(with, shape == Shape::kStar ? kStar : kChain);
  return hvd::broadcast(with.context, operands, group_root, shape, segment);
}

Status CpuBackend::allgather(const Group& group, const std::vector<Gather>& tensors) {
  constexpr Pattern kWays[] = {kDirect, kRing, kHierarchical};  // by GatherAlgorithm
  last_ = "LOCAL";
  Known& with = known(group);
  if (group.size() == 1)
    return hvd::allgather(mesh_, with.context, tensors, GatherAlgorithm::kDirect, 1);
  const GatherAlgorithm algorithm =
      gather_algorithm(with.context, tensors, options_.hierarchical_allgather);
  used(with, kWays[static_cast<int>(algorithm)]);
  return hvd::allgather(mesh_, with.context, tensors, algorithm, segment_bytes(with.context));
}

Status CpuBackend::alltoall(const Group& group, const Exchange& exchange) {
  const auto own = static_cast<std::size_t>(group.group_rank);
  last_ = "LOCAL";
  copy(exchange.out[own], exchange.in[own], exchange.in_bytes[own]);
  if (group.size() == 1) return Status::ok();
  Known& with = known(group);
  used(with, kPairs);
  const std::size_t segment = segment_bytes(with.context);
  const Plan out = by_group_rank(group.size(), segment, [&](std::size_t group_rank) {
    return Operand{exchange.in[group_rank], nullptr, exchange.in_bytes[group_rank]};
  });
  const Plan in = by_group_rank(group.size(), segment, [&](std::size_t group_rank) {
    return Operand{nullptr, exchange.out[group_rank], exchange.out_bytes[group_rank]};
  });
  return hvd::exchange(with.context, out, in);
}

Status CpuBackend::reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                                 const Reduction& reduction) {
  last_ = "LOCAL";
  if (group.size() == 1) {
    for (const Scatter& tensor : tensors)
      scale(reduction, tensor.out, tensor.in, tensor.begins.back());
    return Status::ok();
  }
  Known& with = known(group);
  used(with, kSlices);
  const std::size_t width = size_of(reduction.dtype);
  const Plan plan = shares(with.context, tensors, width, segment_bytes(with.context) / width);
  return slices(with.context, with.order, plan, reduction, Results::kToOwner);
}

}  // namespace hvd
