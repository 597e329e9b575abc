#include "collective/backend/plan.h"

#include <algorithm>

namespace hvd {

namespace {

std::size_t segments_for(std::size_t elements, std::size_t longest) {
  return (elements + longest - 1) / longest;
}

}  // namespace

std::size_t elements_of(const std::vector<Operand>& operands) {
  std::size_t count = 0;
  for (const Operand& operand : operands) count += operand.count;
  return count;
}

std::byte* pack(const Segment& segment, const Reduction& reduction, std::byte* to,
                SlotStore& store) {
  const std::size_t width = size_of(reduction.dtype);
  for (const Span& span : segment) {
    if (reduction.scaling.before == 1.0) {
      store.copy(to, span.in, span.count * width);
    } else {
      prescale(reduction, to, span.in, span.count);
    }
    to += span.count * width;
  }
  return to;
}

const std::byte* unpack(const Segment& segment, std::size_t element_bytes, const std::byte* from) {
  for (const Span& span : segment) {
    pass_on(span.out, nullptr, from, span.count * element_bytes);
    from += span.count * element_bytes;
  }
  return from;
}

const std::byte* prescaled(const Span& span, const Reduction& reduction) {
  if (reduction.scaling.before == 1.0) return span.in;
  prescale(reduction, span.out, span.in, span.count);
  return span.out;
}

Plan Plan::sliced(const std::vector<Operand>& operands, std::size_t element_bytes,
                  std::size_t chunks, std::size_t longest) {
  std::size_t first_chunk = 0;  // the longest one
  for (const Operand& operand : operands) first_chunk += slice_begin(operand.count, 1, chunks);
  Plan plan(segments_for(first_chunk, longest), element_bytes, longest);
  plan.begins_.reserve(chunks * plan.segments_ + 1);
  plan.spans_.reserve(chunks * (plan.segments_ + operands.size()));
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    for (const Operand& operand : operands) {
      plan.append(operand, slice_begin(operand.count, chunk, chunks),
                  slice_begin(operand.count, chunk + 1, chunks));
    }
    plan.end_chunk(chunk);
  }
  return plan;
}

Plan Plan::listed(const std::vector<std::vector<Operand>>& chunks, std::size_t element_bytes,
                  std::size_t longest) {
  std::size_t most = 0;
  for (const std::vector<Operand>& chunk : chunks) most = std::max(most, elements_of(chunk));
  Plan plan(segments_for(most, longest), element_bytes, longest);
  for (std::size_t number = 0; number < chunks.size(); ++number) {
    for (const Operand& operand : chunks[number]) plan.append(operand, 0, operand.count);
    plan.end_chunk(number);
  }
  return plan;
}

void Plan::append(const Operand& operand, std::size_t begin, std::size_t end) {
  while (begin < end) {
    const std::size_t count = std::min(end - begin, longest_ - filled_);
    const std::size_t at = begin * element_bytes_;
    const auto* const in = static_cast<const std::byte*>(operand.in);
    auto* const out = static_cast<std::byte*>(operand.out);
    spans_.push_back(
        {in == nullptr ? nullptr : in + at, out == nullptr ? nullptr : out + at, count});
    filled_ += count;
    begin += count;
    if (filled_ == longest_) end_segment();
  }
}

void Plan::end_segment() {
  begins_.push_back(spans_.size());
  filled_ = 0;
}

void Plan::end_chunk(std::size_t chunk) {
  if (filled_ > 0) end_segment();
  while (begins_.size() <= (chunk + 1) * segments_) end_segment();
}

Status run_pipeline(std::size_t batches, std::initializer_list<Stage> stages) {
  const std::size_t turns = batches == 0 ? 0 : batches + (stages.end() - 1)->lag;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (const Stage& stage : stages) {
      if (turn < stage.lag || turn - stage.lag >= batches) continue;
      if (Status status = stage.work(turn - stage.lag); !status) return status;
    }
  }
  return Status::ok();
}

}  // namespace hvd
