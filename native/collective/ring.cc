#include "collective/ring.h"

#include <algorithm>
#include <string>

namespace hvd {
namespace {

std::size_t wrapped(int chunk, int size) { return static_cast<std::size_t>((chunk + size) % size); }

std::size_t elements_of(const Segment& segment) {
  std::size_t count = 0;
  for (const Span& span : segment) count += span.count;
  return count;
}

class Speaker {
 public:
  Speaker(const Ring& ring, const Plan& plan, const Elements& elements)
      : ring_(ring),
        plan_(plan),
        dtype_(elements.dtype),
        scaling_(elements.scaling),
        stored_(size_of(elements.dtype)),
        wire_(size_of(wire_dtype(elements.dtype))) {}

  Status perform(const Step& step, std::size_t number) {
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
    Result<Slot> slot = ring_.to.acquire(ring_.abort);
    if (!slot) return slot.status();
    std::byte* out = slot.value().data;
    for (const Span& span : segment) {
      load(dtype_, out, span.in, span.count, scaling_.before);
      out += span.count * wire_;
    }
    publish_up_to(slot.value(), out);
    return Status::ok();
  }

  Status recv_reduce_send(const Segment& segment) {
    return relay(segment, wire_, [&](const std::byte* in, std::byte* out) {
      for (const Span& span : segment) {
        accumulate(dtype_, out, in, span.in, span.count, scaling_.before);
        in += span.count * wire_;
        out += span.count * wire_;
      }
      return out;
    });
  }

  Status recv_reduce_copy_send(const Segment& segment) {
    return relay(segment, wire_, [&](const std::byte* in, std::byte* out) {
      for (const Span& span : segment) {
        finish(dtype_, span.out, out, in, span.in, span.count, scaling_);
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
    Result<Slot> slot = expect(elements_of(segment) * stored_);
    if (!slot) return slot.status();
    const std::byte* in = slot.value().data;
    for (const Span& span : segment) {
      pass_on(span.out, nullptr, in, span.count * stored_);
      in += span.count * stored_;
    }
    ring_.from.release();
    return Status::ok();
  }

  // One slot in, one slot out; `work` reads the first, fills the second and returns where it
  // stopped.
  template <typename Work>
  Status relay(const Segment& segment, std::size_t element_bytes, const Work& work) {
    Result<Slot> in = expect(elements_of(segment) * element_bytes);
    if (!in) return in.status();
    Result<Slot> out = ring_.to.acquire(ring_.abort);
    if (!out) return out.status();
    publish_up_to(out.value(), work(in.value().data, out.value().data));
    ring_.from.release();
    return Status::ok();
  }

  Result<Slot> expect(std::size_t bytes) {
    Result<Slot> slot = ring_.from.peek(ring_.abort);
    if (slot && slot.value().bytes != bytes) {
      return Status::make(Code::kInternal,
                          "a segment of " + std::to_string(bytes) + " bytes was due, but " +
                              std::to_string(slot.value().bytes) + " came",
                          "collective/ring", static_cast<int>(wrapped(ring_.rank - 1, ring_.size)));
    }
    return slot;
  }

  void publish_up_to(const Slot& slot, const std::byte* end) {
    ring_.to.publish(static_cast<std::size_t>(end - slot.data));
  }

  const Ring& ring_;
  const Plan& plan_;
  const Dtype dtype_;
  const Scaling scaling_;
  const std::size_t stored_;  // bytes of an element in a tensor, and in a slot that carries results
  const std::size_t wire_;    // bytes of an element in a slot that carries partial sums
};

// The chunk that a rank works on in step s is one further to the left in each step.
void add_steps(Sentence& sentence, Verb verb, int steps, int rank, int size) {
  for (int i = 0; i < steps; ++i) {
    const int step = static_cast<int>(sentence.size());
    sentence.push_back({verb, wrapped(rank - step % size, size)});
  }
}

}  // namespace

Sentence allreduce_sentence(int rank, int size) {
  Sentence sentence;
  add_steps(sentence, Verb::kSend, 1, rank, size);
  add_steps(sentence, Verb::kRecvReduceSend, size - 2, rank, size);
  add_steps(sentence, Verb::kRecvReduceCopySend, 1, rank, size);
  add_steps(sentence, Verb::kRecvCopySend, size - 2, rank, size);
  add_steps(sentence, Verb::kRecv, 1, rank, size);
  return sentence;
}

Sentence allgather_sentence(int rank, int size) {
  Sentence sentence;
  add_steps(sentence, Verb::kSend, 1, rank, size);
  add_steps(sentence, Verb::kRecvCopySend, size - 2, rank, size);
  add_steps(sentence, Verb::kRecv, 1, rank, size);
  return sentence;
}

Sentence broadcast_sentence(int rank, int size, int root) {
  if (rank == root) return {{Verb::kSend, 0}};
  if ((rank + 1) % size == root) return {{Verb::kRecv, 0}};
  return {{Verb::kRecvCopySend, 0}};
}

Status speak(const Ring& ring, const Sentence& sentence, const Plan& plan,
             const Elements& elements) {
  Speaker speaker(ring, plan, elements);
  const std::size_t segments = plan.segments();
  const std::size_t window = ring.to.slots() > 1 ? ring.to.slots() - 1 : 1;
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
