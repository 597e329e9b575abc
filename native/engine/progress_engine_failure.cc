// End of the progress engine: by failure, by lack of memory, or by a completed request to leave.
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/thread.h"
#include "engine/progress_engine.h"

namespace hvd {

void ProgressEngine::end(Status status) noexcept {
  Ending ending;
  try {
    ending = std::make_shared<const Status>(std::move(status));
  } catch (const std::bad_alloc&) {
    ending = no_memory_;  // loses the message
  }
  close(ending);
}

// Devices stop using the operands' memory before the callers learn that it is theirs again.
void ProgressEngine::close(const Ending& ending) noexcept {
  if (mesh_.abort().raised()) parts_.devices.abandon(ending);
  parts_.handles.close(ending);
  ended_ = true;
}

void ProgressEngine::fail_everywhere(const Status& status) {
  mesh_.raise_everywhere(status);
  end(mesh_.abort().cause());
}

void ProgressEngine::raise_after_exception(const char* what) noexcept {
  tried([&] {  // without memory the other ranks are not notified
    if (mesh_.abort().raised()) return;
    mesh_.raise_everywhere(Status::make(Code::kInternal, what, "engine/progress_engine", rank_));
  });
}

void ProgressEngine::fail_after_exception(const char* what) noexcept {
  agenda_.clear();  // frees memory
  raise_after_exception(what);
  try {
    if (mesh_.abort().raised()) end(mesh_.abort().cause());
  } catch (...) {  // NOLINT(bugprone-empty-catch): loses the message
  }
  close(no_memory_);
}

}  // namespace hvd
