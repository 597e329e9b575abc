#include "cuda/staged/staged_notice.h"

#include <set>

#include "base/log.h"
#include "base/mutex.h"
#include "tensor/dtype.h"

namespace hvd::cuda {
namespace {

bool is_new(const std::string& sentence) {
  static Mutex mutex;
  static std::set<std::string> told;
  const MutexLock lock(mutex);
  return told.insert(sentence).second;
}

}  // namespace

void warn_staged(const Group& group, const std::string& backend, const Reduction& reduction) {
  if (group.group_rank != 0) return;
  const std::string sentence = std::string(name_of(reduction.op)) + " of " +
                               name_of(reduction.dtype) +
                               " on devices goes through host memory: " + backend + " cannot do it";
  if (is_new(sentence)) log(Level::kWarning, "cuda/staged_notice", sentence);
}

}  // namespace hvd::cuda
