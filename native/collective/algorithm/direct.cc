#include "collective/algorithm/direct.h"

namespace hvd {
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

}  // namespace hvd
