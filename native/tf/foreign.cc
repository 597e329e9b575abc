#include "tf/foreign.h"

#include <functional>

#include "base/library.h"

namespace hvd::tf {
namespace {

constexpr const char* kFramework = "libtensorflow_framework.so.2";
constexpr const char* kAnyKernel = "TF_NewKernelBuilder";

Foreign found;

// Python imports TensorFlow with private symbols up to 2.20: its library must be asked by name
// then.
Library tensorflow() {
  const Library process = Library::of_process();
  return process.has(kAnyKernel) ? process : Library::loaded(kFramework);
}

// TensorFlow hands `done` to a kernel as the address of a std::function of its own that ends with
// the call, so it is copied: which works while both sides have one and the same std::function.
bool same_std_function() {
  int hits = 0;
  std::function<void()> probe([&hits] { ++hits; });
  found.RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&probe));
  return hits == 1;
}

}  // namespace

const Foreign* tf() { return &found; }

std::string find_tensorflow() {
  const Library library = tensorflow();
  if (!library) {
    return std::string("no TensorFlow is loaded in this process (") + kFramework +
           "): import tensorflow first";
  }
  std::string missing;
#define HVD_TF_FIND(type, name, arguments) library.find("TF_" #name, found.name, missing);
  HVD_TF_FUNCTIONS(HVD_TF_FIND)
#undef HVD_TF_FIND
  if (!missing.empty()) {
    return "this TensorFlow has no " + missing + ": hvd_kernel needs TensorFlow 2.13 or newer";
  }
  if (!same_std_function()) {
    return "this TensorFlow was built with another C++ library (its std::function differs from "
           "libstdc++'s): use the "
           "wheels from PyPI";
  }
  return "";
}

}  // namespace hvd::tf
