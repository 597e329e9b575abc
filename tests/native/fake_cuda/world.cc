#include "fake_cuda/world.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "fake_cuda/current.h"
#include "fake_cuda/queue.h"

namespace fake {
namespace {

std::string setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::vector<int> visible(int devices) {
  std::vector<int> numbers;
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr) {
    for (int number = 0; number < devices; ++number) numbers.push_back(number);
    return numbers;
  }
  for (const std::string& part : split(value, ',')) {
    const int number = std::atoi(part.c_str());
    if (part.empty() || number < 0 || number >= devices) break;  // as the driver reads it
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<Failure> failures() {
  std::vector<Failure> all;
  for (const std::string& text : split(setting("FAKE_CUDA_FAIL", ""), ';')) {
    const std::vector<std::string> parts = split(text, ':');
    if (parts.size() != 3) continue;
    const int nth = parts[1] == "*" ? 0 : std::atoi(parts[1].c_str());
    all.push_back({parts[0], nth, static_cast<CUresult>(std::atoi(parts[2].c_str()))});
  }
  return all;
}

CUresult scheduled(World& all, const char* name) {
  for (auto failure = all.switches.failures.begin(); failure != all.switches.failures.end();
       ++failure) {
    if (failure->function != name) continue;
    const CUresult error = failure->error;
    if (failure->nth == 0) return error;
    if (--failure->nth > 0) continue;
    all.switches.failures.erase(failure);
    return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace

World::World() {
  switches.devices = std::atoi(setting("FAKE_CUDA_DEVICES", "1").c_str());
  if (switches.devices > kMostDevices) switches.devices = kMostDevices;
  switches.visible = visible(switches.devices);
  switches.memory = std::strtoull(setting("FAKE_CUDA_MEMORY", "1073741824").c_str(), nullptr, 10);
  switches.failures = failures();
  mps = setting("FAKE_CUDA_MPS", "0") == "1";
  if (const auto slices = split(setting("FAKE_CUDA_TURN", "0/1"), '/'); slices.size() == 2) {
    turn = std::atoi(slices[0].c_str());
    turns = std::max(1, std::atoi(slices[1].c_str()));
  }
  for (int device = 0; device < kMostDevices; ++device)
    contexts[static_cast<std::size_t>(device)].device = device;
}

World& world() {
  static World* const all = new World;  // NOLINT: never destroyed (world.h)
  return *all;
}

CUresult entered(const char* name) {
  World& all = world();
  std::chrono::milliseconds takes{0};
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    ++all.calls[name];
    if (const auto slow = all.switches.slow.find(name); slow != all.switches.slow.end())
      takes = slow->second;
    if (const CUresult error = scheduled(all, name); error != CUDA_SUCCESS) return error;
    if (!all.initialised && std::string(name) != "cuInit") return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (takes.count() > 0) std::this_thread::sleep_for(takes);
  const CUcontext context = current_context();
  return context == nullptr ? CUDA_SUCCESS : lost(context);
}

CUresult entered(const char* name, CUcontext& context) {
  FAKE_CALL(name);
  context = current_context();
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult lost(CUcontext context) {
  const auto number = static_cast<std::size_t>(context->device);
  return static_cast<CUresult>(world().lost[number].load(std::memory_order_acquire));
}

void lose(CUcontext context, CUresult error) {
  world().lost[static_cast<std::size_t>(context->device)].store(error, std::memory_order_release);
}

}  // namespace fake
