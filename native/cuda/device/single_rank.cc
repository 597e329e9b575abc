#include "cuda/device/single_rank.h"

namespace hvd::cuda {

Status copy_on(const Device& device, void* to, const void* from, std::size_t bytes) {
  if (to == from || bytes == 0) return Status::ok();
  const Current current(device);
  if (!current) return current.status();
  const Driver& driver = device.driver();
  return driver.check(
      driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                           bytes, device.stream()),
      "copying on the device");
}

Status scale_on(const Device& device, const std::vector<Operand>& operands,
                const Reduction& reduction) {
  const Current current(device);
  if (!current) return current.status();
  std::vector<Piece> pieces;
  for (const Operand& operand : operands) {
    if (operand.count > 0) pieces.push_back({operand.in, operand.out, operand.count});
  }
  if (pieces.empty()) return Status::ok();
  return device.kernels().scale(device.stream(), reduction, pieces);
}

}  // namespace hvd::cuda
