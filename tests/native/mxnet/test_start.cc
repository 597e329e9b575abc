// Finding MXNet in the process, and what is said where it cannot be used.
#include <dlfcn.h>

#include "mxnet/core_of_tests.h"

namespace hvd::mxnet::test {

TEST_CASE("mxnet: a library that is not loaded is reported by its path") {
  CHECK(find_mxnet("/nowhere/libmxnet.so") ==
        "no MXNet is loaded in this process (/nowhere/libmxnet.so): import mxnet first");
}

TEST_CASE("mxnet: missing functions are named, and an earlier library is kept") {
  begin();
  const auto before = mxnet()->EnginePushAsyncND;
  void* const old = ::dlopen(HVD_FAKE_OLD_MXNET, RTLD_LAZY | RTLD_LOCAL);
  REQUIRE(old != nullptr);
  CHECK(find_mxnet(HVD_FAKE_OLD_MXNET) ==
        "this MXNet has no MXEnginePushAsyncND: hvd_kernel needs MXNet 1.9.1");
  CHECK(find_mxnet("libc.so.6") ==
        "this MXNet has no MXGetLastError, MXShallowCopyNDArray, MXNDArrayFree, MXNDArrayGetData, "
        "MXNDArrayGetDType, MXNDArrayGetShapeEx64, MXEnginePushAsyncND, "
        "_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv: hvd_kernel needs MXNet 1.9.1");
  REQUIRE((before != nullptr));
  CHECK((mxnet()->EnginePushAsyncND == before));
  ::dlclose(old);
}

TEST_CASE("mxnet: arrays that share memory are recognised") {
  begin();
  Held held;
  void* const one = held.array({4});
  CHECK(memory_of(one) == memory_of(held.array({2}, one)));
  CHECK(memory_of(one) != memory_of(held.array({4})));
}

}  // namespace hvd::mxnet::test
