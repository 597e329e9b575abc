// MXNet's functions, under MXNet's names.
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "fake_mxnet/fake_mxnet.h"
#include "mxnet/foreign.h"

namespace fake_mxnet {
namespace {

struct Pushed {
  Operation told;
  hvd::mxnet::Run run;
  hvd::mxnet::Delete drop;
  void* argument;
};

struct World {
  std::mutex mutex;
  std::deque<Pushed> pushed;
  std::map<std::string, std::string> failing;  // by function
  std::atomic<std::size_t> arrays{0};
};
World& world() {
  static World& all = *new World;  // NOLINT(cppcoreguidelines-owning-memory): never destroyed
  return all;
}
thread_local std::string last_error;

int told(const char* function) {
  const std::lock_guard<std::mutex> locked(world().mutex);
  const auto found = world().failing.find(function);
  if (found == world().failing.end()) return 0;
  last_error = found->second;
  world().failing.erase(found);
  return -1;
}

Pushed& at(std::size_t number) {
  const std::lock_guard<std::mutex> locked(world().mutex);
  return world().pushed.at(number);
}

void drop(Pushed* pushed) {
  ++pushed->told.dropped;
  pushed->drop(pushed->argument);
}

void on_complete(void* engine, void* operation, const std::runtime_error* error) {
  if (engine != &world()) throw std::logic_error("an operation of another engine has ended");
  auto* const pushed = static_cast<Pushed*>(operation);
  if (error != nullptr) pushed->told.error = error->what();
  ++pushed->told.ended;
  drop(pushed);
}

#ifndef FAKE_MXNET_OLD  // of the function that the old one lacks
std::vector<const mxnet::Chunk*> memories(void** handles, int count) {
  std::vector<const mxnet::Chunk*> all;
  for (int i = 0; i < count; ++i) all.push_back(&of(handles[i]).memory());
  return all;
}
#endif

}  // namespace

void* array(int type, const std::vector<std::int64_t>& shape, void* other) {
  ++world().arrays;
  std::shared_ptr<mxnet::Chunk> memory = std::make_shared<mxnet::Chunk>();
  std::size_t count = 1;
  for (const std::int64_t side : shape) count *= static_cast<std::size_t>(side < 0 ? 0 : side);
  memory->words.resize(count);
  if (other == nullptr) return new mxnet::NDArray(type, shape, std::move(memory));
  auto* const made = new mxnet::NDArray(of(other));
  return made;
}

std::size_t arrays() { return world().arrays; }
const Operation& operation(std::size_t number) { return at(number).told; }

std::size_t pushed() {
  const std::lock_guard<std::mutex> locked(world().mutex);
  return world().pushed.size();
}

void run(std::size_t number) {
  Pushed& its = at(number);
  hvd::mxnet::OnComplete ended{&on_complete, &world(), &its};
  its.run(nullptr, &ended, its.argument);
}

void forget(std::size_t number) { drop(&at(number)); }

void fail(const std::string& function, const std::string& why) {
  const std::lock_guard<std::mutex> locked(world().mutex);
  world().failing[function] = why;
}

void clear() {
  const std::lock_guard<std::mutex> locked(world().mutex);
  world().pushed.clear();
}

}  // namespace fake_mxnet

void mxnet::NDArray::Reorder2DefaultAsync() const { ++memory_->reordered; }

extern "C" {

using fake_mxnet::of;
using fake_mxnet::world;

const char* MXGetLastError() { return fake_mxnet::last_error.c_str(); }

int MXShallowCopyNDArray(void* array, void** copy) {
  if (fake_mxnet::told(__func__) != 0) return -1;
  *copy = fake_mxnet::array(of(array).type(), of(array).shape(), array);
  return 0;
}

int MXNDArrayFree(void* array) {
  delete static_cast<mxnet::NDArray*>(array);
  --world().arrays;
  return 0;
}

int MXNDArrayGetData(void* array, void** data) {
  if (fake_mxnet::told(__func__) != 0) return -1;
  *data = of(array).memory().words.data();
  return 0;
}

int MXNDArrayGetDType(void* array, int* type) {
  if (fake_mxnet::told(__func__) != 0) return -1;
  *type = of(array).type();
  return 0;
}

int MXNDArrayGetShapeEx64(void* array, int* dimensions, const std::int64_t** shape) {
  if (fake_mxnet::told(__func__) != 0) return -1;
  const std::vector<std::int64_t>& its = of(array).shape();
  const bool known = its != std::vector<std::int64_t>{-1};
  *dimensions = known ? static_cast<int>(its.size()) : -1;
  *shape = its.data();
  return 0;
}

#ifndef FAKE_MXNET_OLD  // the one that lacks a function
int MXEnginePushAsyncND(hvd::mxnet::Run run, void* argument, hvd::mxnet::Delete drop,
                        const hvd::mxnet::Context* context, void** read, int reads, void** written,
                        int writes, const int* property, int priority, const char* name,
                        bool /*wait*/) {
  if (fake_mxnet::told(__func__) != 0) {
    drop(argument);
    return -1;
  }
  fake_mxnet::Operation told{};
  told.name = name;
  told.priority = priority;
  told.property = *property;
  told.device = context->device_type;
  told.reads = fake_mxnet::memories(read, reads);
  told.writes = fake_mxnet::memories(written, writes);
  const std::lock_guard<std::mutex> locked(world().mutex);
  world().pushed.push_back({std::move(told), run, drop, argument});
  return 0;
}
#endif
}
