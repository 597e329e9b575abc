#include "collective/algorithm/ring.h"

#include <algorithm>

namespace hvd {
namespace {

class Speaker {
 public:
  Speaker(Crew& crew, const Plan& plan, const Reduction& reduction)
      : crew_(crew),
        plan_(plan),
        reduction_(reduction),
        left_(crew.place_at(-1)),
        right_(crew.place_at(1)),
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
      case Verb::kRecv:
        return recv(segment);
    }
    return Status::make(Code::kInternal, "no such verb", "collective/ring");
  }

 private:
  Status send(const Segment& segment) {
    Result<std::byte*> slot = crew_.acquire(right_);
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
        crew_.store(right_).copy(out, span.out, span.count * stored_);  // as in slices.cc
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

  Status recv(const Segment& segment) {
    Result<const std::byte*> slot = crew_.expect(left_, elements_of(segment) * stored_);
    if (!slot) return slot.status();
    unpack(segment, stored_, slot.value());
    crew_.release(left_);
    return Status::ok();
  }

  // One slot in, one slot out; `work` reads the first, fills the second and returns where it
  // stopped.
  template <typename Work>
  Status relay(const Segment& segment, std::size_t element_bytes, const Work& work) {
    Result<const std::byte*> in = crew_.expect(left_, elements_of(segment) * element_bytes);
    if (!in) return in.status();
    Result<std::byte*> out = crew_.acquire(right_);
    if (!out) return out.status();
    publish_up_to(out.value(), work(in.value(), out.value()));
    crew_.release(left_);
    return Status::ok();
  }

  void publish_up_to(const std::byte* slot, const std::byte* end) {
    crew_.publish(right_, static_cast<std::size_t>(end - slot));
  }

  Crew& crew_;
  const Plan& plan_;
  const Reduction& reduction_;
  const int left_, right_;
  const std::size_t stored_;  // bytes of an element in a tensor, and in a slot that carries results
  const std::size_t wire_;    // bytes of an element in a slot that carries partial sums
};

// The chunk that a place works on is one further to the left in each step.
void add_steps(Sentence& sentence, Verb verb, int steps, int first_chunk, int size) {
  for (int i = 0; i < steps; ++i) {
    const int back = static_cast<int>(sentence.size()) % size;
    sentence.push_back({verb, static_cast<std::size_t>((first_chunk - back + size) % size)});
  }
}

}  // namespace

Sentence allreduce_sentence(int place, int size) {
  const int first = (place + size - 1) % size;  // its owner is the last that it gets to
  Sentence sentence;
  add_steps(sentence, Verb::kSend, 1, first, size);
  add_steps(sentence, Verb::kRecvReduceSend, size - 2, first, size);
  add_steps(sentence, Verb::kRecvReduceCopySend, 1, first, size);
  add_steps(sentence, Verb::kRecvCopySend, size - 2, first, size);
  add_steps(sentence, Verb::kRecv, 1, first, size);
  return sentence;
}

Sentence allgather_sentence(int place, int size) {
  Sentence sentence;
  add_steps(sentence, Verb::kSend, 1, place, size);
  add_steps(sentence, Verb::kRecvCopySend, size - 2, place, size);
  add_steps(sentence, Verb::kRecv, 1, place, size);
  return sentence;
}

Sentence broadcast_sentence(int place, int size, int root) {
  if (place == root) return {{Verb::kSend, 0}};
  if ((place + 1) % size == root) return {{Verb::kRecv, 0}};
  return {{Verb::kRecvCopySend, 0}};
}

Status speak(Crew& crew, const Sentence& sentence, const Plan& plan, const Reduction& reduction) {
  Speaker speaker(crew, plan, reduction);
  const std::size_t segments = plan.segments();
  const std::size_t window = crew.slots() > 1 ? crew.slots() - 1 : 1;
  // Only a sentence that goes round the ring has a first send to keep ahead of its receives.
  const bool ahead = sentence.size() > 1;
  Status status = Status::ok();
  for (std::size_t k = 0; ahead && k < std::min(window, segments); ++k) {
    if (status = speaker.perform(sentence.front(), k); !status) return status;
  }
  for (std::size_t batch = 0; batch < segments; batch += window) {
    const std::size_t end = std::min(batch + window, segments);
    for (std::size_t step = ahead ? 1 : 0; step < sentence.size(); ++step) {
      const bool last = ahead && step + 1 == sentence.size();
      for (std::size_t k = batch; k < end; ++k) {
        if (status = speaker.perform(sentence[step], k); !status) return status;
        if (last && k + window < segments) status = speaker.perform(sentence.front(), k + window);
        if (!status) return status;
      }
    }
  }
  return status;
}

}  // namespace hvd
