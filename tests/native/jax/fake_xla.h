// An XLA and a core of which the test decides everything: futures, errors, and when an operation
// ends.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c_api/plugin.h"
#include "jax/call.h"
#include "jax/foreign.h"

namespace hvd::jax {

struct Error {
  std::string text;
  std::int32_t code;
};
struct Future {
  std::mutex lock;
  std::condition_variable changed;
  bool is_set = false;
  Error* error = nullptr;

  void end(Error* why) {
    const std::lock_guard<std::mutex> locked(lock);
    is_set = true;
    error = why;
    changed.notify_all();
  }
  Error* wait() {
    std::unique_lock<std::mutex> locked(lock);
    changed.wait(locked, [this] { return is_set; });
    return error;
  }
};

namespace test {

// XLA's side, with the functions of futures where jaxlib 0.4.38 and newer have them. What it makes
// is left to the process: some futures are never given back, as the one of the probe.
class FakeXla {
 public:
  FakeXla() {
    api.size = sizeof(api);
    api.error_create = [](ErrorCreate* given) {
      CHECK(given->size == kErrorCreateSize);
      return keep(new Error{given->text, given->code});
    };
    api.error_destroy = [](ErrorDestroy* given) { given->error->text = "destroyed"; };
    api.stream_get = [](StreamGet* given) -> Error* {
      if (given->context == nullptr) return keep(new Error{"no stream: this is a CPU", 3});
      given->stream = given->context;  // a frame's context is its stream here
      return nullptr;
    };
    api.after_schedule[0] = [](void*) { return keep(new Error{"unexpected size", 3}); };
    api.after_schedule[1] = [](void* given) -> Error* {
      auto* const arguments = static_cast<FutureCreate*>(given);
      if (arguments->size != kFutureCreateSize) return keep(new Error{"unexpected size", 3});
      arguments->future = keep(new Future);
      return nullptr;
    };
    api.after_schedule[2] = [](void* given) -> Error* {
      static_cast<FutureSet*>(given)->future->end(nullptr);
      return nullptr;
    };
    api.after_schedule[3] = [](void* given) -> Error* {
      auto* const arguments = static_cast<FutureSet*>(given);
      arguments->future->end(arguments->error);
      return nullptr;
    };
  }

  Api api{};

 private:
  template <typename Thing>
  static Thing* keep(Thing* thing) {
    static auto* const all = new std::deque<void*>;
    static auto* const lock = new std::mutex;
    const std::lock_guard<std::mutex> locked(*lock);
    all->push_back(thing);
    return thing;
  }
};

// The core's side: requests wait until the test ends them.
class FakeCore {
 public:
  FakeCore() {
    the() = this;
    table_.struct_size = sizeof(table_);
    table_.current = [] { return the()->engine ? reinterpret_cast<hvd_engine*>(the()) : nullptr; };
    table_.release = [](hvd_engine*) {};
    table_.rank = [](const hvd_engine*) { return the()->rank; };
    table_.set_size = [](const hvd_engine*, std::int32_t) { return 2; };
    table_.keep = [](hvd_buffer*) { ++the()->kept; };
    table_.drop = [](hvd_buffer*) { --the()->kept; };
    table_.stream_wait = [](hvd_event* of, void* stream, char* text, std::size_t size) {
      if (!the()->lost.empty()) {
        std::strncpy(text, the()->lost.c_str(), size - 1);
        return static_cast<std::int32_t>(HVD_UNAVAILABLE);
      }
      the()->followed.emplace_back(of, stream);
      return static_cast<std::int32_t>(HVD_OK);
    };
    table_.enqueue = [](hvd_engine*, const hvd_request* request, char* text, std::size_t size) {
      if (!the()->refusal.empty()) {
        std::strncpy(text, the()->refusal.c_str(), size - 1);
        return static_cast<std::int32_t>(HVD_INVALID_ARGUMENT);
      }
      the()->requests.push_back(*request);
      the()->names.emplace_back(request->name);
      if (request->count > 0) the()->devices.push_back(request->inputs[0].device);
      ++the()->asked;
      if (the()->is_quick) the()->end(the()->requests.size() - 1);
      return static_cast<std::int32_t>(HVD_OK);
    };
    plugin::table() = &table_;
  }
  ~FakeCore() { plugin::table() = nullptr; }
  FakeCore(const FakeCore&) = delete;
  FakeCore& operator=(const FakeCore&) = delete;

  void end(std::size_t number, std::int32_t code = HVD_OK, const char* text = "",
           std::int32_t failed_rank = -1, const std::vector<hvd_output>& outputs = {}) {
    hvd_outcome outcome{};
    outcome.struct_size = sizeof(outcome);
    outcome.code = code;
    outcome.text = text;
    outcome.rank = failed_rank;
    outcome.outputs_count = outputs.size();
    outcome.outputs = outputs.data();
    outcome.event = event;
    requests.at(number).done(requests.at(number).context, &outcome);
  }

  bool engine = true, is_quick = false;
  std::int32_t rank = 0;
  std::atomic<int> kept{0}, asked{0};
  std::string refusal;
  std::deque<hvd_request> requests;
  std::deque<std::string> names;
  hvd_event* event = nullptr;  // of what ends from now on
  std::string lost;            // why no stream can follow an event
  std::deque<DLDevice> devices;
  std::deque<std::pair<hvd_event*, void*>> followed;

 private:
  static FakeCore*& the() {
    static FakeCore* one = nullptr;
    return one;
  }
  hvd_core table_{};
};

// A frame of one operand and one result of float32.
class FrameOf {
 public:
  FrameOf(const FakeXla& xla, const std::string& name, std::vector<float>* in,
          std::vector<float>* out, std::int32_t kind = HVD_ALLREDUCE)
      : name_(name), in_dims_(in->size()), out_dims_(out->size()), numbers_{kind, -1, 2, 0} {
    input_ = {sizeof(Buffer), nullptr, 11, in->data(), 1, &in_dims_};
    output_ = {sizeof(Buffer), nullptr, 11, out->data(), 1, &out_dims_};
    nothing_ = {sizeof(Buffer), nullptr, 4, nullptr, 1, &no_dims_};
    frame.size = sizeof(Frame);
    frame.api = &xla.api;
    frame.stage = kExecute;
    frame.inputs = {sizeof(Buffers), nullptr, 1, nullptr, &input_place_};
    frame.outputs = {sizeof(Buffers), nullptr, 1, nullptr, output_places_};
    frame.attributes = {sizeof(Attributes), nullptr, 5, kinds_, names_, values_};
  }
  FrameOf(const FrameOf&) = delete;
  FrameOf& operator=(const FrameOf&) = delete;
  void only(std::int32_t rank) { numbers_[1] = rank; }
  void traced_for(std::int32_t size) { numbers_[2] = size; }
  void samples(std::int32_t number) { numbers_[3] = number; }
  void kind(std::int32_t number) { numbers_[0] = number; }
  void on(void* stream) { frame.context = stream; }
  void type(std::int32_t number) { input_.type = number; }
  // A second result, of no elements.
  void with_nothing() { frame.outputs.count = 2; }

  Frame frame{};

 private:
  std::string name_;
  std::int64_t in_dims_, out_dims_, no_dims_ = 0;
  std::int32_t numbers_[4];
  Buffer input_{}, output_{}, nothing_{};
  Buffer *input_place_ = &input_, *output_places_[2]{&output_, &nothing_};
  Text kind_{"kind", 4}, name_name_{"name", 4}, only_{"only", 4}, size_{"size", 4},
      samples_{"samples", 7};
  Text* names_[5]{&kind_, &name_name_, &only_, &size_, &samples_};
  std::int32_t kinds_[5]{kScalarAttribute, kTextAttribute, kScalarAttribute, kScalarAttribute,
                         kScalarAttribute};
  Scalar first_{4, &numbers_[0]}, second_{4, &numbers_[1]}, third_{4, &numbers_[2]},
      fourth_{4, &numbers_[3]};
  Text text_{name_.data(), name_.size()};
  void* values_[5]{&first_, &text_, &second_, &third_, &fourth_};
};

}  // namespace test
}  // namespace hvd::jax
