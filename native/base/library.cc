#include "base/library.h"

#include <dlfcn.h>

namespace hvd {

std::string file_of(const void* address) {
  Dl_info there{};
  const bool found = ::dladdr(address, &there) != 0 && there.dli_fname != nullptr;
  return found ? there.dli_fname : "";
}

std::string own_folder() {
  const std::string file = file_of(reinterpret_cast<const void*>(&own_folder));
  if (file.empty()) return "";
  const std::size_t slash = file.find_last_of('/');
  return slash == std::string::npos ? "./" : file.substr(0, slash + 1);
}

Library::Library(const char* file, int mode) : handle_(::dlopen(file, mode)) {
  if (handle_ != nullptr) return;
  const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): thread-local in glibc
  why_not_ = why != nullptr ? why : file != nullptr ? file : "";
}

Library Library::open(const std::string& file) { return {file.c_str(), RTLD_NOW | RTLD_LOCAL}; }

Library Library::loaded(const std::string& file) { return {file.c_str(), RTLD_LAZY | RTLD_NOLOAD}; }

Library Library::of_process() { return {nullptr, RTLD_LAZY | RTLD_NOLOAD}; }

void* Library::address_of(const char* symbol) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, symbol);
}

}  // namespace hvd
