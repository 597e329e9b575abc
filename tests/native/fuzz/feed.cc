#include "fuzz/feed.h"

#include <cstdlib>
#include <string>

#include "engine/controller/controller.h"
#include "engine/message/wire.h"

namespace hvd::test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr int kSize = 7;

ConductorOptions options() {
  ConductorOptions options;
  options.fanout = 2;
  options.cache_capacity = 2;
  options.stall_warning_ns = 10 * kSecond;
  options.stall_shutdown_ns = 20 * kSecond;
  return options;
}

Request request(Kind kind, const char* name) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.tensors.resize(1);
  request.tensors[0].shape = {3};
  return request;
}

// What a rank says can be read by those it says it to.
void take(Conductor& conductor, int parent, std::int64_t now) {
  for (const Letter& letter : conductor.take(now).letters) {
    const bool readable = letter.to == parent ? decode_asks(letter.bytes).is_ok()
                                              : decode_tidings(letter.bytes).is_ok();
    if (!readable) std::abort();
  }
}

// A rank that has asked for something itself hears two messages, and time passes.
void hear(int rank, int parent, int first, int second, const std::string& a, const std::string& b) {
  Conductor conductor(rank, kSize, options());
  conductor.ask(request(Kind::kAllreduce, "a"), 0);
  conductor.ask(request(Kind::kAllgather, "b"), 0);
  take(conductor, parent, 0);
  if (conductor.hear(first, a, 1).is_ok()) {
    take(conductor, parent, 1);
    conductor.ask(request(Kind::kAllreduce, "a"), 2);
    if (conductor.hear(second, b, 2).is_ok()) take(conductor, parent, 15 * kSecond);
    static_cast<void>(conductor.waiting());
    static_cast<void>(conductor.due_in(16 * kSecond));
    conductor.gone(second, 16 * kSecond);
    take(conductor, parent, 40 * kSecond);
  }
}

}  // namespace

void feed(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t cut = bytes.size() * data[0] / 255;
  const std::string a = bytes.substr(0, cut);
  const std::string b = bytes.substr(cut);
  static_cast<void>(decode_asks(bytes).is_ok());
  static_cast<void>(decode_tidings(bytes).is_ok());
  hear(0, -1, 1, 2, a, b);  // rank 0
  hear(1, 0, 0, 3, a, b);   // a rank between: its parent, then a child
  hear(1, 0, 3, 0, a, b);   // and the other way round
  hear(3, 1, 1, 1, a, b);   // a leaf
}

}  // namespace hvd::test
