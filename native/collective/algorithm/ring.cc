#include <algorithm>

#include "collective/algorithm/algorithms.h"

namespace hvd {
namespace {

class Executor_ {
 public:
  Executor_(CommunicatorContext& context, const Plan& plan, const Reduction& reduction)
      : context_(context),
        plan_(plan),
        reduction_(reduction),
        left_(context.group_rank_at(-1)),
        right_(context.group_rank_at(1)),
        stored_(size_of(reduction.dtype)),
        wire_(size_of(wire_dtype(reduction.dtype))) {}

  Status perform(const Step& step, std::size_t number) {
    if (failpoint("collective.ring_step")) return tripped("collective.ring_step");
    const Segment segment = plan_.segment(step.chunk, number);
    switch (step.verb) {
      case Verb::kSend:
        return send(segment);
      case Verb::kRecvReduceSend:
        return recv_reduce_send(segment);
      case Verb::kRecvReduceCopySend:
        return recv_reduce_copy_send(segment);
      case Verb::kRecvCopySend:
        return recv_copy_send(segment);
      case Verb::kRecvReduce:
        return recv_reduce(segment);
      case Verb::kRecv:
        return recv(segment);
    }
    return Status::make(Code::kInternal, "there is no such step", "collective/ring");
  }

 private:
  Status send(const Segment& segment) {
    Result<std::byte*> slot = context_.acquire(right_);
    if (!slot) return slot.status();
    std::byte* out = slot.value();
    for (const Span& span : segment) {
      load(reduction_, out, span.in, span.count);
      out += span.count * wire_;
    }
    publish_up_to(slot.value(), out);
    return Status::ok();
  }

  Status recv_reduce_send(const Segment& segment) {
    return relay(segment, wire_, [&](const std::byte* in, std::byte* out) {
      for (const Span& span : segment) {
        accumulate(reduction_, out, in, span.in, span.count);
        in += span.count * wire_;
        out += span.count * wire_;
      }
      return out;
    });
  }

  Status recv_reduce_copy_send(const Segment& segment) {
    return relay(segment, wire_, [&](const std::byte* in, std::byte* out) {
      for (const Span& span : segment) {
        finish(reduction_, span.out, nullptr, in, span.in, span.count);
        context_.store(right_).copy(out, span.out, span.count * stored_);  // as in slices.cc
        in += span.count * wire_;
        out += span.count * stored_;
      }
      return out;
    });
  }

  Status recv_copy_send(const Segment& segment) {
    return relay(segment, stored_, [&](const std::byte* in, std::byte* out) {
      for (const Span& span : segment) {
        pass_on(span.out, out, in, span.count * stored_);
        in += span.count * stored_;
        out += span.count * stored_;
      }
      return out;
    });
  }

  Status recv_reduce(const Segment& segment) {
    Result<const std::byte*> slot = context_.expect(left_, elements_of(segment) * wire_);
    if (!slot) return slot.status();
    const std::byte* in = slot.value();
    for (const Span& span : segment) {
      finish(reduction_, span.out, nullptr, in, span.in, span.count);
      in += span.count * wire_;
    }
    context_.release(left_);
    return Status::ok();
  }

  Status recv(const Segment& segment) {
    Result<const std::byte*> slot = context_.expect(left_, elements_of(segment) * stored_);
    if (!slot) return slot.status();
    unpack(segment, stored_, slot.value());
    context_.release(left_);
    return Status::ok();
  }

  // One slot in, one slot out; `work` reads the first, fills the second and returns where it
  // stopped.
  template <typename Work>
  Status relay(const Segment& segment, std::size_t element_bytes, const Work& work) {
    Result<const std::byte*> in = context_.expect(left_, elements_of(segment) * element_bytes);
    if (!in) return in.status();
    Result<std::byte*> out = context_.acquire(right_);
    if (!out) return out.status();
    publish_up_to(out.value(), work(in.value(), out.value()));
    context_.release(left_);
    return Status::ok();
  }

  void publish_up_to(const std::byte* slot, const std::byte* end) {
    context_.publish(right_, static_cast<std::size_t>(end - slot));
  }

  CommunicatorContext& context_;
  const Plan& plan_;
  const Reduction& reduction_;
  const int left_, right_;
  const std::size_t stored_;  // bytes of an element in a tensor, and in a slot that carries results
  const std::size_t wire_;    // bytes of an element in a slot that carries partial sums
};

// In each step a member works on the next chunk to the left.
void add_steps(Schedule& schedule, Verb verb, int steps, int first_chunk, int size) {
  for (int i = 0; i < steps; ++i) {
    const int back = static_cast<int>(schedule.size()) % size;
    schedule.push_back({verb, static_cast<std::size_t>((first_chunk - back + size) % size)});
  }
}

}  // namespace

Schedule allreduce_schedule(int group_rank, int size) {
  const int first = (group_rank + size - 1) % size;  // its owner is the last to receive it
  Schedule schedule;
  add_steps(schedule, Verb::kSend, 1, first, size);
  add_steps(schedule, Verb::kRecvReduceSend, size - 2, first, size);
  add_steps(schedule, Verb::kRecvReduceCopySend, 1, first, size);
  add_steps(schedule, Verb::kRecvCopySend, size - 2, first, size);
  add_steps(schedule, Verb::kRecv, 1, first, size);
  return schedule;
}

Schedule reduce_scatter_schedule(int group_rank, int size) {
  const int first = (group_rank + size - 1) % size;
  Schedule schedule;
  add_steps(schedule, Verb::kSend, 1, first, size);
  add_steps(schedule, Verb::kRecvReduceSend, size - 2, first, size);
  add_steps(schedule, Verb::kRecvReduce, 1, first, size);
  return schedule;
}

Schedule allgather_schedule(int group_rank, int size) {
  Schedule schedule;
  add_steps(schedule, Verb::kSend, 1, group_rank, size);
  add_steps(schedule, Verb::kRecvCopySend, size - 2, group_rank, size);
  add_steps(schedule, Verb::kRecv, 1, group_rank, size);
  return schedule;
}

Schedule broadcast_schedule(int group_rank, int size, int root) {
  if (group_rank == root) return {{Verb::kSend, 0}};
  if ((group_rank + 1) % size == root) return {{Verb::kRecv, 0}};
  return {{Verb::kRecvCopySend, 0}};
}

Status execute(CommunicatorContext& context, const Schedule& schedule, const Plan& plan,
               const Reduction& reduction) {
  Executor_ execution(context, plan, reduction);
  const std::size_t segments = plan.segments();
  const std::size_t window = context.slots() > 1 ? context.slots() - 1 : 1;
  // Only a schedule with several steps can keep its sends ahead of its receives.
  const bool ahead = schedule.size() > 1;
  Status status = Status::ok();
  for (std::size_t k = 0; ahead && k < std::min(window, segments); ++k) {
    if (status = execution.perform(schedule.front(), k); !status) return status;
  }
  for (std::size_t batch = 0; batch < segments; batch += window) {
    const std::size_t end = std::min(batch + window, segments);
    for (std::size_t step = ahead ? 1 : 0; step < schedule.size(); ++step) {
      const bool last = ahead && step + 1 == schedule.size();
      for (std::size_t k = batch; k < end; ++k) {
        if (status = execution.perform(schedule[step], k); !status) return status;
        if (last && k + window < segments) status = execution.perform(schedule.front(), k + window);
        if (!status) return status;
      }
    }
  }
  return status;
}

}  // namespace hvd
