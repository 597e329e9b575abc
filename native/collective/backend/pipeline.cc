#include "collective/backend/pipeline.h"

namespace hvd {

Status run_pipeline(std::size_t batches, std::initializer_list<Stage> stages) {
  const std::size_t turns = batches == 0 ? 0 : batches + (stages.end() - 1)->lag;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (const Stage& stage : stages) {
      if (turn < stage.lag || turn - stage.lag >= batches) continue;
      if (Status status = stage.work(turn - stage.lag); !status) return status;
    }
  }
  return Status::ok();
}

}  // namespace hvd
