#include <algorithm>

#include "collective/algorithm/algorithms.h"
#include "collective/backend/plan.h"

namespace hvd {

// Direct.

namespace {

// The source of this rank's operand: its output if it was prescaled.
const std::byte* source(const Operand& operand, const Reduction& reduction) {
  return static_cast<const std::byte*>(reduction.scaling.before == 1.0 ? operand.in : operand.out);
}

Status send(CommunicatorContext& context, int peer, const std::vector<Operand>& operands,
            const Reduction& reduction) {
  Result<std::byte*> slot = context.acquire(peer);
  if (!slot) return slot.status();
  const std::size_t width = size_of(reduction.dtype);
  std::size_t filled = 0;
  for (const Operand& operand : operands) {
    context.store(peer).copy(slot.value() + filled, source(operand, reduction),
                             operand.count * width);
    filled += operand.count * width;
  }
  context.publish(peer, filled);
  return Status::ok();
}

// `inputs`: where the operand begins at every member.
void fold_operand(const CommunicatorContext& context, Order& order, const Operand& operand,
                  const Reduction& reduction, std::vector<const std::byte*>& inputs) {
  const auto n = static_cast<std::size_t>(context.size());
  const std::size_t width = size_of(reduction.dtype);
  auto* out = static_cast<std::byte*>(operand.out);
  for (int slice = 0; slice < context.size(); ++slice) {
    const auto number = static_cast<std::size_t>(slice);
    const std::size_t count =
        slice_begin(operand.count, number + 1, n) - slice_begin(operand.count, number, n);
    if (count > 0) order.fold(reduction, slice, out, nullptr, 0, inputs.data(), count);
    out += count * width;
    for (const std::byte*& input : inputs) input += count * width;
  }
}

}  // namespace

Status direct(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
              const Reduction& reduction) {
  if (reduction.scaling.before != 1.0) {
    for (const Operand& operand : operands)
      prescale(reduction, operand.out, operand.in, operand.count);
  }
  for (int step = 1; step < context.size(); ++step) {
    if (Status status = send(context, context.group_rank_at(step), operands, reduction); !status)
      return status;
  }
  if (failpoint("collective.direct_sent")) return tripped("collective.direct_sent");
  return direct_sent(context, order, operands, reduction);
}

Status direct_sent(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                   const Reduction& reduction) {
  std::vector<const std::byte*>& inputs = context.seen();
  const std::size_t bytes = elements_of(operands) * size_of(reduction.dtype);
  for (int step = 1; step < context.size(); ++step) {
    const int peer = context.group_rank_at(step);
    Result<const std::byte*> slot = context.expect(peer, bytes);
    if (!slot) return slot.status();
    inputs[static_cast<std::size_t>(peer)] = slot.value();
  }
  direct_fold(context, order, operands, reduction);
  for (int step = 1; step < context.size(); ++step) context.release(context.group_rank_at(step));
  return Status::ok();
}

void direct_fold(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                 const Reduction& reduction) {
  std::vector<const std::byte*>& inputs = context.seen();
  for (const Operand& operand : operands) {
    inputs[static_cast<std::size_t>(context.group_rank())] = source(operand, reduction);
    fold_operand(context, order, operand, reduction, inputs);
  }
}

// Slices.

namespace {

class Slices {
 public:
  Slices(CommunicatorContext& context, Order& order, const Plan& plan, const Reduction& reduction,
         bool to_all)
      : context_(context),
        order_(order),
        plan_(plan),
        reduction_(reduction),
        width_(size_of(reduction.dtype)),
        to_all_(to_all) {}

  Status send_inputs(std::size_t batch) {
    for (int step = 1; step < context_.size(); ++step) {
      const int peer = context_.group_rank_at(step);
      Result<std::byte*> slot = context_.acquire(peer);
      if (!slot) return slot.status();
      const std::byte* const end =
          pack(segment(peer, batch), reduction_, slot.value(), context_.store(peer));
      if (failpoint("collective.slices_filled")) return tripped("collective.slices_filled");
      context_.publish(peer, static_cast<std::size_t>(end - slot.value()));
    }
    return Status::ok();
  }

  Status fold_own(std::size_t batch) {
    const Segment mine = segment(context_.group_rank(), batch);
    const std::size_t bytes = elements_of(mine) * width_;
    if (Status status = acquire_slots(bytes); !status) return status;
    for (const Span& span : mine) {
      fold_span(span);
      for (void*& slot : context_.slots_out())
        slot = static_cast<std::byte*>(slot) + span.count * width_;
      for (const std::byte*& slot : context_.seen()) slot += span.count * width_;
    }
    if (failpoint("collective.slices_folded")) return tripped("collective.slices_folded");
    for (int step = 1; step < context_.size(); ++step) {
      if (to_all_) context_.publish(context_.group_rank_at(step), bytes);
      context_.release(context_.group_rank_at(step));
    }
    return Status::ok();
  }

  Status copy_out(std::size_t batch) {
    for (int step = 1; step < context_.size(); ++step) {
      const int peer = context_.group_rank_at(step);
      const Segment theirs = segment(peer, batch);
      Result<const std::byte*> slot = context_.expect(peer, elements_of(theirs) * width_);
      if (!slot) return slot.status();
      unpack(theirs, width_, slot.value());
      context_.release(peer);
    }
    return Status::ok();
  }

 private:
  Segment segment(int group_rank, std::size_t batch) const {
    return plan_.segment(static_cast<std::size_t>(group_rank), batch);
  }

  // A slot from every peer with its input, and a slot to every peer for the result.
  Status acquire_slots(std::size_t bytes) {
    for (int step = 1; step < context_.size(); ++step) {
      const int peer = context_.group_rank_at(step);
      Result<const std::byte*> from = context_.expect(peer, bytes);
      if (!from) return from.status();
      context_.seen()[static_cast<std::size_t>(peer)] = from.value();
    }
    std::vector<void*>& out = context_.slots_out();
    out.clear();
    for (int step = 1; to_all_ && step < context_.size(); ++step) {
      Result<std::byte*> to = context_.acquire(context_.group_rank_at(step));
      if (!to) return to.status();
      out.push_back(to.value());
    }
    return Status::ok();
  }

  void fold_span(const Span& span) {
    context_.seen()[static_cast<std::size_t>(context_.group_rank())] = prescaled(span, reduction_);
    order_.fold(reduction_, context_.group_rank(), span.out, nullptr, 0, context_.seen().data(),
                span.count);
    // Not written by the fold: lines that a kernel stores into a slot must first be fetched from
    // the peer's cache.
    int step = 0;
    for (void* const slot : context_.slots_out())
      context_.store(context_.group_rank_at(++step)).copy(slot, span.out, span.count * width_);
  }

  CommunicatorContext& context_;
  Order& order_;
  const Plan& plan_;
  const Reduction& reduction_;
  const std::size_t width_;  // bytes of an element
  const bool to_all_;
};

}  // namespace

Status slices(CommunicatorContext& context, Order& order, const Plan& plan,
              const Reduction& reduction, Results results) {
  const bool to_all = results == Results::kToAll;
  Slices work(context, order, plan, reduction, to_all);
  const Stage send{0, [&work](std::size_t batch) { return work.send_inputs(batch); }};
  const std::size_t lag = context.slots() > 3 || !to_all ? 1 : 0;
  const Stage fold{lag, [&work](std::size_t batch) { return work.fold_own(batch); }};
  if (!to_all) return run_pipeline(plan.segments(), {send, fold});
  const Stage copy{2 * lag, [&work](std::size_t batch) { return work.copy_out(batch); }};
  return run_pipeline(plan.segments(), {send, fold, copy});
}

// Shared memory.

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
