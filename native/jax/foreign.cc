#include "jax/foreign.h"

#include <atomic>

#include "base/mutex.h"

namespace hvd::jax {
namespace {

// True if futures are created by the function at this place. The created one is set and leaked: XLA
// frees it with its last reader, and it has none.
bool makes_futures(const Api* api, std::size_t place) {
  FutureCreate arguments{kFutureCreateSize, nullptr, nullptr};
  Error* const refused = api->after_schedule[place](&arguments);
  if (refused != nullptr) {
    ErrorDestroy gone{sizeof(ErrorDestroy), nullptr, refused};
    api->error_destroy(&gone);
    return false;
  }
  if (arguments.future == nullptr) return false;
  FutureSet now{kFutureSetSize, nullptr, arguments.future, nullptr};
  api->after_schedule[place + 1](&now);
  return true;
}

}  // namespace

bool is_query(Frame* frame) {
  for (Extension* each = frame->extension; each != nullptr; each = each->next) {
    if (each->type != kMetadata) continue;
    Metadata* const metadata = reinterpret_cast<MetadataExtension*>(each)->metadata;
    metadata->version.major = 0;
    metadata->version.minor = 1;
    metadata->traits = 0;
    return true;
  }
  return frame->stage != kExecute;
}

Error* error(const Api* api, Code code, const std::string& text) {
  ErrorCreate arguments{kErrorCreateSize, nullptr, text.c_str(), static_cast<std::int32_t>(code)};
  return api->error_create(&arguments);
}

std::string stream_of(const Frame& frame, void** stream) {
  StreamGet arguments{sizeof(StreamGet), nullptr, frame.context, nullptr};
  if (Error* const refused = frame.api->stream_get(&arguments); refused != nullptr) {
    ErrorDestroy gone{sizeof(ErrorDestroy), nullptr, refused};
    frame.api->error_destroy(&gone);
    return "XLA has no stream for it: it is registered for GPUs alone";
  }
  *stream = arguments.stream;
  return "";
}

const Futures* futures(const Api* api) {
  static std::atomic<const Futures*> found{nullptr};
  if (const Futures* const known = found) return known;
  static Mutex lock;
  static Futures here{};
  const MutexLock locked(lock);
  if (found == nullptr) {
    for (const std::size_t place : {1U, 0U}) {
      if (!makes_futures(api, place)) continue;
      here = {api->after_schedule[place], api->after_schedule[place + 1],
              api->after_schedule[place + 2]};
      found = &here;
      break;
    }
  }
  return found;
}

Future* new_future(const Futures& functions) {
  FutureCreate arguments{kFutureCreateSize, nullptr, nullptr};
  return functions.create(&arguments) == nullptr ? arguments.future : nullptr;
}

void set(const Futures& functions, Future* future) {
  FutureSet arguments{kFutureSetSize, nullptr, future, nullptr};
  functions.set(&arguments);
}

void fail(const Futures& functions, Future* future, Error* why) {
  FutureSet arguments{kFutureFailSize, nullptr, future, why};
  functions.fail(&arguments);
}

}  // namespace hvd::jax
