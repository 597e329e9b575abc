// Agreed operations that can be carried out as one are put together, up to a number of bytes.
//   may be fused   operations of the same set, kind, operator, dtype, factors and root, that lie in
//                  shared memory alike, and for which either all ranks or not all have asked. On
//                  devices: whose tensors every rank has on one of its devices, so that no rank
//                  has them on two, or stands in for some of them only
//
// When they go:
//   on the host    at once. Whoever carries an operation out looks at nothing else meanwhile, so
//                  what comes while one is under way is fused anyway
//   on devices     at once while nothing is in flight there; what comes while something is waits
//                  for its end, and then all of it goes (group commit). Of many gradients a few
//                  operations become, however slow the device is, and one alone loses nothing
//   in turns       where processes take turns on rank 0's device each operation costs all of them
//                  time slices, and nothing of it is hidden: what comes waits for more, whatever
//                  is in flight
// Nobody waits for an operation longer than that had taken by then (or for `hold`; in turns five
// times that): its end may depend on what is held. Nor where no company can come: somebody waits,
// and all that was asked for is here. With a `cycle` small operations wait for company for that
// long, on the host and on devices, and no longer. Pure: time goes in, and what is in flight.
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

  using FusedResponse = std::vector<Agreed>;  // one operation, in this order

  void change(std::int64_t threshold_bytes, std::int64_t cycle_ns) {
    threshold_ = threshold_bytes;
    cycle_ = cycle_ns;
  }
  void add(Agreed agreed, std::int64_t now_ns);
  // What is due, in the order of its first members, devices first: they go on by themselves.
  // Nothing is held back once the bytes of all reach the threshold, unless they go in turns.
  std::vector<FusedResponse> take(std::int64_t now_ns, const InFlight& in_flight = {});
  std::vector<FusedResponse> take_all();  // due or not
  bool empty() const { return count() == 0; }
  std::size_t count() const { return host_.agreed.size() + devices_.agreed.size(); }
  const std::vector<Agreed>& held_on_devices() const { return devices_.agreed; }
  // How long until take() must be called again; negative: nothing waits.
  std::int64_t due_in(std::int64_t now_ns, const InFlight& in_flight = {}) const;

 private:
  struct Held {
    std::vector<Agreed> agreed;
    std::int64_t oldest_ns = 0;
    std::int64_t bytes = 0;
    bool hurry = false;  // something is held that cannot be fused
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
