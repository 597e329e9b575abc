#include "collective/algorithm/gather.h"

#include <algorithm>

#include "collective/algorithm/broadcast.h"
#include "collective/algorithm/exchange.h"
#include "collective/algorithm/ring.h"

namespace hvd {
namespace {

using Chunk = std::vector<Operand>;

constexpr int kFewMembers = 8;                          // for all of which there are always links
constexpr std::size_t kSmall = std::size_t{64} << 10U;  // bytes of all blocks together

std::size_t index(int number) { return static_cast<std::size_t>(number); }

// The blocks of one place. `in`: where its owner reads them.
void add_blocks(Chunk& chunk, const std::vector<Gather>& tensors, int place, bool from_output) {
  for (const Gather& tensor : tensors) {
    std::byte* const out = tensor.out[index(place)];
    chunk.push_back({from_output ? out : tensor.in, out, tensor.bytes[index(place)]});
  }
}

void copy_own(const Crew& crew, const std::vector<Gather>& tensors) {
  for (const Gather& tensor : tensors) {
    std::byte* const out = tensor.out[index(crew.place())];
    const std::size_t bytes = tensor.bytes[index(crew.place())];
    if (tensor.in != out) pass_on(out, nullptr, tensor.in, bytes);
  }
}

Status go_round(Crew& crew, const Plan& plan) {
  return speak(crew, allgather_sentence(crew.place(), crew.size()), plan, plain_bytes());
}

Status gather_chunks(Crew& crew, const std::vector<Chunk>& chunks, std::size_t segment_bytes) {
  const Plan plan = Plan::listed(chunks, 1, segment_bytes);
  return crew.size() <= kFewMembers ? exchange_same(crew, plan) : go_round(crew, plan);
}

Status within_host(Crew& local, const Crew& crew, const std::vector<Gather>& tensors,
                   std::size_t segment_bytes) {
  std::vector<Chunk> chunks;
  for (const int place : crew.places_on(crew.host_of(crew.place()))) {
    chunks.emplace_back();
    add_blocks(chunks.back(), tensors, place, false);
  }
  return gather_chunks(local, chunks, segment_bytes);
}

Status between_hosts(Mesh& mesh, const Crew& crew, const std::vector<Gather>& tensors,
                     std::size_t segment_bytes) {
  std::vector<int> leaders;
  std::vector<Chunk> chunks(index(crew.hosts()));
  for (int host = 0; host < crew.hosts(); ++host) {
    leaders.push_back(crew.places_on(host).front());
    for (const int place : crew.places_on(host))
      add_blocks(chunks[index(host)], tensors, place, true);
  }
  Crew leading(mesh, crew.part(leaders));
  return gather_chunks(leading, chunks, segment_bytes);
}

Status spread(Crew& local, const Crew& crew, const std::vector<Gather>& tensors,
              std::size_t segment_bytes) {
  Chunk foreign;
  for (int place = 0; place < crew.size(); ++place) {
    if (crew.host_of(place) != crew.host_of(crew.place()))
      add_blocks(foreign, tensors, place, true);
  }
  const Shape shape = broadcast_shape(local, elements_of(foreign), segment_bytes);
  return broadcast(local, foreign, 0, shape, segment_bytes);
}

Status by_hosts(Mesh& mesh, const Crew& crew, const std::vector<Gather>& tensors,
                std::size_t segment_bytes) {
  const std::vector<int>& places = crew.places_on(crew.host_of(crew.place()));
  Crew local(mesh, crew.part(places));
  if (places.size() > 1) {
    if (Status status = within_host(local, crew, tensors, segment_bytes); !status) return status;
  }
  if (failpoint("collective.gathered_on_host")) return tripped("collective.gathered_on_host");
  if (crew.place() == places.front()) {
    if (Status status = between_hosts(mesh, crew, tensors, segment_bytes); !status) return status;
  }
  return places.size() > 1 ? spread(local, crew, tensors, segment_bytes) : Status::ok();
}

}  // namespace

GatherAlgorithm gather_algorithm(const Crew& crew, const std::vector<Gather>& tensors,
                                 bool by_hosts) {
  if (crew.hosts() > 1 && by_hosts) return GatherAlgorithm::kByHosts;
  std::size_t bytes = 0;
  for (const Gather& tensor : tensors) {
    for (const std::size_t block : tensor.bytes) bytes += block;
  }
  return crew.size() <= kFewMembers || bytes <= kSmall ? GatherAlgorithm::kDirect
                                                       : GatherAlgorithm::kRing;
}

Status allgather(Mesh& mesh, Crew& crew, const std::vector<Gather>& tensors,
                 GatherAlgorithm algorithm, std::size_t segment_bytes) {
  copy_own(crew, tensors);
  if (crew.size() == 1) return Status::ok();
  if (algorithm == GatherAlgorithm::kByHosts) return by_hosts(mesh, crew, tensors, segment_bytes);
  std::vector<Chunk> chunks(index(crew.size()));
  for (int place = 0; place < crew.size(); ++place)
    add_blocks(chunks[index(place)], tensors, place, false);
  const Plan plan = Plan::listed(chunks, 1, segment_bytes);
  return algorithm == GatherAlgorithm::kDirect ? exchange_same(crew, plan) : go_round(crew, plan);
}

}  // namespace hvd
