// What an operation does when all its members are there.
#include <cstring>

#include "fake_nccl/reduce.h"
#include "fake_nccl/world.h"

namespace fake_nccl {
namespace {

// Inputs may be outputs, also of other members: results are made aside first.
using Bytes = std::vector<std::byte>;

const std::byte* at(const void* base, std::size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}

Bytes reduced(const std::vector<Operation*>& members, std::size_t begin, std::size_t count) {
  const Operation& first = *members.front();
  const std::size_t width = size_of(first.type);
  Bytes result(count * width);
  std::vector<const void*> inputs;
  for (const Operation* member : members) inputs.push_back(at(member->in, begin * width));
  reduce(first.type, first.op, result.data(), inputs, count);
  return result;
}

void put(void* out, std::size_t begin, const Bytes& bytes) {
  if (!bytes.empty()) std::memcpy(static_cast<std::byte*>(out) + begin, bytes.data(), bytes.size());
}

Bytes taken(const void* in, std::size_t bytes) {
  return {static_cast<const std::byte*>(in), at(in, bytes)};
}

void scatter(const std::vector<Operation*>& members) {
  const std::size_t share = members.front()->count;
  std::vector<Bytes> results;
  for (std::size_t rank = 0; rank < members.size(); ++rank)
    results.push_back(reduced(members, rank * share, share));
  for (std::size_t rank = 0; rank < members.size(); ++rank)
    put(members[rank]->out, 0, results[rank]);
}

void gather(const std::vector<Operation*>& members) {
  const std::size_t bytes = members.front()->count * size_of(members.front()->type);
  std::vector<Bytes> blocks;
  for (const Operation* member : members) blocks.push_back(taken(member->in, bytes));
  for (const Operation* member : members)
    for (std::size_t rank = 0; rank < blocks.size(); ++rank)
      put(member->out, rank * bytes, blocks[rank]);
}

std::string difference(const Operation& a, const Operation& b) {
  if (a.kind != b.kind) return "different operations";
  if (a.count != b.count)
    return std::to_string(a.count) + " and " + std::to_string(b.count) + " elements";
  if (a.type != b.type) return "different types";
  if (a.op != b.op) return "different operators";
  return a.peer != b.peer ? "different roots" : "";
}

}  // namespace

std::size_t size_of(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
    case NcclType::kUint8:
      return 1;
    case NcclType::kFloat16:
    case NcclType::kBfloat16:
      return 2;
    case NcclType::kInt32:
    case NcclType::kUint32:
    case NcclType::kFloat32:
      return 4;
    default:
      return 8;
  }
}

std::string complete(const std::vector<Operation*>& members) {
  const Operation& first = *members.front();
  for (const Operation* member : members) {
    if (const std::string what = difference(first, *member); !what.empty()) return what;
  }
  const auto root = static_cast<std::size_t>(first.peer);
  switch (first.kind) {
    case Kind::kAllReduce: {
      const Bytes result = reduced(members, 0, first.count);
      for (const Operation* member : members) put(member->out, 0, result);
      break;
    }
    case Kind::kReduce:
      put(members[root]->out, 0, reduced(members, 0, first.count));
      break;
    case Kind::kReduceScatter:
      scatter(members);
      break;
    case Kind::kBroadcast: {
      const Bytes block = taken(members[root]->in, first.count * size_of(first.type));
      for (const Operation* member : members) put(member->out, 0, block);
      break;
    }
    case Kind::kAllGather:
      gather(members);
      break;
    case Kind::kSend:
    case Kind::kRecv:
      break;
  }
  return "";
}

}  // namespace fake_nccl
