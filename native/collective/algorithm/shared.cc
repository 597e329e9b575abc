#include "collective/algorithm/shared.h"

#include <algorithm>

namespace hvd {
namespace {

// Elements per block: it stays in the cache from the fold until it is written for all members.
constexpr std::size_t kBlock = 8192;

class Owner {
 public:
  Owner(CommunicatorContext& context, Order& order, const std::vector<std::ptrdiff_t>& offsets,
        const Reduction& reduction)
      : context_(context),
        order_(order),
        offsets_(offsets),
        reduction_(reduction),
        width_(size_of(reduction.dtype)),
        scaled_(reduction.scaling.before == 1.0 ? 0 : offsets.size() * kBlock * width_) {}

  void fold_slice(const Operand& operand) {
    const auto group_rank = static_cast<std::size_t>(context_.group_rank());
    const auto n = static_cast<std::size_t>(context_.size());
    const std::size_t end = slice_begin(operand.count, group_rank + 1, n);
    for (std::size_t at = slice_begin(operand.count, group_rank, n); at < end;) {
      const std::size_t count = std::min(kBlock, end - at);
      fold_piece(static_cast<std::byte*>(operand.out) + at * width_, count);
      at += count;
    }
  }

 private:
  void fold_piece(std::byte* own, std::size_t count) {
    for (std::size_t group_rank = 0; group_rank < offsets_.size(); ++group_rank) {
      context_.seen()[group_rank] = prepared(own + offsets_[group_rank], group_rank, count);
    }
    order_.fold(reduction_, context_.group_rank(), own, nullptr, 0, context_.seen().data(), count);
    for (int step = 1; step < context_.size(); ++step) {
      const int peer = context_.group_rank_at(step);
      std::byte* const theirs = own + offsets_[static_cast<std::size_t>(peer)];
      context_.store(peer).copy(theirs, own, count * width_);
    }
  }

  const std::byte* prepared(const std::byte* input, std::size_t group_rank, std::size_t count) {
    if (scaled_.empty()) return input;
    std::byte* const scratch = scaled_.data() + group_rank * kBlock * width_;
    prescale(reduction_, scratch, input, count);
    return scratch;
  }

  CommunicatorContext& context_;
  Order& order_;
  const std::vector<std::ptrdiff_t>& offsets_;
  const Reduction& reduction_;
  const std::size_t width_;        // bytes of an element
  std::vector<std::byte> scaled_;  // a block per group rank
};

}  // namespace

Status shared(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
              const std::vector<std::ptrdiff_t>& offsets, const Reduction& reduction) {
  Owner owner(context, order, offsets, reduction);
  for (const Operand& operand : operands) owner.fold_slice(operand);
  if (failpoint("collective.shared_folded")) return tripped("collective.shared_folded");
  for (int step = 1; step < context.size(); ++step) {
    Result<std::byte*> slot = context.acquire(context.group_rank_at(step));
    if (!slot) return slot.status();
    context.publish(context.group_rank_at(step), 0);
  }
  for (int step = 1; step < context.size(); ++step) {
    Result<const std::byte*> slot = context.expect(context.group_rank_at(-step), 0);
    if (!slot) return slot.status();
    context.release(context.group_rank_at(-step));
  }
  return Status::ok();
}

}  // namespace hvd
