// Progress engine, its end: by failure, by lack of memory, or because its turn to leave has come.
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
    ending = no_memory_;  // then without its words
  }
  close(ending);
}

// A device that works for other ranks is let go before the user learns that the memory is his own.
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
  tried([&] {  // else without telling the others
    if (mesh_.abort().raised()) return;
    mesh_.raise_everywhere(Status::make(Code::kInternal, what, "engine/progress_engine", rank_));
  });
}

void ProgressEngine::fail_after_exception(const char* what) noexcept {
  agenda_.clear();  // its memory may be what is missing
  raise_after_exception(what);
  try {
    if (mesh_.abort().raised()) end(mesh_.abort().cause());
  } catch (...) {  // NOLINT(bugprone-empty-catch): then without its words
  }
  close(no_memory_);
}

}  // namespace hvd
