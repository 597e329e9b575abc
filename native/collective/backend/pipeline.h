// Terms.
//   batch   what is done in one go: one segment of every chunk
//   stage   one step of an algorithm, done for every batch: send, fold, copy out ...
//   lag     by how many batches a stage runs behind the first: so much time has a peer to do its
//           part
// In turn t every stage s does batch t - lag(s), in the order of the stages. All ranks go through
// the same turns. So there is no deadlock as long as (1) what a stage sends is received by a later
// stage or in a later turn, in the order in which the link carries it, and (2) no link needs more
// slots than it has: then a send waits for nothing but receives of earlier turns and stages, and
// these for sends that are earlier still.
#pragma once

#include <functional>
#include <initializer_list>

#include "base/status.h"

namespace hvd {

struct Stage {
  std::size_t lag;
  std::function<Status(std::size_t batch)> work;
};

Status run_pipeline(std::size_t batches, std::initializer_list<Stage> stages);

}  // namespace hvd
