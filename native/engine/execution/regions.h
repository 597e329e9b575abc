// Regions: the allocated parts of the shared heap, and of memory that devices share. Every rank
// keeps the same table, because allocations are agreed on like operations and executed in the same
// order.
//   region   the result of one allocation: consecutive parts of the same length, one per rank of
//            this host; on devices, a part for every rank on its own device
// Only the progress-lock owner writes; any thread may read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "collective/accelerator.h"
#include "engine/message/request.h"
#include "transport/mesh/mesh.h"

namespace hvd {

class Regions {
 public:
  explicit Regions(Mesh& mesh);

  // Allocate `bytes` for each rank under the number `region`; the host's first rank claims the
  // pages for all. Parts are page-aligned. kUnavailable: no shared heap, or no memory.
  Status allocate(std::int64_t region, std::int64_t bytes);
  // The same on devices, for memory that the ranks have allocated already; offsets by rank.
  void adopt(std::int64_t region, DeviceRegion memory, std::int64_t bytes);
  // Called when no rank of this host uses it any more. Returns adopted memory.
  std::optional<DeviceRegion> release(std::int64_t region);
  bool is_on_devices(std::int64_t region) const;
  // Unmap the parts of other ranks; no device of this rank may use them any more.
  void part();

  // The part of a rank of this host; nullptr: no such region in the heap.
  std::byte* part_of(std::int64_t region, int rank) const;
  std::int64_t bytes_of(std::int64_t region) const;  // as requested; 0: no such region
  // The place of memory; kPrivate if it is not completely within this rank's part of one region.
  std::int64_t place_of(const void* data, std::int64_t bytes) const;
  // Distance in bytes from this rank's copy to the copy of `rank`, in the address space of this
  // process or its device. All ranks of the region share this host. nullopt: the region was
  // released.
  std::optional<std::ptrdiff_t> offset_to(std::int64_t place, int rank) const;

 private:
  struct Part {
    std::size_t offset;  // of the first rank's part, in the heap
    std::size_t stride;  // to the next rank
    std::size_t bytes;
  };
  struct OnDevice {
    DeviceRegion memory;
    std::size_t bytes;
  };
  std::optional<std::size_t> room_for(std::size_t bytes) const REQUIRES(mutex_);
  std::uintptr_t begin_of(const Part& part) const;  // of this rank's

  SharedHeap* const heap_;
  // Parts lie in the order of ranks, whatever slots the ranks have (Topology::local_rank).
  const std::vector<int> part_of_rank_;
  const int part_, parts_here_;  // of this rank, and their number on its host
  mutable Mutex mutex_;
  std::atomic<bool> any_{false};  // usually false, and place_of() is called for every tensor
  std::map<std::int64_t, Part> parts_ GUARDED_BY(mutex_);
  std::map<std::int64_t, OnDevice> on_devices_ GUARDED_BY(mutex_);
};

}  // namespace hvd
