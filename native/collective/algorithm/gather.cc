#include "collective/algorithm/gather.h"

#include <algorithm>

#include "collective/algorithm/broadcast.h"
#include "collective/algorithm/exchange.h"
#include "collective/algorithm/ring.h"

namespace hvd {
namespace {

using Chunk = std::vector<Operand>;

constexpr int kFewMembers = 8;                          // for which links always exist
constexpr std::size_t kSmall = std::size_t{64} << 10U;  // bytes of all blocks together

std::size_t index(int number) { return static_cast<std::size_t>(number); }

// The blocks of one member. `in`: where its owner reads them.
void add_blocks(Chunk& chunk, const std::vector<Gather>& tensors, int group_rank,
                bool from_output) {
  for (const Gather& tensor : tensors) {
    std::byte* const out = tensor.out[index(group_rank)];
    chunk.push_back({from_output ? out : tensor.in, out, tensor.bytes[index(group_rank)]});
  }
}

void copy_own(const CommunicatorContext& context, const std::vector<Gather>& tensors) {
  for (const Gather& tensor : tensors) {
    std::byte* const out = tensor.out[index(context.group_rank())];
    const std::size_t bytes = tensor.bytes[index(context.group_rank())];
    if (tensor.in != out) pass_on(out, nullptr, tensor.in, bytes);
  }
}

Status go_round(CommunicatorContext& context, const Plan& plan) {
  return execute(context, allgather_schedule(context.group_rank(), context.size()), plan,
                 plain_bytes());
}

Status gather_chunks(CommunicatorContext& context, const std::vector<Chunk>& chunks,
                     std::size_t segment_bytes) {
  const Plan plan = Plan::listed(chunks, 1, segment_bytes);
  return context.size() <= kFewMembers ? exchange_same(context, plan) : go_round(context, plan);
}

Status within_host(CommunicatorContext& local, const CommunicatorContext& context,
                   const std::vector<Gather>& tensors, std::size_t segment_bytes) {
  std::vector<Chunk> chunks;
  for (const int group_rank : context.group_ranks_on(context.host_of(context.group_rank()))) {
    chunks.emplace_back();
    add_blocks(chunks.back(), tensors, group_rank, false);
  }
  return gather_chunks(local, chunks, segment_bytes);
}

Status between_hosts(Mesh& mesh, const CommunicatorContext& context,
                     const std::vector<Gather>& tensors, std::size_t segment_bytes) {
  std::vector<int> leaders;
  std::vector<Chunk> chunks(index(context.hosts()));
  for (int host = 0; host < context.hosts(); ++host) {
    leaders.push_back(context.group_ranks_on(host).front());
    for (const int group_rank : context.group_ranks_on(host))
      add_blocks(chunks[index(host)], tensors, group_rank, true);
  }
  CommunicatorContext leading(mesh, context.part(leaders));
  return gather_chunks(leading, chunks, segment_bytes);
}

Status spread(CommunicatorContext& local, const CommunicatorContext& context,
              const std::vector<Gather>& tensors, std::size_t segment_bytes) {
  Chunk foreign;
  for (int group_rank = 0; group_rank < context.size(); ++group_rank) {
    if (context.host_of(group_rank) != context.host_of(context.group_rank()))
      add_blocks(foreign, tensors, group_rank, true);
  }
  const Shape shape = broadcast_shape(local, elements_of(foreign), segment_bytes);
  return broadcast(local, foreign, 0, shape, segment_bytes);
}

Status by_hosts(Mesh& mesh, const CommunicatorContext& context, const std::vector<Gather>& tensors,
                std::size_t segment_bytes) {
  const std::vector<int>& group_ranks =
      context.group_ranks_on(context.host_of(context.group_rank()));
  CommunicatorContext local(mesh, context.part(group_ranks));
  if (group_ranks.size() > 1) {
    if (Status status = within_host(local, context, tensors, segment_bytes); !status) return status;
  }
  if (failpoint("collective.gathered_on_host")) return tripped("collective.gathered_on_host");
  if (context.group_rank() == group_ranks.front()) {
    if (Status status = between_hosts(mesh, context, tensors, segment_bytes); !status)
      return status;
  }
  return group_ranks.size() > 1 ? spread(local, context, tensors, segment_bytes) : Status::ok();
}

}  // namespace

GatherAlgorithm gather_algorithm(const CommunicatorContext& context,
                                 const std::vector<Gather>& tensors, bool by_hosts) {
  if (context.hosts() > 1 && by_hosts) return GatherAlgorithm::kByHosts;
  std::size_t bytes = 0;
  for (const Gather& tensor : tensors) {
    for (const std::size_t block : tensor.bytes) bytes += block;
  }
  return context.size() <= kFewMembers || bytes <= kSmall ? GatherAlgorithm::kDirect
                                                          : GatherAlgorithm::kRing;
}

Status allgather(Mesh& mesh, CommunicatorContext& context, const std::vector<Gather>& tensors,
                 GatherAlgorithm algorithm, std::size_t segment_bytes) {
  copy_own(context, tensors);
  if (context.size() == 1) return Status::ok();
  if (algorithm == GatherAlgorithm::kByHosts)
    return by_hosts(mesh, context, tensors, segment_bytes);
  std::vector<Chunk> chunks(index(context.size()));
  for (int group_rank = 0; group_rank < context.size(); ++group_rank)
    add_blocks(chunks[index(group_rank)], tensors, group_rank, false);
  const Plan plan = Plan::listed(chunks, 1, segment_bytes);
  return algorithm == GatherAlgorithm::kDirect ? exchange_same(context, plan)
                                               : go_round(context, plan);
}

}  // namespace hvd
