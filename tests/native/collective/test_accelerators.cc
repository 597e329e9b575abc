// The accelerator of an engine: loaded once, when it is asked for; why there is none is kept.
#include <doctest/doctest.h>

#include <atomic>
#include <string>

#include "collective/select.h"
#include "ranks.h"

namespace hvd::test {
namespace {

std::atomic<int> opened{0};

Accelerator* open_none(std::uint32_t /*version*/, Mesh& /*mesh*/, Backend& /*cpu*/,
                       const AcceleratorOptions& options, Status& why) {
  opened.fetch_add(1);
  why = Status::make(Code::kUnavailable, "no driver " + options.driver, "test");
  return nullptr;
}

}  // namespace

TEST_CASE("accelerators: started once on first use, with the reason on all ranks") {
  const auto meshes = make_local_meshes(1, {});
  AcceleratorOptions options;
  options.driver = "x.so";
  Backends backends(*meshes[0], {}, options, &open_none);
  CHECK(opened.load() == 0);
  run_ranks(8, [&](int) {
    const Status status = backends.accelerators().get().status();
    CHECK(status.code == Code::kInvalidArgument);
    CHECK(status.message ==
          "tensors on a device cannot be used here: no driver x.so; move the tensor to the CPU "
          "first (tensor.cpu())");
  });
  CHECK(opened.load() == 1);
  CHECK((backends.accelerators().loaded() == nullptr));
}

TEST_CASE("accelerators: without the plugin, or without its driver, the reason and the remedy") {
  const auto meshes = make_local_meshes(1, {});
  AcceleratorOptions options;
  options.driver = "/no/such/libcuda.so.1";
  Backends backends(*meshes[0], {}, options);
  const std::string message = backends.accelerators().get().status().message;
  CHECK(message.find("tensors on a device cannot be used here: ") == 0);
  CHECK((message.find("libhvd_cuda.so") != std::string::npos ||
         message.find("/no/such/libcuda.so.1") != std::string::npos));
  CHECK(message.find("; move the tensor to the CPU first (tensor.cpu())") != std::string::npos);
}

}  // namespace hvd::test
