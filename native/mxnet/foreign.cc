#include "mxnet/foreign.h"

#include <dlfcn.h>

namespace hvd::mxnet {
namespace {

Foreign found;

template <typename Function>
void find(void* library, const char* name, Function** function, std::string* missing) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function == nullptr) *missing += (missing->empty() ? "" : ", ") + std::string(name);
}

}  // namespace

const Foreign* mxnet() { return &found; }

std::string find_mxnet(const char* path) {
  void* const library = dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr)
    return "no MXNet is loaded in this process (" + std::string(path) + "): import mxnet first";
  std::string missing;
  Foreign its;
#define HVD_MXNET_FIND(type, name, arguments) find(library, "MX" #name, &its.name, &missing);
  HVD_MXNET_FUNCTIONS(HVD_MXNET_FIND)
#undef HVD_MXNET_FIND
  find(library, "_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv", &its.reorder, &missing);
  if (!missing.empty()) return "this MXNet has no " + missing + ": hvd_kernel needs MXNet 1.9.1";
  found = its;
  return "";
}

}  // namespace hvd::mxnet
