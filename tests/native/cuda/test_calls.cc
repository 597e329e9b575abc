// What one operation asks of the driver: so many launches, batches of words and waits, whatever the
// number of its tensors, and nothing for which the host waits. On a device whose time several
// processes share each of them costs a time slice; here they are counted.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "collective/cpu_backend.h"
#include "cuda/accelerator.h"
#include "cuda/rings.h"

namespace hvd::cuda {
namespace {

using hvd::test::everybody;

constexpr std::size_t kTensors = 8, kCount = 100;
CUstream const kDefaultStream = nullptr;

using Calls = std::map<std::string, std::size_t>;

// Since the start, of all ranks.
Calls calls_so_far() {
  Calls calls;
  for (const char* const function :
       {"cuLaunchKernel", "cuStreamBatchMemOp", "cuStreamWaitEvent", "cuEventSynchronize",
        "cuStreamSynchronize", "cuEventQuery", "cuMemAllocAsync"})
    calls[function] = fake_cuda_calls(function);
  return calls;
}

// A rank with a device of its own, whose frontend works on the default stream.
class Frontend {
 public:
  Frontend(int size, int rank, Mesh& mesh) : rank_(rank), cpu_(mesh), all_(everybody(size, rank)) {
    AcceleratorOptions options;
    options.driver = HVD_FAKE_CUDA;
    options.arena_bytes = 65536;
    options.ring = "slices";
    auto opened = CudaAccelerator::open(mesh, cpu_, options);
    REQUIRE(opened.status().message == "");
    accelerator_ = opened.take();
    for (std::size_t i = 0; i < kTensors; ++i) {
      auto memory = accelerator_->allocate(rank, kCount * sizeof(float));
      REQUIRE(memory.status().message == "");
      tensors_.push_back(memory.take());
    }
  }

  // Each tensor is submitted, all go as one operation, and each is waited for.
  void allreduce() {
    std::vector<DeviceEventPtr> ready;
    std::vector<Operand> operands;
    for (const auto& tensor : tensors_) {
      auto event = accelerator_->record(rank_, kDefaultStream);
      REQUIRE(event.status().message == "");
      ready.push_back(event.take());
      operands.push_back({tensor.get(), tensor.get(), kCount});
    }
    const auto backend = accelerator_->begin(rank_, all_, 0, ready);
    REQUIRE(backend.status().message == "");
    const Reduction sum{Dtype::kFloat32, ReduceOp::kSum, {}};
    const Status given = region_.mine == nullptr ? backend.value()->allreduce(all_, operands, sum)
                                                 : backend.value()->allreduce_shared(
                                                       all_, shared(), region_.offsets, sum);
    REQUIRE(given.message == "");
    auto done = accelerator_->end();
    REQUIRE(done.status().message == "");
    for (std::size_t i = 0; i < kTensors; ++i)
      REQUIRE(done.value()->stream_wait(kDefaultStream).message == "");
  }

  // From now on sums are of memory that the ranks share.
  void share() {
    auto region = accelerator_->share(rank_, all_, kTensors * kCount * sizeof(float));
    REQUIRE(region.status().message == "");
    region_ = region.take();
  }

  // A barrier: each rank has sent before any continues.
  void meet() {
    char word = 0;
    for (int root = 0; root < all_.size(); ++root)
      REQUIRE(cpu_.broadcast(all_, {{&word, &word, 1}}, root).is_ok());
  }

  void end() {
    while (!accelerator_->idle()) std::this_thread::yield();
    meet();
  }

 private:
  std::vector<Operand> shared() const {
    std::vector<Operand> operands;
    for (std::size_t i = 0; i < kTensors; ++i) {
      auto* const at = static_cast<float*>(region_.mine.get()) + i * kCount;
      operands.push_back({at, at, kCount});
    }
    return operands;
  }

  int rank_;
  CpuBackend cpu_;
  Group all_;
  std::unique_ptr<CudaAccelerator> accelerator_;
  std::vector<std::shared_ptr<void>> tensors_;
  DeviceRegion region_;
};

// Of one operation, on each rank.
Calls calls_of_one(int size, bool shared) {
  fake_cuda_reset();
  fake_cuda_set_devices(size);
  Calls calls;
  const auto meshes = make_local_meshes(size, {});
  hvd::test::run_ranks(size, [&](int rank) {
    Frontend frontend(size, rank, *meshes[static_cast<std::size_t>(rank)]);
    frontend.allreduce();  // they have met
    if (shared) frontend.share();
    frontend.meet();
    if (rank == 0) calls = calls_so_far();
    frontend.meet();
    frontend.allreduce();
    frontend.meet();
    if (rank == 0)
      for (const auto& [function, after] : calls_so_far())
        calls[function] = after - calls[function];
    frontend.meet();  // behind this, others end
    frontend.end();
  });
  test::check_nothing_left();
  for (auto& [function, of_all] : calls) {
    CAPTURE(function);
    CHECK(of_all % static_cast<std::size_t>(size) == 0);
    of_all /= static_cast<std::size_t>(size);
  }
  return calls;
}

Calls with(std::size_t launches, std::size_t batches) {
  return {{"cuLaunchKernel", launches}, {"cuStreamBatchMemOp", batches},
          {"cuStreamWaitEvent", 2},  // for the inputs, and the frontend's for the results
          {"cuEventSynchronize", 0},    {"cuStreamSynchronize", 0},
          {"cuEventQuery", 0},          {"cuMemAllocAsync", 0}};
}

}  // namespace

TEST_CASE("calls: a fused sum is packed, folded and unpacked, with words between") {
  for (const int size : {2, 4}) {
    CAPTURE(size);
    CHECK(calls_of_one(size, false) == with(3, 4));
  }
}

TEST_CASE("calls: a sum in shared memory of ranks is one launch between words") {
  for (const int size : {2, 4}) {
    CAPTURE(size);
    CHECK(calls_of_one(size, true) == with(1, 2));
  }
}

}  // namespace hvd::cuda
