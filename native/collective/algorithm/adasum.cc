// Terms.
//   core    the first 2^k members of the group, as many as there are; the others are the surplus
//   chunk   one of as many shares as the core has members: the c-th slices of all vectors, padded
//           with zeros to the same length, one after the other
//   meet    the step of a pair: of their common chunks one member keeps the lower half and one the
//           upper, and receives the peer's version of it, so that each combines half of the
//           vectors. The half that is sent makes room for the received one
// Hence memory is that of one copy, and every byte that is sent is needed. At the end each member
// of the core has one finished chunk, and a gather distributes them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "collective/algorithm/algorithms.h"
#include "collective/backend/communicator_context.h"

namespace hvd {
namespace {

struct Chunks {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
  Chunks half(bool upper) const {
    const std::size_t middle = begin + count() / 2;
    return upper ? Chunks{middle, end} : Chunks{begin, middle};
  }
};

// Layout of the vectors in a chunk.
struct HalvingLayout {
  HalvingLayout(const std::vector<Operand>& operands, std::size_t n_chunks) : chunks(n_chunks) {
    for (const Operand& operand : operands) {
      lengths.push_back((operand.count + n_chunks - 1) / n_chunks);
      elements += lengths.back();
    }
  }
  std::size_t chunks;
  std::size_t elements = 0;          // of a chunk
  std::vector<std::size_t> lengths;  // of each vector's slice
};

// Calls body(operand, first element, how many there are, where in the layout, how many with the
// padding) for every slice of every vector.
template <typename Body>
void for_each_slice(const HalvingLayout& layout, const std::vector<Operand>& operands,
                    const Body& body) {
  std::size_t at = 0;
  for (std::size_t chunk = 0; chunk < layout.chunks; ++chunk) {
    for (std::size_t k = 0; k < operands.size(); ++k) {
      const std::size_t length = layout.lengths[k];
      const std::size_t begin = std::min(chunk * length, operands[k].count);
      body(operands[k], begin, std::min(length, operands[k].count - begin), at, length);
      at += length;
    }
  }
}

// Exchange bytes with a peer that makes the matching call. `in` may be `out`: received bytes
// overwrite sent ones.
Status exchange(CommunicatorContext& context, int peer, const void* out, void* in,
                std::size_t bytes) {
  const std::size_t longest = context.slot_bytes();
  const std::size_t pieces = (bytes + longest - 1) / longest;
  const std::size_t ahead = std::min(context.slots() - 1, pieces);
  for (std::size_t turn = 0; turn < pieces + ahead; ++turn) {
    if (turn < pieces) {
      const std::size_t at = turn * longest, n = std::min(longest, bytes - at);
      const Result<std::byte*> slot = context.acquire(peer);
      if (!slot) return slot.status();
      std::memcpy(slot.value(), static_cast<const std::byte*>(out) + at, n);
      if (failpoint("collective.adasum_filled")) return tripped("collective.adasum_filled");
      context.publish(peer, n);
    }
    if (turn >= ahead) {
      const std::size_t at = (turn - ahead) * longest, n = std::min(longest, bytes - at);
      const Result<const std::byte*> slot = context.expect(peer, n);
      if (!slot) return slot.status();
      std::memcpy(static_cast<std::byte*>(in) + at, slot.value(), n);
      context.release(peer);
    }
  }
  return Status::ok();
}

Status send(CommunicatorContext& context, int peer, const std::byte* out, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += context.slot_bytes()) {
    const std::size_t n = std::min(context.slot_bytes(), bytes - at);
    const Result<std::byte*> slot = context.acquire(peer);
    if (!slot) return slot.status();
    std::memcpy(slot.value(), out + at, n);
    context.publish(peer, n);
  }
  return Status::ok();
}

Status receive(CommunicatorContext& context, int peer, std::byte* in, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += context.slot_bytes()) {
    const std::size_t n = std::min(context.slot_bytes(), bytes - at);
    const Result<const std::byte*> slot = context.expect(peer, n);
    if (!slot) return slot.status();
    std::memcpy(in + at, slot.value(), n);
    context.release(peer);
  }
  return Status::ok();
}

struct Products {
  double ab = 0, aa = 0, bb = 0;
  Products& operator+=(const Products& other) {
    ab += other.ab;
    aa += other.aa;
    bb += other.bb;
    return *this;
  }
};

// Eight independent sums, for instruction-level parallelism.
template <typename Wire>
Products products_of(const Wire* a, const Wire* b, std::size_t count) {
  constexpr std::size_t kSide = 8;
  double ab[kSide] = {}, aa[kSide] = {}, bb[kSide] = {};
  const auto add = [&](std::size_t side, std::size_t i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    ab[side] += x * y;
    aa[side] += x * x;
    bb[side] += y * y;
  };
  std::size_t i = 0;
  for (; i + kSide <= count; i += kSide)
    for (std::size_t side = 0; side < kSide; ++side) add(side, i + side);
  for (; i < count; ++i) add(0, i);
  Products all;
  for (std::size_t side = 0; side < kSide; ++side) all += {ab[side], aa[side], bb[side]};
  return all;
}

double share(double dot, double square) {
  static const double kNothing = std::sqrt(std::numeric_limits<double>::min());
  return square < kNothing ? 1.0 : 1.0 - dot / (2 * square);
}

template <typename Wire>
void put_together(Wire* out, const Wire* a, const Wire* b, std::size_t count,
                  const Products& products) {
  const double of_a = share(products.ab, products.aa), of_b = share(products.ab, products.bb);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<Wire>(of_a * static_cast<double>(a[i]) + of_b * static_cast<double>(b[i]));
  }
}

template <typename Wire>
class Tree {
 public:
  Tree(CommunicatorContext& context, const HalvingLayout& layout, Wire* work)
      : context_(context), layout_(layout), work_(work), products_(layout.lengths.size()) {}

  // Reduce until this member has one finished chunk in `work`, or, in the surplus, has sent
  // everything.
  Status climb() {
    Chunks mine{0, layout_.chunks};
    if (const int partner = partner_in_core(); partner >= 0) return join(partner, mine);
    Status status = Status::ok();
    if (const int partner = partner_in_surplus(); partner >= 0) status = join(partner, mine);
    std::vector<int> peers;
    for (std::size_t distance = 1; status && distance < layout_.chunks; distance *= 2) {
      peers.push_back(across(distance));
      levels_.push_back(mine);
      status = meet(peers.back(), mine, peers);
      mine = mine.half(above(peers.back()));
    }
    finished_ = mine;
    return status;
  }

  Chunks finished() const { return finished_; }

  // From one finished chunk of `bytes` at each member of the core to all of them at all members.
  Status gather(std::byte* sealed, std::size_t bytes) {
    if (const int partner = partner_in_core(); partner >= 0)
      return receive(context_, partner, sealed, layout_.chunks * bytes);
    std::size_t distance = layout_.chunks;
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      distance /= 2;
      const int peer = across(distance);
      const Chunks mine = level->half(above(peer)), others = level->half(!above(peer));
      Status status = exchange(context_, peer, sealed + mine.begin * bytes,
                               sealed + others.begin * bytes, mine.count() * bytes);
      if (!status) return status;
    }
    if (const int partner = partner_in_surplus(); partner >= 0)
      return send(context_, partner, sealed, layout_.chunks * bytes);
    return Status::ok();
  }

 private:
  // -1: this member has none.
  int partner_in_core() const {
    const int partner = context_.group_rank() - static_cast<int>(layout_.chunks);
    return partner >= 0 ? partner : -1;
  }
  int partner_in_surplus() const {
    const int partner = context_.group_rank() + static_cast<int>(layout_.chunks);
    return partner < context_.size() ? partner : -1;
  }
  int across(std::size_t distance) const {
    return static_cast<int>(static_cast<std::size_t>(context_.group_rank()) ^ distance);
  }
  bool above(int peer) const { return context_.group_rank() > peer; }

  Wire* at(const Chunks& chunks) const { return work_ + chunks.begin * layout_.elements; }
  std::size_t bytes_of(const Chunks& chunks) const {
    return chunks.count() * layout_.elements * sizeof(Wire);
  }

  // Combine a member of the surplus with its partner in the core, which has the result afterwards.
  Status join(int peer, const Chunks& all) {
    if (Status status = meet(peer, all, {peer}); !status) return status;
    const Chunks half = all.half(true);
    auto* const bytes = reinterpret_cast<std::byte*>(at(half));
    return above(peer) ? send(context_, peer, bytes, bytes_of(half))
                       : receive(context_, peer, bytes, bytes_of(half));
  }

  // peers: the members with which to sum the products, in order: together with this member's peer
  // they hold all of both vectors.
  Status meet(int peer, const Chunks& all, const std::vector<int>& peers) {
    const bool upper = above(peer);
    const Chunks kept = all.half(upper), given = all.half(!upper);
    Status status = exchange(context_, peer, at(given), at(given), bytes_of(given));
    const Wire* const a = upper ? at(given) : at(kept);
    const Wire* const b = upper ? at(kept) : at(given);
    std::fill(products_.begin(), products_.end(), Products{});
    for_each_piece(kept.count(), [&](std::size_t k, std::size_t begin, std::size_t n) {
      products_[k] += products_of(a + begin, b + begin, n);
    });
    for (std::size_t i = 0; status && i < peers.size(); ++i) status = add_products(peers[i]);
    if (!status) return status;
    for_each_piece(kept.count(), [&](std::size_t k, std::size_t begin, std::size_t n) {
      put_together(at(kept) + begin, a + begin, b + begin, n, products_[k]);
    });
    return status;
  }

  // x + y is y + x to the last bit: all of `peers` get the same sums.
  Status add_products(int peer) {
    std::vector<Products> theirs(products_.size());
    Status status = exchange(context_, peer, products_.data(), theirs.data(),
                             products_.size() * sizeof(Products));
    for (std::size_t k = 0; k < products_.size(); ++k) products_[k] += theirs[k];
    return status;
  }

  // body(vector, first element from the first chunk on, how many).
  template <typename Body>
  void for_each_piece(std::size_t chunks, const Body& body) const {
    std::size_t begin = 0;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::size_t k = 0; k < layout_.lengths.size(); ++k) {
        body(k, begin, layout_.lengths[k]);
        begin += layout_.lengths[k];
      }
    }
  }

  CommunicatorContext& context_;
  const HalvingLayout& layout_;
  Wire* work_;
  std::vector<Products> products_;  // of each vector
  std::vector<Chunks> levels_;      // this member's chunks before each meet, leaves first
  Chunks finished_;
};

template <typename T>
std::unique_ptr<T[]> scratch(std::size_t count) {
  return std::unique_ptr<T[]>(new (std::nothrow) T[count]);
}

template <typename Wire>
Status run(CommunicatorContext& context, const HalvingLayout& layout,
           const std::vector<Operand>& operands, const Reduction& reduction) {
  const std::size_t stored = size_of(reduction.dtype), all = layout.chunks * layout.elements;
  const bool same = stored == sizeof(Wire);
  const auto work = scratch<Wire>(all);
  const auto rounded = scratch<std::byte>(same ? 1 : all * stored);
  if (work == nullptr || rounded == nullptr) {
    return Status::make(Code::kUnavailable,
                        "no memory for Adasum's " + std::to_string(all) + " elements",
                        "collective/adasum");
  }
  for_each_slice(layout, operands,
                 [&](const Operand& operand, std::size_t begin, std::size_t n, std::size_t at,
                     std::size_t padded) {
                   if (n != 0)
                     load(reduction, &work[at],
                          static_cast<const std::byte*>(operand.in) + begin * stored, n);
                   std::fill_n(work.get() + at + n, padded - n, Wire{0});
                 });
  Tree<Wire> tree(context, layout, work.get());
  if (Status status = tree.climb(); !status) return status;
  auto* const sealed = same ? reinterpret_cast<std::byte*>(work.get()) : rounded.get();
  const std::size_t first = tree.finished().begin * layout.elements;
  const std::size_t finished = tree.finished().count() * layout.elements;
  finalize(reduction, sealed + first * stored, work.get() + first, finished);
  if (Status status = tree.gather(sealed, layout.elements * stored); !status) return status;
  for_each_slice(
      layout, operands,
      [&](const Operand& operand, std::size_t begin, std::size_t n, std::size_t at, std::size_t) {
        pass_on(static_cast<std::byte*>(operand.out) + begin * stored, nullptr,
                sealed + at * stored, n * stored);
      });
  return Status::ok();
}

}  // namespace

Status adasum(Mesh& mesh, const Group& group, const std::vector<Operand>& operands, Dtype dtype,
              const Scaling& scaling) {
  const Reduction reduction{dtype, ReduceOp::kSum, scaling};
  if (group.size() == 1) {
    for (const Operand& operand : operands)
      scale(reduction, operand.out, operand.in, operand.count);
    return Status::ok();
  }
  std::size_t core = 1;
  while (core * 2 <= group.ranks.size()) core *= 2;
  const HalvingLayout layout(operands, core);
  if (layout.elements == 0) return Status::ok();
  CommunicatorContext context(mesh, group);
  return wire_dtype(dtype) == Dtype::kFloat64 ? run<double>(context, layout, operands, reduction)
                                              : run<float>(context, layout, operands, reduction);
}

}  // namespace hvd
