// The driver is found at run time, or it is said in a sentence why not.
#include <doctest/doctest.h>

#include "cuda/driver/driver.h"
#include "fake_cuda/fake_cuda.h"

namespace hvd::cuda {
namespace {

// The fake's file by another name: what is known by a name is not loaded again.
std::string another_name() {
  static std::string dots;
  dots += "/.";
  const std::string file = HVD_FAKE_CUDA;
  const std::size_t slash = file.find_last_of('/');
  return file.substr(0, slash) + dots + file.substr(slash);
}

// Of the driver, for what this toolkit compiles.
std::string least() {
  return CUDA_VERSION < 13'000 ? "12.4" : std::to_string(CUDA_VERSION / 1000) + ".0";
}

Status refused(const std::string& file) {
  const auto driver = load_driver(file);
  REQUIRE(!driver.is_ok());
  return driver.status();
}

TEST_CASE("the driver has every function, and the same file is the same driver") {
  const auto driver = load_driver(HVD_FAKE_CUDA);
  REQUIRE(driver.status().message == "");
  CHECK(driver.value()->file == HVD_FAKE_CUDA);
#define HVD_CUDA_IS_THERE(name, symbol) CHECK_MESSAGE((driver.value()->name != nullptr), #symbol);
  HVD_CUDA_FUNCTIONS(HVD_CUDA_IS_THERE)
#undef HVD_CUDA_IS_THERE
  CHECK(load_driver(HVD_FAKE_CUDA).value() == driver.value());
}

TEST_CASE("no driver: the file, the system's reason, and the remedy") {
  const Status status = refused("/nowhere/libcuda.so.1");
  CHECK(status.code == Code::kUnavailable);
  CHECK(status.message ==
        "there is no CUDA driver here (/nowhere/libcuda.so.1: cannot open shared object file: No "
        "such file or directory): install NVIDIA's driver on this machine");
}

TEST_CASE("the system's driver is found, or reported missing") {
  const auto driver = load_driver("");
  if (!driver.is_ok()) CHECK(driver.status().code == Code::kUnavailable);
}

TEST_CASE("a driver that lacks a function is too old") {
  const Status status = refused("libm.so.6");
  CHECK(status.code == Code::kUnavailable);
  CHECK(status.message ==
        "the CUDA driver (libm.so.6) is too old, it has no cuInit: update it to one for CUDA " +
            least() + " or later");
}

TEST_CASE("a driver that shows no device, and one that does not start") {
  fake_cuda_fail("cuInit", 1, CUDA_ERROR_NO_DEVICE);
  CHECK(refused(another_name()).message ==
        "the CUDA driver shows no device to this process, CUDA_ERROR_NO_DEVICE (no CUDA-capable "
        "device is detected): look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  fake_cuda_fail("cuInit", 1, CUDA_ERROR_UNKNOWN);
  CHECK(refused(another_name()).message ==
        "the CUDA driver does not start, CUDA_ERROR_UNKNOWN (unknown error): look at nvidia-smi "
        "(driver and kernel module must be of one version)");
  CHECK(load_driver(another_name()).is_ok());
}

TEST_CASE("a driver that is too old for the kernels: both versions, and the remedy") {
  fake_cuda_set_version(12'020);
  const Status status = refused(another_name());
  CHECK(status.code == Code::kUnavailable);
  CHECK(status.message == "the CUDA driver is for CUDA 12.2, the core's kernels need one for " +
                              least() +
                              " or later: update it, or build the core with an older CUDA");
  fake_cuda_reset();
  CHECK(load_driver(another_name()).is_ok());
}

TEST_CASE("errors have the driver's message, and name rank and device") {
  const Driver& driver = *load_driver(HVD_FAKE_CUDA).value();
  CHECK(driver.check(CUDA_SUCCESS, "to fly").is_ok());
  const Status nowhere = driver.check(CUDA_ERROR_INVALID_HANDLE, "to fly");
  CHECK(nowhere.code == Code::kInternal);
  CHECK(nowhere.rank == -1);
  CHECK(nowhere.message == "to fly failed: CUDA_ERROR_INVALID_HANDLE (invalid resource handle)");

  const Site site{"rank 2, device 1 (Fake GPU)", 2};
  set_current_site(&site);
  const Status there = driver.check(CUDA_ERROR_OUT_OF_MEMORY, "to grow");
  const Status unknown = driver.check(CUDA_ERROR_TIMEOUT, "to guess");  // the fake has no words
  set_current_site(nullptr);
  CHECK(there.code == Code::kUnavailable);
  CHECK(there.rank == 2);
  CHECK(there.message ==
        "rank 2, device 1 (Fake GPU): to grow failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  CHECK(unknown.message == "rank 2, device 1 (Fake GPU): to guess failed: error 909");
}

}  // namespace
}  // namespace hvd::cuda
