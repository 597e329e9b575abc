// Ranks as threads, each with a device of its own, over the fake NCCL. Its sums are made in another
// order than ours, so inputs are such that every order gives the same.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

#include "cuda/nccl/nccl.h"
#include "cuda/nccl/nccl_backend.h"
#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {

// The fake's switches, from where the process has it.
class FakeNccl {
 public:
  static const FakeNccl& get() {
    static const FakeNccl fake;
    return fake;
  }

  void set_version(int version) const { call<void, int>("fake_nccl_set_version", version); }
  void hold_start(bool held) const { call<void, int>("fake_nccl_hold_start", held ? 1 : 0); }
  void hold_launch(bool held) const { call<void, int>("fake_nccl_hold_launch", held ? 1 : 0); }
  void hold_abort(bool held) const { call<void, int>("fake_nccl_hold_abort", held ? 1 : 0); }
  void refuse_start(int rank, NcclResult result) const {
    call<void, int, int>("fake_nccl_refuse_start", rank, static_cast<int>(result));
  }
  void break_rank(int rank, NcclResult result) const {
    call<void, int, int>("fake_nccl_break", rank, static_cast<int>(result));
  }
  std::size_t communicators() const { return call<std::size_t>("fake_nccl_communicators"); }
  std::size_t calls(const char* function) const {
    return call<std::size_t, const char*>("fake_nccl_calls", function);
  }
  void reset() const { call<void>("fake_nccl_reset"); }

 private:
  FakeNccl() : library_(::dlopen(HVD_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL)) {
    REQUIRE_MESSAGE(library_ != nullptr, ::dlerror());
  }
  template <typename Result, typename... Arguments>
  Result call(const char* name, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(::dlsym(library_, name))(arguments...);
  }

  void* library_;
};

inline std::unique_ptr<DeviceBackend> nccl(Rank& rank, const Group& group) {
  auto made = make_nccl_backend(rank.bootstrap(group));
  REQUIRE(made.status().message == "");
  return made.take();
}

// A rank per device; at the end there is no communicator left.
inline void on_nccl(int size, const std::function<void(Rank&)>& body) {
  FakeNccl::get().reset();
  on_rings({size, size}, body);
  CHECK(FakeNccl::get().communicators() == 0);
}

// Small whole numbers, of which neither sums nor products of a few need rounding in any type.
template <typename T, typename Make>
Bytes made_of(std::size_t count, const Make& make) {
  return hvd::test::filled_with<T>(count, make);
}

inline Bytes exact_elements(Dtype dtype, ReduceOp op, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto whole = [&] {
    if (op == ReduceOp::kProduct) return random() % 2 == 0 ? 1.0 : 2.0;
    return static_cast<double>(random() % 17) - (dtype == Dtype::kUint8 ? 0.0 : 8.0);
  };
  const std::size_t parts = dtype == Dtype::kComplex64 || dtype == Dtype::kComplex128 ? 2 : 1;
  switch (dtype) {
    case Dtype::kFloat16:
      return made_of<Float16>(count, [&] { return to_float16(static_cast<float>(whole())); });
    case Dtype::kBfloat16:
      return made_of<Bfloat16>(count, [&] { return to_bfloat16(static_cast<float>(whole())); });
    case Dtype::kFloat32:
    case Dtype::kComplex64:
      return made_of<float>(count * parts, [&] { return static_cast<float>(whole()); });
    case Dtype::kFloat64:
    case Dtype::kComplex128:
      return made_of<double>(count * parts, whole);
    default:  // integers wrap round in any order alike
      return random_elements(dtype, count, seed);
  }
}

inline void check_exact_allreduce(Rank& rank, DeviceBackend& backend, const Group& group,
                                  const ReduceCase& given) {
  check_allreduce(rank, backend, group, given, exact_elements);
}

inline void check_exact_reducescatter(Rank& rank, DeviceBackend& backend, const Group& group,
                                      const Reduction& reduction,
                                      const std::vector<std::vector<std::size_t>>& shares) {
  check_reducescatter(rank, backend, group, reduction, shares, exact_elements);
}

}  // namespace hvd::cuda::test
