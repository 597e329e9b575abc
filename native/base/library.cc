#include "base/library.h"

#include <dlfcn.h>

namespace hvd {

std::string own_folder() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void*>(&own_folder), &here) == 0 || here.dli_fname == nullptr)
    return "";
  const std::string file = here.dli_fname;
  const std::size_t slash = file.find_last_of('/');
  return slash == std::string::npos ? "./" : file.substr(0, slash + 1);
}

std::string loader_words(const std::string& if_it_is_silent) {
  const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): thread-local in glibc
  return why == nullptr ? if_it_is_silent : why;
}

}  // namespace hvd
