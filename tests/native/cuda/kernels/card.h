// One device with the kernels on it, its memory, and the drivers that tests run over: the fake one
// always, the system's where there is one.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/driver.h"
#include "cuda/kernels/kernels.h"

namespace hvd::test {

class Card {
 public:
  explicit Card(const cuda::Driver& given) : driver(given) {
    REQUIRE(driver.cuDeviceGet(&device_, 0) == CUDA_SUCCESS);
    REQUIRE(driver.cuDevicePrimaryCtxRetain(&context_, device_) == CUDA_SUCCESS);
    REQUIRE(driver.cuCtxPushCurrent(context_) == CUDA_SUCCESS);
    REQUIRE(driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    auto loaded = cuda::Kernels::load(driver);
    CHECK_MESSAGE(loaded.is_ok(), loaded.status().message);
    if (loaded) kernels = loaded.take();
    REQUIRE(kernels != nullptr);
  }
  ~Card() {
    kernels.reset();
    driver.cuStreamDestroy(stream);
    CUcontext popped = nullptr;
    driver.cuCtxPopCurrent(&popped);
    driver.cuDevicePrimaryCtxRelease(device_);
  }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    REQUIRE(driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                 reinterpret_cast<CUdeviceptr>(from), bytes,
                                 stream) == CUDA_SUCCESS);
    REQUIRE(driver.cuStreamSynchronize(stream) == CUDA_SUCCESS);
  }

  const cuda::Driver& driver;
  CUstream stream = nullptr;
  std::unique_ptr<cuda::Kernels> kernels;

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

// Device memory with values in it, `offset` bytes beyond a 256-byte boundary, and a guard around
// them.
template <typename T>
class Placed {
 public:
  Placed(const Card& card, const std::vector<T>& values, std::size_t offset)
      : card_(card), count_(values.size()), offset_(kGuard + offset) {
    std::vector<unsigned char> bytes(offset_ + count_ * sizeof(T) + kGuard, kMark);
    if (count_ > 0) std::memcpy(bytes.data() + offset_, values.data(), count_ * sizeof(T));
    CUdeviceptr address = 0;
    REQUIRE(card.driver.cuMemAlloc(&address, bytes.size()) == CUDA_SUCCESS);
    base_ = reinterpret_cast<unsigned char*>(address);
    card.copy(base_, bytes.data(), bytes.size());
  }
  Placed(Placed&& other) noexcept
      : card_(other.card_), count_(other.count_), offset_(other.offset_), base_(other.base_) {
    other.base_ = nullptr;
  }
  Placed& operator=(Placed&&) = delete;
  ~Placed() {
    if (base_ != nullptr) card_.driver.cuMemFree(reinterpret_cast<CUdeviceptr>(base_));
  }

  T* data() const { return reinterpret_cast<T*>(base_ + offset_); }
  // What is there now. Nothing has been written beside it.
  std::vector<T> values() const {
    std::vector<unsigned char> bytes(offset_ + count_ * sizeof(T) + kGuard);
    card_.copy(bytes.data(), base_, bytes.size());
    std::vector<T> values(count_);
    if (count_ > 0)
      std::memcpy(static_cast<void*>(values.data()), bytes.data() + offset_, count_ * sizeof(T));
    std::size_t touched = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool guard = i < offset_ || i >= bytes.size() - kGuard;
      touched += guard && bytes[i] != kMark ? 1 : 0;
    }
    CHECK(touched == 0);
    return values;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kMark = 0xA5;
  const Card& card_;
  std::size_t count_;
  std::size_t offset_;
  unsigned char* base_ = nullptr;
};

inline const cuda::Driver& fake_driver() {
  const auto loaded = cuda::load_driver(HVD_FAKE_CUDA);
  CHECK_MESSAGE(loaded.is_ok(), loaded.status().message);
  REQUIRE(loaded.is_ok());
  return *loaded.value();
}

// Calls body once per driver of this machine.
inline void on_every_card(const std::function<void(const Card&)>& body) {
  {
    INFO("the fake driver");
    body(Card(fake_driver()));
  }
  const auto real = cuda::load_driver("");
  if (!real) return;  // "kernels: on which devices" says so
  INFO("the system's driver");
  body(Card(*real.value()));
}

}  // namespace hvd::test
