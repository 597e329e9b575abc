#include "collective/cpu_backend.h"

#include <algorithm>

#include "collective/algorithm/adasum.h"
#include "collective/algorithm/broadcast.h"
#include "collective/algorithm/direct.h"
#include "collective/algorithm/exchange.h"
#include "collective/algorithm/gather.h"
#include "collective/algorithm/hierarchical.h"
#include "collective/algorithm/ring.h"
#include "collective/algorithm/shared.h"
#include "collective/algorithm/slices.h"

namespace hvd {
namespace {

constexpr std::size_t kMostKnown = 64;  // teams; more: forget all, they are quickly built
constexpr std::int64_t kLarge = 1'000'000'000'000;
constexpr std::size_t kSegmentBytes = std::size_t{128} << 10U;

// [Carrier][Way]
constexpr const char* kNames[3][8] = {{"SHM_DIRECT", "SHM_SLICES", "SHM_RING", "HIERARCHICAL",
                                       "SHM_SHARED", "SHM_STAR", "SHM_CHAIN", "SHM_PAIRS"},
                                      {"TCP_DIRECT", "TCP_SLICES", "TCP_RING", "HIERARCHICAL",
                                       "TCP_SHARED", "TCP_STAR", "TCP_CHAIN", "TCP_PAIRS"},
                                      {"MPI_DIRECT", "MPI_SLICES", "MPI_RING", "HIERARCHICAL",
                                       "MPI_SHARED", "MPI_STAR", "MPI_CHAIN", "MPI_PAIRS"}};

void copy(void* out, const void* in, std::size_t bytes) {
  if (out != in && bytes > 0) pass_on(out, nullptr, in, bytes);
}

// What goes to, or comes from, every place: one chunk each.
template <typename Make>
Plan by_place(int places, std::size_t longest, const Make& make) {
  std::vector<std::vector<Operand>> chunks;
  chunks.reserve(static_cast<std::size_t>(places));
  for (int place = 0; place < places; ++place)
    chunks.push_back({make(static_cast<std::size_t>(place))});
  return Plan::listed(chunks, 1, longest);
}

Plan shares(const Crew& crew, const std::vector<Scatter>& tensors, std::size_t width,
            std::size_t longest) {
  const auto n = static_cast<std::size_t>(crew.size());
  std::vector<std::vector<Operand>> chunks(n);
  for (std::size_t place = 0; place < n; ++place) {
    const bool own = static_cast<int>(place) == crew.place();
    for (const Scatter& tensor : tensors) {
      const std::size_t begin = tensor.begins[place];
      chunks[place].push_back({static_cast<const std::byte*>(tensor.in) + begin * width,
                               own ? tensor.out : nullptr, tensor.begins[place + 1] - begin});
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

CpuBackend::Known& CpuBackend::known(const Team& team) {
  for (const std::unique_ptr<Known>& known : known_) {
    const Team& other = known->crew.team();
    if (other.id == team.id && other.place == team.place && other.ranks == team.ranks)
      return *known;
  }
  return remember(team);
}

CpuBackend::Known& CpuBackend::remember(const Team& team) {
  if (known_.size() >= kMostKnown) known_.clear();
  known_.push_back(std::make_unique<Known>(mesh_, team, options_.hierarchical_allreduce));
  Known& known = *known_.back();
  for (int place = 0; place < team.size(); ++place) {
    if (place == team.place) continue;
    const std::string kind = mesh_.transport_to(team.ranks[static_cast<std::size_t>(place)]);
    if (kind == "tcp") known.carrier = std::max(known.carrier, kSockets);
    if (kind == "mpi") known.carrier = kPlugin;
  }
  return known;
}

void CpuBackend::used(const Known& of, Way way) { last_ = kNames[of.carrier][way]; }

std::size_t CpuBackend::segment_bytes(const Crew& crew) const {
  const std::size_t wished = options_.segment_bytes > 0 ? options_.segment_bytes : kSegmentBytes;
  return std::min(std::max<std::size_t>(wished, 64), crew.slot_bytes());
}

CpuBackend::Way CpuBackend::way_of(const Crew& crew, std::size_t bytes, std::size_t width) const {
  const auto chosen = [&](std::int64_t size) {
    return choose_allreduce(mesh_.topology(), crew.team(), size, options_);
  };
  Algorithm algorithm = chosen(static_cast<std::int64_t>(bytes));
  const bool fits = bytes <= crew.slot_bytes();
  if (algorithm == Algorithm::kDirect && !fits) algorithm = chosen(kLarge);
  if (algorithm == Algorithm::kDirect && fits) return kDirect;
  if (algorithm == Algorithm::kRing) return kRing;
  // A slot must have room for an element of every slice.
  const bool room = static_cast<std::size_t>(crew.size()) * width <= segment_bytes(crew);
  return algorithm == Algorithm::kHierarchical && room ? kHierarchical : kSlices;
}

Status CpuBackend::allreduce(const Team& team, const std::vector<Operand>& operands,
                             const Reduction& reduction) {
  last_ = "LOCAL";
  if (team.size() == 1) {
    for (const Operand& operand : operands)
      scale(reduction, operand.out, operand.in, operand.count);
    return Status::ok();
  }
  const std::size_t count = elements_of(operands);
  if (count == 0) return Status::ok();
  if (reduction.op == ReduceOp::kAdasum) {
    last_ = "ADASUM";
    return adasum(mesh_, team, operands, reduction.dtype, reduction.scaling);
  }
  Known& with = known(team);
  Crew& crew = with.crew;
  const std::size_t width = size_of(reduction.dtype);
  const Way way = way_of(crew, count * width, width);
  used(with, way);
  if (way == kDirect) return direct(crew, with.order, operands, reduction);
  const std::size_t segment = segment_bytes(crew);
  if (way == kHierarchical) return hierarchical(crew, with.order, operands, reduction, segment);
  const auto n = static_cast<std::size_t>(crew.size());
  if (way == kRing) {
    const std::size_t longest = segment / size_of(wire_dtype(reduction.dtype));
    const Plan plan = Plan::sliced(operands, width, n, longest);
    return speak(crew, allreduce_sentence(crew.place(), crew.size()), plan, reduction);
  }
  const Plan plan = Plan::sliced(operands, width, n, segment / width);
  return slices(crew, with.order, plan, reduction, Results::kToAll);
}

Status CpuBackend::allreduce_shared(const Team& team, const std::vector<Operand>& operands,
                                    const std::vector<std::ptrdiff_t>& offsets,
                                    const Reduction& reduction) {
  if (team.size() == 1) return allreduce(team, operands, reduction);
  Known& with = known(team);
  used(with, kShared);
  return shared(with.crew, with.order, operands, offsets, reduction);
}

Status CpuBackend::broadcast(const Team& team, const std::vector<Operand>& operands,
                             int root_place) {
  last_ = "LOCAL";
  if (team.place == root_place) {
    for (const Operand& operand : operands) copy(operand.out, operand.in, operand.count);
  }
  if (team.size() == 1) return Status::ok();
  Known& with = known(team);
  const std::size_t segment = segment_bytes(with.crew);
  const Shape shape = broadcast_shape(with.crew, elements_of(operands), segment);
  used(with, shape == Shape::kStar ? kStar : kChain);
  return hvd::broadcast(with.crew, operands, root_place, shape, segment);
}

Status CpuBackend::allgather(const Team& team, const std::vector<Gather>& tensors) {
  constexpr Way kWays[] = {kDirect, kRing, kHierarchical};  // by GatherAlgorithm
  last_ = "LOCAL";
  Known& with = known(team);
  if (team.size() == 1)
    return hvd::allgather(mesh_, with.crew, tensors, GatherAlgorithm::kDirect, 1);
  const GatherAlgorithm algorithm =
      gather_algorithm(with.crew, tensors, options_.hierarchical_allgather);
  used(with, kWays[static_cast<int>(algorithm)]);
  return hvd::allgather(mesh_, with.crew, tensors, algorithm, segment_bytes(with.crew));
}

Status CpuBackend::alltoall(const Team& team, const Exchange& exchange) {
  const auto own = static_cast<std::size_t>(team.place);
  last_ = "LOCAL";
  copy(exchange.out[own], exchange.in[own], exchange.in_bytes[own]);
  if (team.size() == 1) return Status::ok();
  Known& with = known(team);
  used(with, kPairs);
  const std::size_t segment = segment_bytes(with.crew);
  const Plan out = by_place(team.size(), segment, [&](std::size_t place) {
    return Operand{exchange.in[place], nullptr, exchange.in_bytes[place]};
  });
  const Plan in = by_place(team.size(), segment, [&](std::size_t place) {
    return Operand{nullptr, exchange.out[place], exchange.out_bytes[place]};
  });
  return hvd::exchange(with.crew, out, in);
}

Status CpuBackend::reducescatter(const Team& team, const std::vector<Scatter>& tensors,
                                 const Reduction& reduction) {
  last_ = "LOCAL";
  if (team.size() == 1) {
    for (const Scatter& tensor : tensors)
      scale(reduction, tensor.out, tensor.in, tensor.begins.back());
    return Status::ok();
  }
  Known& with = known(team);
  used(with, kSlices);
  const std::size_t width = size_of(reduction.dtype);
  const Plan plan = shares(with.crew, tensors, width, segment_bytes(with.crew) / width);
  return slices(with.crew, with.order, plan, reduction, Results::kToOwner);
}

}  // namespace hvd
