// Agreed operations become responses: those that can be carried out as one are put together, up to
// a number of bytes.
//   may be fused   allreduces of the same operation, dtype, device and factors; broadcasts of the
//   same root and device
// Small operations may wait for company for at most `cycle`; zero (the default) sends everything at
// once. Pure: time goes in.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/negotiate.h"
#include "engine/request.h"

namespace hvd {

class Fuser {
 public:
  Fuser(std::int64_t threshold_bytes, std::int64_t cycle_ns)
      : threshold_(threshold_bytes), cycle_(cycle_ns) {}

  void add(std::vector<Agreed> agreed, std::int64_t now_ns);
  // What is due, in the order of its first members. Nothing is held back once the oldest has waited
  // for a whole cycle or the bytes of all reach the threshold.
  std::vector<Response> take(std::int64_t now_ns);
  std::vector<Response> take_all();  // due or not
  // How long until take() must be called again; negative: nothing waits.
  std::int64_t due_in(std::int64_t now_ns) const;

 private:
  std::int64_t threshold_;
  std::int64_t cycle_;
  std::int64_t oldest_ns_ = 0;
  std::int64_t bytes_ = 0;
  std::vector<Agreed> held_;
};

}  // namespace hvd
