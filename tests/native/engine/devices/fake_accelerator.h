// A fake accelerator for each rank of a test. Its device memory is pages of host memory that nobody
// may touch but an operation of the fake: a core that reads or writes them by itself crashes. An
// operation is carried out by the host's backend at the moment when it is given; its event is
// reached when the test says so.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "collective/accelerator.h"
#include "tensor/dtype.h"
#include "tensor/reduce.h"

namespace hvd::test {

constexpr int kFakeDevices = 2;
constexpr int kFakeChoice = 1;  // what kAnyDevice is

// Memory of one device, closed but while a FakeOpen of it lives.
class FakeMemory {
 public:
  FakeMemory(int device, std::size_t bytes) : device_(device), bytes_((bytes / 4096 + 1) * 4096) {
    data_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(data_ != MAP_FAILED);
    const std::lock_guard<std::mutex> lock(mutex());
    all()[data_] = this;
  }
  ~FakeMemory() {
    const std::lock_guard<std::mutex> lock(mutex());
    all().erase(data_);
    ::munmap(data_, bytes_);
  }
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  void* data() const { return data_; }
  int device() const { return device_; }
  void open(bool open) const {
    REQUIRE(::mprotect(data_, bytes_, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
  }

  // Null: that is no device memory.
  static const FakeMemory* at(const void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex());
    auto after = all().upper_bound(const_cast<void*>(pointer));  // NOLINT: a key
    if (after == all().begin()) return nullptr;
    const FakeMemory* memory = std::prev(after)->second;
    const auto* begin = static_cast<const std::byte*>(memory->data_);
    return static_cast<const std::byte*>(pointer) < begin + memory->bytes_ ? memory : nullptr;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex the_mutex;
    return the_mutex;
  }
  static std::map<void*, const FakeMemory*>& all() {
    static std::map<void*, const FakeMemory*> the_map;
    return the_map;
  }

  const int device_;
  const std::size_t bytes_;
  void* data_ = nullptr;
};

// A tensor of the test on a device.
template <typename T>
class FakeTensor {
 public:
  FakeTensor(int device, const std::vector<T>& values)
      : memory_(device, values.size() * sizeof(T)), count_(values.size()) {
    memory_.open(true);
    if (count_ > 0) std::memcpy(memory_.data(), values.data(), count_ * sizeof(T));
    memory_.open(false);
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    memory_.open(true);
    if (count_ > 0) std::memcpy(values.data(), memory_.data(), count_ * sizeof(T));
    memory_.open(false);
    return values;
  }

 private:
  FakeMemory memory_;
  std::size_t count_;
};

// What a test says to the fake of one rank, and hears from it.
struct FakeDevice {
  std::string missing;                // why this rank has none; empty: it has
  std::atomic<bool> held{false};      // events made now are not reached until this is false
  std::atomic<bool> stuck{false};     // operations are begun at the abort only
  std::atomic<bool> captures{false};  // events made now are part of a graph
  std::atomic<bool> busy{false};      // not idle
  std::atomic<long> looks{0};         // how often the core has asked whether it is idle
  std::atomic<std::size_t> room{std::size_t{1} << 40U};  // bytes that one allocation may have
  std::atomic<bool> broken{false};                       // operations fail
  std::atomic<bool> failed{false};                       // events tell of a device that has failed
  std::atomic<bool> aborted{false};                      // abandoned
  std::atomic<long> in_use{0};                           // allocations
  std::atomic<std::int64_t> busy_ns{0}, exposed_ns{0};   // that its operations took
  std::atomic<bool> measured{false};                     // the core wants to know when
  std::atomic<std::int64_t> span_ns{0};  // operations were queued, begun and done so long after it

  void note(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    log_.push_back(what);
  }
  // What the core has asked for since the last time, in order.
  std::vector<std::string> calls() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(log_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> log_;
};
using FakeDevicePtr = std::shared_ptr<FakeDevice>;

inline std::string pointer_text(const void* pointer) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(pointer));
}

class FakeEvent final : public DeviceEvent {
 public:
  FakeEvent(FakeDevicePtr device, std::string name)
      : device_(std::move(device)),
        name_(std::move(name)),
        held_(device_->held),
        captured_(device_->captures),
        given_ns_(device_->measured ? now_ns() : 0) {}
  Status stream_wait(void* stream) override {
    device_->note("stream " + pointer_text(stream) + " follows " + name_);
    return Status::ok();
  }
  Result<bool> query() override {
    if (device_->failed) return Status::make(Code::kInternal, "the fake device has failed", "fake");
    return !held_ || !device_->held || device_->aborted;
  }
  bool captured() const override { return captured_; }
  std::optional<DeviceSpan> span() override {
    if (given_ns_ == 0 || captured_) return std::nullopt;
    const std::int64_t step = device_->span_ns;
    return DeviceSpan{given_ns_ + step, given_ns_ + 2 * step, given_ns_ + 3 * step};
  }
  const std::string& name() const { return name_; }

 private:
  const FakeDevicePtr device_;
  const std::string name_;
  const bool held_, captured_;
  const std::int64_t given_ns_;  // 0: not measured
};

class FakeBackend final : public Backend {
 public:
  FakeBackend(FakeDevicePtr device, Backend& cpu, int rank)
      : device_(std::move(device)), cpu_(cpu), rank_(rank) {}
  void use(int device) { number_ = device == kAnyDevice ? kFakeChoice : device; }

  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override {
    note("allreduce", operands.size(), reduction.scaling.before);
    Touched touched;
    for (const Operand& one : operands) add(touched, {one.in, one.out});
    return within(touched, [&] { return cpu_.allreduce(group, operands, reduction); });
  }
  // Looks at where the members' memory is said to be, and reduces its own.
  Status allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                          const std::vector<std::ptrdiff_t>& offsets,
                          const Reduction& reduction) override {
    note("shared allreduce", operands.size(), reduction.scaling.before);
    for (const Operand& one : operands) {
      for (const std::ptrdiff_t offset : offsets)
        if (FakeMemory::at(static_cast<std::byte*>(one.out) + offset) == nullptr)
          return fault("an offset that leads to no device memory");
    }
    if (offsets.size() != group.ranks.size()) return fault("offsets of other ranks");
    Touched touched;
    for (const Operand& one : operands) add(touched, {one.in, one.out});
    return within(touched, [&] { return cpu_.allreduce(group, operands, reduction); });
  }
  Status broadcast(const Group& group, const std::vector<Operand>& operands, int root) override {
    note("broadcast", operands.size(), 1);
    Touched touched;
    for (const Operand& one : operands) add(touched, {one.in, one.out});
    return within(touched, [&] { return cpu_.broadcast(group, operands, root); });
  }
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override {
    note("allgather", tensors.size(), 1);
    Touched touched;
    for (const Gather& one : tensors) add(touched, {one.in, one.out.front()});
    return within(touched, [&] { return cpu_.allgather(group, tensors); });
  }
  Status alltoall(const Group& group, const Exchange& exchange) override {
    note("alltoall", 1, 1);
    Touched touched;
    add(touched, {exchange.in.front(), exchange.out.front()});
    return within(touched, [&] { return cpu_.alltoall(group, exchange); });
  }
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override {
    note("reducescatter", tensors.size(), reduction.scaling.before);
    Touched touched;
    for (const Scatter& one : tensors) add(touched, {one.in, one.out});
    return within(touched, [&] { return cpu_.reducescatter(group, tensors, reduction); });
  }
  const char* last_algorithm() const override { return "FAKE_RING"; }

  Status fill(Dtype dtype, ReduceOp op, void* out, std::size_t count) {
    Touched touched;
    add(touched, {out});
    return within(touched, [&] {
      fill_identity(dtype, op, out, count);
      return Status::ok();
    });
  }

 private:
  struct Touched {
    std::map<const void*, const FakeMemory*> memory;
    bool foreign = false;
  };

  void note(const char* what, std::size_t operands, double before) {
    device_->note(std::string(what) + " of " + std::to_string(operands) + " on " +
                  std::to_string(number_) +
                  (before == 1.0 ? "" : " times " + std::to_string(static_cast<int>(before))));
  }
  Status fault(const std::string& what) const {
    return Status::make(Code::kInternal, "rank " + std::to_string(rank_) + ": " + what, "fake",
                        rank_);
  }
  void add(Touched& touched, const std::vector<const void*>& pointers) const {
    for (const void* pointer : pointers) {
      const FakeMemory* memory = FakeMemory::at(pointer);
      if (memory == nullptr || memory->device() != number_) {
        touched.foreign = true;
      } else {
        touched.memory[memory->data()] = memory;
      }
    }
  }
  template <typename F>
  Status within(const Touched& touched, const F& body) {
    if (device_->broken) return fault("the fake cannot launch");
    if (touched.foreign) return fault("memory that is not of device " + std::to_string(number_));
    for (const auto& [data, memory] : touched.memory) memory->open(true);
    Status status = body();
    for (const auto& [data, memory] : touched.memory) memory->open(false);
    return status;
  }

  const FakeDevicePtr device_;
  Backend& cpu_;
  const int rank_;
  int number_ = 0;
};

class FakeAccelerator final : public Accelerator {
 public:
  FakeAccelerator(FakeDevicePtr device, Mesh& mesh, Backend& cpu)
      : device_(std::move(device)),
        mesh_(mesh),
        cpu_(cpu),
        backend_(device_, cpu, mesh.topology().rank) {}
  ~FakeAccelerator() override { device_->note("gone"); }

  Status open(int device) override { return record(device, nullptr).status(); }
  Result<DeviceEventPtr> record(int device, void* stream) override {
    if (device >= kFakeDevices) {
      return Status::make(Code::kInvalidArgument,
                          "there is no device " + std::to_string(device) + " here", "fake");
    }
    return DeviceEventPtr(std::make_shared<FakeEvent>(
        device_, "device " + std::to_string(device) + " stream " + pointer_text(stream)));
  }
  Result<std::shared_ptr<void>> allocate(int device, std::size_t bytes) override {
    if (bytes > device_->room) return Status::make(Code::kUnavailable, "the fake is full", "fake");
    device_->in_use.fetch_add(1);
    const int number = device == kAnyDevice ? kFakeChoice : device;
    const std::shared_ptr<FakeMemory> memory(new FakeMemory(number, bytes),
                                             [state = device_](FakeMemory* gone) {
                                               delete gone;
                                               state->in_use.fetch_sub(1);
                                             });
    return std::shared_ptr<void>(memory, memory->data());
  }
  Result<Backend*> begin(int device, const Group& group, std::size_t bytes,
                         const std::vector<DeviceEventPtr>& ready) override {
    std::string text = "begin " + std::to_string(device) + " set " + std::to_string(group.id) +
                       " bytes " + std::to_string(bytes) + ":";
    for (const DeviceEventPtr& event : ready) text += " " + static_cast<FakeEvent&>(*event).name();
    device_->note(text);
    while (device_->stuck && !mesh_.abort().raised()) std::this_thread::yield();
    if (device_->stuck) return mesh_.abort().cause();
    backend_.use(device);
    return static_cast<Backend*>(&backend_);
  }
  Result<DeviceEventPtr> end() override {
    device_->note("end");
    return DeviceEventPtr(
        std::make_shared<FakeEvent>(device_, "operation " + std::to_string(number_++)));
  }
  bool in_turns() const override { return false; }
  void measure(bool on) override { device_->measured = on; }
  Result<DeviceRegion> share(int device, const Group& group, std::size_t bytes) override {
    device_->note("share " + std::to_string(bytes) + " on " + std::to_string(device));
    auto mine = allocate(device, bytes);
    std::vector<std::uintptr_t> all(group.ranks.size());
    Gather gather;
    const auto here = mine ? reinterpret_cast<std::uintptr_t>(mine.value().get()) : 0;
    gather.in = reinterpret_cast<const std::byte*>(&here);
    for (std::uintptr_t& one : all) {
      gather.out.push_back(reinterpret_cast<std::byte*>(&one));
      gather.bytes.push_back(sizeof one);
    }
    if (Status status = cpu_.allgather(group, {gather}); !status) return status;
    DeviceRegion region;
    for (std::size_t place = 0; place < all.size(); ++place) {
      if (all[place] == 0)
        return Status::make(Code::kUnavailable, "a fake is full", "fake", group.ranks[place]);
      region.offsets.push_back(static_cast<std::ptrdiff_t>(all[place] - here));
    }
    region.mine = mine.take();
    return region;
  }
  Status drain() override {
    device_->note("drain");
    return Status::ok();
  }
  void release(const DeviceRegion& region) override {
    device_->note(region.mine == nullptr ? "release of nothing" : "release");
  }
  Status fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) override {
    device_->note("fill " + std::to_string(count));
    return backend_.fill(dtype, op, out, count);
  }
  DeviceTimes times() override { return {device_->busy_ns, device_->exposed_ns}; }
  bool idle() override {
    device_->looks.fetch_add(1);
    return !device_->busy;
  }
  void abandon() override {
    device_->aborted = true;
    device_->note("abandon");
  }

 private:
  const FakeDevicePtr device_;
  Mesh& mesh_;
  Backend& cpu_;
  FakeBackend backend_;
  int number_ = 0;
};

// The devices of the ranks of one test; one test at a time.
class FakeMachine {
 public:
  explicit FakeMachine(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) devices_.push_back(std::make_shared<FakeDevice>());
    current() = this;
  }
  ~FakeMachine() { current() = nullptr; }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  FakeDevice& operator[](int rank) { return *devices_[static_cast<std::size_t>(rank)]; }

  static Accelerator* open(std::uint32_t version, Mesh& mesh, Backend& cpu,
                           const AcceleratorOptions& /*options*/, Status& why) {
    const int rank = mesh.topology().rank;
    const FakeDevicePtr& device = current()->devices_[static_cast<std::size_t>(rank)];
    device->note("open");
    if (device->missing.empty() && version == kAcceleratorVersion) {
      return new FakeAccelerator(device, mesh, cpu);  // NOLINT: the core's
    }
    why = Status::make(Code::kUnavailable, device->missing, "fake");
    return nullptr;
  }

 private:
  static FakeMachine*& current() {
    static FakeMachine* machine = nullptr;
    return machine;
  }
  std::vector<FakeDevicePtr> devices_;
};

}  // namespace hvd::test
