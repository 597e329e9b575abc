// Engines whose ranks have fake accelerators, and operations on their memory.
#pragma once

#include <algorithm>

#include "engine/engines.h"
#include "fake_accelerator.h"

namespace hvd::test {

// Each rank gets what `table_of` says.
inline Engines engines_on(FakeMachine& /*machine*/, int size,
                          const std::function<Table(int)>& table_of) {
  Engines engines;
  for (auto& mesh : make_local_meshes(size, options_of(table_of(0)).mesh)) {
    EngineOptions options = options_of(table_of(mesh->topology().rank));
    options.open_accelerator = &FakeMachine::open;
    engines.push_back(std::make_unique<Engine>(std::move(mesh), options));
  }
  return engines;
}

inline Engines engines_on(FakeMachine& machine, int size, const Table& table = {}) {
  return engines_on(machine, size, [&](int /*rank*/) { return table; });
}

inline void* stream_of(std::uintptr_t number) {
  return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr)
}

inline Request on_device(Request request, int device) {
  for (TensorMeta& tensor : request.tensors) tensor.device = device;
  return request;
}

template <typename T>
Request device_request(const std::string& name, std::size_t count, int device,
                       Kind kind = Kind::kAllreduce) {
  return on_device(request_for<T>(name, count, kind), device);
}

template <typename T>
Operand in_place(const FakeTensor<T>& tensor, std::size_t count) {
  return {tensor.data(), tensor.data(), count};
}

inline std::int64_t start(Engine& engine, const Request& request, std::vector<Operand> operands,
                          std::uintptr_t stream = 0) {
  const auto handle =
      engine.enqueue(request, std::move(operands), Next::kContinues, stream_of(stream));
  REQUIRE(handle.status().message == "");
  return handle.value();
}

// Given to the device.
inline Outcome give(Engine& engine, const Request& request, std::vector<Operand> operands,
                    std::uintptr_t stream = 0) {
  return outcome_of(engine, start(engine, request, std::move(operands), stream));
}

// What an operation gave, copied to the host by the test.
template <typename T>
std::vector<T> values_of(const Buffer& buffer) {
  REQUIRE(buffer.dtype == KindOf<T>::kDtype);
  const FakeMemory* memory = FakeMemory::at(buffer.data());
  REQUIRE((memory != nullptr));
  CHECK(memory->device() == buffer.device);
  std::vector<T> values(buffer.bytes / sizeof(T));
  memory->open(true);
  if (!values.empty()) std::memcpy(values.data(), buffer.data(), buffer.bytes);
  memory->open(false);
  return values;
}

inline bool has(const std::vector<std::string>& log, const std::string& what) {
  return std::find(log.begin(), log.end(), what) != log.end();
}

inline bool query(Engine& engine, std::int64_t handle) {
  const Result<bool> done = engine.poll(handle);
  REQUIRE(done.is_ok());
  return done.value();
}

}  // namespace hvd::test
