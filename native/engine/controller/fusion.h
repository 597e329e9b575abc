// Tensor fusion: agreed operations that can be executed as one are combined, up to a number of
// bytes.
//   may be fused   operations of the same set, kind, operator, dtype, factors and root, alike in
//                  shared memory, and alike in whether all ranks have requested them. On devices:
//                  each rank has all of their tensors on one of its devices, so that no rank has
//                  them on two, or substitutes for only some of them
//
// When they are released:
//   on the host    at once. The executing thread accepts nothing else meanwhile, so operations that
//                  arrive during an execution are fused anyway
//   on devices     at once while nothing is in flight there; operations that arrive during another
//                  wait for its end, and are then released together (group commit). Many gradients
//                  become few operations, however slow the device is, and a single operation loses
//                  nothing
//   in turns       if processes time-slice rank 0's device, each operation costs all of them time
//                  slices that nothing hides: operations wait for more, whatever is in flight
// No operation waits for one in flight longer than that one had taken by then (or for `hold`; in
// turns five times that), because its end may depend on a held one. None waits if no further
// operation can arrive: a user thread waits, and all requested operations are here. With a `cycle`,
// small operations wait for that long, on the host and on devices. Pure: time and the operations in
// flight are arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/controller/negotiate.h"
#include "engine/controller/news.h"

namespace hvd {

class FusionManager {
 public:
  explicit FusionManager(const ControllerOptions& options)
      : threshold_(options.fusion_threshold),
        cycle_(options.cycle_ns),
        hold_(options.hold_ns),
        groups_(options.group_fusion) {}

  using FusedResponse = std::vector<Agreed>;  // one operation; its members in order

  void change(std::int64_t threshold_bytes, std::int64_t cycle_ns) {
    threshold_ = threshold_bytes;
    cycle_ = cycle_ns;
  }
  void add(Agreed agreed, std::int64_t now_ns);
  // Operations that are due, in the order of their first members; those on devices first, because
  // they run asynchronously. Nothing is held back once the bytes of all reach the threshold, except
  // in turns.
  std::vector<FusedResponse> take(std::int64_t now_ns, const InFlight& in_flight = {});
  std::vector<FusedResponse> take_all();  // due or not
  bool empty() const { return count() == 0; }
  std::size_t count() const { return host_.agreed.size() + devices_.agreed.size(); }
  const std::vector<Agreed>& held_on_devices() const { return devices_.agreed; }
  // Time until take() must be called again; negative: nothing waits.
  std::int64_t due_in(std::int64_t now_ns, const InFlight& in_flight = {}) const;

 private:
  struct Held {
    std::vector<Agreed> agreed;
    std::int64_t oldest_ns = 0;
    std::int64_t bytes = 0;
    bool hurry = false;  // an operation is held that cannot be fused
  };

  bool can_fuse(const Agreed& agreed) const;
  std::int64_t due_in(const Held& held, std::int64_t now_ns, const InFlight& in_flight) const;
  void fuse(Held& held, std::vector<FusedResponse>& all) const;

  std::int64_t threshold_;
  std::int64_t cycle_;
  std::int64_t hold_;
  bool groups_;
  Held host_;
  Held devices_;
};

}  // namespace hvd
