#include "mxnet/foreign.h"

#include "base/library.h"

namespace hvd::mxnet {
namespace {

Foreign found;

}  // namespace

const Foreign* mxnet() { return &found; }

std::string find_mxnet(const char* path) {
  const Library library = Library::loaded(path);
  if (!library)
    return "no MXNet is loaded in this process (" + std::string(path) + "): import mxnet first";
  std::string missing;
  Foreign its;
#define HVD_MXNET_FIND(type, name, arguments) library.find("MX" #name, its.name, missing);
  HVD_MXNET_FUNCTIONS(HVD_MXNET_FIND)
#undef HVD_MXNET_FIND
  library.find("_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv", its.reorder, missing);
  if (!missing.empty()) return "this MXNet has no " + missing + ": hvd_kernel needs MXNet 1.9.1";
  found = its;
  return "";
}

}  // namespace hvd::mxnet
