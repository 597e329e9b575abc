#include <algorithm>
#include <functional>

#include "collective/algorithm/algorithms.h"
#include "collective/backend/plan.h"
#include "tensor/reduce.h"

namespace hvd {

// Broadcast.

namespace {

constexpr int kLargestStar = 3;  // members, when there is more than one segment
constexpr int kLargestStarOfOne = 32;

Status send_to_all(CommunicatorContext& context, const Segment& segment) {
  for (int step = 1; step < context.size(); ++step) {
    const int peer = context.group_rank_at(step);
    Result<std::byte*> slot = context.acquire(peer);
    if (!slot) return slot.status();
    const std::byte* const end = pack(segment, plain_bytes(), slot.value(), context.store(peer));
    if (failpoint("collective.star_filled")) return tripped("collective.star_filled");
    context.publish(peer, static_cast<std::size_t>(end - slot.value()));
  }
  return Status::ok();
}

Status receive_from_root(CommunicatorContext& context, const Segment& segment, int root) {
  Result<const std::byte*> slot = context.expect(root, elements_of(segment));
  if (!slot) return slot.status();
  unpack(segment, 1, slot.value());
  context.release(root);
  return Status::ok();
}

}  // namespace

Shape broadcast_shape(const CommunicatorContext& context, std::size_t bytes,
                      std::size_t segment_bytes) {
  const int largest = bytes <= segment_bytes ? kLargestStarOfOne : kLargestStar;
  return context.size() <= largest ? Shape::kStar : Shape::kChain;
}

Status broadcast(CommunicatorContext& context, const std::vector<Operand>& operands, int root,
                 Shape shape, std::size_t segment_bytes) {
  const Plan plan = Plan::sliced(operands, 1, 1, segment_bytes);
  if (shape == Shape::kChain) {
    return execute(context, broadcast_schedule(context.group_rank(), context.size(), root), plan,
                   plain_bytes());
  }
  for (std::size_t k = 0; k < plan.segments(); ++k) {
    const Segment segment = plan.segment(0, k);
    Status status = context.group_rank() == root ? send_to_all(context, segment)
                                                 : receive_from_root(context, segment, root);
    if (!status) return status;
  }
  return Status::ok();
}

// Exchange.

namespace {

Status send(CommunicatorContext& context, int peer, const Segment& segment) {
  const std::size_t bytes = elements_of(segment);
  if (bytes == 0) return Status::ok();
  Result<std::byte*> slot = context.acquire(peer);
  if (!slot) return slot.status();
  pack(segment, plain_bytes(), slot.value(), context.store(peer));
  if (failpoint("collective.exchange_filled")) return tripped("collective.exchange_filled");
  context.publish(peer, bytes);
  return Status::ok();
}

Status receive(CommunicatorContext& context, int peer, const Segment& segment) {
  const std::size_t bytes = elements_of(segment);
  if (bytes == 0) return Status::ok();
  Result<const std::byte*> slot = context.expect(peer, bytes);
  if (!slot) return slot.status();
  unpack(segment, 1, slot.value());
  context.release(peer);
  return Status::ok();
}

// own: the chunk that is sent to all; negative: each peer receives its own chunk.
Status run(CommunicatorContext& context, const Plan& out, const Plan& in, int own) {
  const auto chunk = [&](int peer) { return static_cast<std::size_t>(own < 0 ? peer : own); };
  const auto send_all = [&](std::size_t batch) {
    Status status = Status::ok();
    for (int step = 1; step < context.size() && batch < out.segments() && status; ++step) {
      const int peer = context.group_rank_at(step);
      status = send(context, peer, out.segment(chunk(peer), batch));
    }
    return status;
  };
  const auto receive_all = [&](std::size_t batch) {
    Status status = Status::ok();
    for (int step = 1; step < context.size() && batch < in.segments() && status; ++step) {
      const int peer = context.group_rank_at(-step);
      status = receive(context, peer, in.segment(static_cast<std::size_t>(peer), batch));
    }
    return status;
  };
  const std::size_t lag = context.slots() > 1 ? 1 : 0;
  return run_pipeline(std::max(out.segments(), in.segments()),
                      {{0, std::cref(send_all)}, {lag, std::cref(receive_all)}});
}

}  // namespace

Status exchange(CommunicatorContext& context, const Plan& out, const Plan& in) {
  return run(context, out, in, -1);
}

Status exchange_same(CommunicatorContext& context, const Plan& plan) {
  return run(context, plan, plan, context.group_rank());
}

// Allgather.

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
