// Ring backend between the devices of one host, for one group: slices over mapped memory, in stream
// order (ring.h). Device memory is never copied to the host, the host waits for no device, and
// ranks may share a device. The result has the same bytes as CpuBackend's on one host. Adasum uses
// the staged backend, and so does a group of one, which needs no staging.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/device/peer_info.h"
#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"
#include "cuda/ring/arena.h"
#include "cuda/ring/persistent_ring.h"
#include "cuda/ring/ring.h"

namespace hvd::cuda {

// Algorithms that the ring of a group can use, from the exchanged peer infos: a pure function, so
// all members compute the same.
//   slices       short kernels in stream order, nothing spins (ring.h): always possible
//   persistent   one kernel per rank that runs until the operation is done (ring.cuh). Kernels that
//                wait for each other must run concurrently: those of different devices do, and
//                those of threads of one process if there is room for all their blocks. Those of
//                processes that share a device may not: they are time-sliced, and with MPS nothing
//                reserves room for all of them. Processes outside of these ranks' groups count,
//                and so do ranks of the host whose device is not known. A driver that ends long
//                kernels (of a device with a display) would end waiting ones
// auto: both if each rank has its own device, and a self-test finds the faster one (self_test.h).
// Threads that share a device use slices: measured on an H100, these reach 95 to 100 % of the
// memory's bandwidth and a persistent ring 27 to 46 %, and a self-test on an idle device shows
// nothing about one that computes.

struct RingAlgorithms {
  bool slices = true;
  unsigned blocks = 0;  // of the persistent kernel on every rank; 0: impossible
};

// The same on all members. kInvalidArgument: HVD_GPU_RING=persistent is impossible, with the
// reason.
Result<RingAlgorithms> ring_algorithms(const std::vector<PeerInfo>& members);

class RingBackend final : public DeviceBackend {
 public:
  // peers: by group rank, nullptr for this rank.
  RingBackend(const BootstrapGroup& bootstrap, const ArenaShape& shape,
              std::unique_ptr<Arena> arena, Peers peers);

  // Collective (bootstrap_group.h) if the persistent ring is possible; the same result on all
  // members.
  Status add_algorithms(const RingAlgorithms& algorithms);
  std::size_t algorithms() const override { return algorithms_.size(); }
  void set_self_test(double seconds) override { in_self_test_ = seconds > 0; }
  void take(std::size_t algorithm) override { algorithm_ = algorithms_[algorithm]; }

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
  Result<DeviceRegion> share_memory(std::size_t bytes, const Status& own) override;
  const char* last_algorithm() const override { return last_; }

  Status abort_waits() override;
  Status finalize() override;
  void part() override;

 private:
  enum class RingAlgorithm : std::uint8_t { kSlices, kPersistent };
  bool uses_persistent(const std::vector<Operand>& operands, const Reduction& reduction) const;
  Status adasum(const Group& group, const std::vector<Operand>& operands,
                const Reduction& reduction);

  BootstrapGroup bootstrap_;
  std::unique_ptr<Arena> arena_;
  Peers peers_;
  Ring ring_;
  std::vector<RingAlgorithm> algorithms_{RingAlgorithm::kSlices};
  RingAlgorithm algorithm_ = RingAlgorithm::kSlices;
  bool in_self_test_ = false;
  std::unique_ptr<PersistentRing> persistent_;
  std::unique_ptr<DeviceBackend> staged_;  // for Adasum, created on first use
  const char* last_ = "LOCAL";
};

// See bootstrap_group.h; also shares the arena. Waits for this rank's own device once, until the
// words of the arena are written.
Result<std::unique_ptr<DeviceBackend>> make_ring_backend(const BootstrapGroup& bootstrap);

}  // namespace hvd::cuda
