// Allreduce by one kernel per rank that runs until the operation is done (ring.cuh): the memory
// shared by the members' kernels.
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
  // Collective (bootstrap_group.h); succeeds on all members or on none. Waits for the device until
  // the stream `aside` has zeroed the memory.
  static Result<std::unique_ptr<PersistentRing>> make(const BootstrapGroup& bootstrap,
                                                      unsigned blocks, CUstream aside);

  // For types supported by Kernels::sums_floats(). Kernels of all members must run concurrently.
  Status allreduce(const std::vector<Operand>& operands, const Reduction& reduction);
  // End this rank's kernels, also later ones, from the stream `aside`.
  Status abort_waits(CUstream aside);
  void part() { peers_.clear(); }  // see DeviceBackend::part()

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
