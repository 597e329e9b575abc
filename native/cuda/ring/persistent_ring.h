// Allreduce by one kernel per rank that stays on its device until the operation is done (ring.cuh):
// what the members' kernels need of each other.
//   memory   of each member: the abort word, the words and the slots of every block
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "collective/backend/backend.h"
#include "cuda/group/bootstrap_group.h"
#include "cuda/group/ipc_buffer.h"
#include "cuda/kernels/kernels.h"

namespace hvd::cuda {

class PersistentRing {
 public:
  // Collective (bootstrap_group.h), and goes well for all or for none. Waits for the device until
  // the memory is zeroed, which the stream `aside` does.
  static Result<std::unique_ptr<PersistentRing>> make(const BootstrapGroup& bootstrap,
                                                      unsigned blocks, CUstream aside);

  // What Kernels::sums_floats() knows. Kernels of all members must be under way at the same time.
  Status allreduce(const std::vector<Operand>& operands, const Reduction& reduction);
  // Ends this rank's kernels, those to come too, from the stream `aside`.
  Status abort_waits(CUstream aside);
  void part() { peers_.clear(); }  // as DeviceBackend::part()

 private:
  PersistentRing(const BootstrapGroup& bootstrap, unsigned blocks);
  Status zero(CUstream aside);
  std::byte* memory_at(std::size_t steps) const;

  std::shared_ptr<Device> device_;
  const Abort& abort_;
  const Group group_;
  const RingShape shape_;
  std::shared_ptr<IpcBuffer> mine_;
  Peers peers_;
  bool waits_aborted_ = false;
};

}  // namespace hvd::cuda
