// An operation on tensors of a device that is not the group's home: they are copied to the home
// device, and the results back, in the order of home's stream. So a process may alternate between
// its devices, although each group has only one of them.
#pragma once

#include <memory>
#include <vector>

#include "collective/backend/backend.h"
#include "cuda/device/device.h"

namespace hvd::cuda {

class CrossDeviceCopy final : public Backend {
 public:
  CrossDeviceCopy(Backend& at_home, std::shared_ptr<Device> home, std::shared_ptr<Device> abroad);

  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override;
  Status allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                          const std::vector<std::ptrdiff_t>& offsets,
                          const Reduction& reduction) override;
  Status broadcast(const Group& group, const std::vector<Operand>& operands,
                   int group_root) override;
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override;
  Status alltoall(const Group& group, const Exchange& exchange) override;
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override;
  const char* last_algorithm() const override { return at_home_.last_algorithm(); }

 private:
  // After the work on the other device's stream: the memory of the results exists.
  Status begin_copies();
  // Memory at home until the operation is enqueued on the stream; nullptr for no bytes.
  Result<std::byte*> room(std::size_t bytes);
  Result<std::byte*> carried(const void* from, std::size_t bytes);
  // Registers a result that land() copies back.
  void expect(void* to, const std::byte* from, std::size_t bytes);
  Status copy_back(const Status& operation);
  Result<std::vector<Operand>> carry(const std::vector<Operand>& operands, std::size_t width);

  struct Return {
    void* to;
    const std::byte* from;
    std::size_t bytes;
  };

  Backend& at_home_;
  std::shared_ptr<Device> home_, abroad_;
  std::vector<std::shared_ptr<void>> rooms_;
  std::vector<Return> returns_;
};

}  // namespace hvd::cuda
