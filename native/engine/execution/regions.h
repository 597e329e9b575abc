// Regions of the shared heap: who has which part, and of memory that devices share. Every rank
// keeps the same book, because allocations are agreed on like operations and carried out in the
// same order everywhere.
//   region   what one allocation gave: a part of the same length for every rank of this host, one
//            behind the other; on devices, a part for every rank on its own device
// The progress-lock owner writes; any thread may ask.
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

  // `bytes` for each rank under the number `region`; the host's first rank claims the pages for
  // all. kUnavailable: there is no shared heap, or no memory. The parts begin on whole pages.
  Status allocate(std::int64_t region, std::int64_t bytes);
  // The same on devices, where the ranks have made it already; offsets by rank.
  void adopt(std::int64_t region, DeviceRegion memory, std::int64_t bytes);
  // No rank of this host uses it any more. Gives what was adopted.
  std::optional<DeviceRegion> release(std::int64_t region);
  bool is_on_devices(std::int64_t region) const;
  // No device of this rank uses the others' parts any more: they are closed here.
  void part();

  // Of a rank of this host; null: no such region of the heap.
  std::byte* part_of(std::int64_t region, int rank) const;
  std::int64_t bytes_of(std::int64_t region) const;  // as asked for; 0: no such region
  // Where memory lies; kPrivate when it is not wholly within this rank's part of one region.
  std::int64_t place_of(const void* data, std::int64_t bytes) const;
  // From this rank's copy to the one of `rank`, in bytes: as this process, or its device, sees it.
  // All ranks of the region share this host.
  // Nothing: there is no such region any more.
  std::optional<std::ptrdiff_t> offset_to(std::int64_t place, int rank) const;

 private:
  struct Part {
    std::size_t offset;  // of the host's first rank's, in the heap
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
  const int part_, parts_here_;  // this rank's, and how many its host has
  mutable Mutex mutex_;
  std::atomic<bool> any_{false};  // usually there is none, and place_of() is asked for every tensor
  std::map<std::int64_t, Part> parts_ GUARDED_BY(mutex_);
  std::map<std::int64_t, OnDevice> on_devices_ GUARDED_BY(mutex_);
};

}  // namespace hvd
