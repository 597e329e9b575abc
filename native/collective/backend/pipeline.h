// Terms.
//   batch   unit of work: one segment of every chunk
//   stage   one step of an algorithm, done for every batch: send, fold, copy out ...
//   lag     number of batches by which a stage runs behind the first: the time that a peer has for
//           its part
// In turn t every stage s does batch t - lag(s), in the order of the stages. All ranks run the
// same turns. There is no deadlock as long as (1) everything that a stage sends is received by a
// later stage or in a later turn, in the order of the link, and (2) no link needs more slots than
// it has: then a send waits only for receives of earlier turns and stages, and these only for still
// earlier sends.
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
