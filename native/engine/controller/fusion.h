// Agreed operations that can be carried out as one are put together, up to a number of bytes.
//   may be fused   operations of the same set, kind, operator, dtype, factors and root, that lie in
//                  shared memory alike, and for which either all ranks or not all have asked. On
//                  devices: whose tensors every rank has on one of its devices, so that no rank
//                  has them on two, or stands in for some of them only
// Small operations may wait for company for at most `cycle`; zero (the default) sends everything at
// once. Pure: time goes in.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/controller/negotiate.h"

namespace hvd {

class FusionManager {
 public:
  // groups: requests of several tensors may be fused with others.
  FusionManager(std::int64_t threshold_bytes, std::int64_t cycle_ns, bool groups)
      : threshold_(threshold_bytes), cycle_(cycle_ns), groups_(groups) {}

  using FusedResponse = std::vector<Agreed>;  // one operation, in this order

  void change(std::int64_t threshold_bytes, std::int64_t cycle_ns) {
    threshold_ = threshold_bytes;
    cycle_ = cycle_ns;
  }
  void add(Agreed agreed, std::int64_t now_ns);
  // What is due, in the order of its first members. Nothing is held back once the oldest has waited
  // for a whole cycle or the bytes of all reach the threshold.
  std::vector<FusedResponse> take(std::int64_t now_ns);
  std::vector<FusedResponse> take_all();  // due or not
  bool empty() const { return held_.empty(); }
  // How long until take() must be called again; negative: nothing waits.
  std::int64_t due_in(std::int64_t now_ns) const;

 private:
  bool can_fuse(const Agreed& agreed) const;

  std::int64_t threshold_;
  std::int64_t cycle_;
  bool groups_;
  bool hurry_ = false;  // something is held that cannot be fused
  std::int64_t oldest_ns_ = 0;
  std::int64_t bytes_ = 0;
  std::vector<Agreed> held_;
};

}  // namespace hvd
