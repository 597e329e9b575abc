#include "collective/algorithm/slices.h"

#include "collective/backend/pipeline.h"

namespace hvd {
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

}  // namespace hvd
