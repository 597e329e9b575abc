#include "fuzz/feed.h"

#include <cstdlib>
#include <string>

#include "engine/controller/controller.h"
#include "engine/message/wire.h"

namespace hvd::test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr int kSize = 7;

ControllerOptions options() {
  ControllerOptions options;
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
void take(Controller& controller, int parent, std::int64_t now) {
  for (const OutgoingMessage& outgoing : controller.poll(now).outgoing) {
    const bool readable = outgoing.to == parent ? decode_requests(outgoing.bytes).is_ok()
                                                : decode_responses(outgoing.bytes).is_ok();
    if (!readable) std::abort();
  }
}

// A rank that has asked for something itself hears two messages, and time passes.
void hear(int rank, int parent, int first, int second, const std::string& a, const std::string& b) {
  Controller controller(rank, kSize, options());
  controller.submit(request(Kind::kAllreduce, "a"), 0);
  controller.submit(request(Kind::kAllgather, "b"), 0);
  take(controller, parent, 0);
  if (controller.receive(first, a, 1).is_ok()) {
    take(controller, parent, 1);
    controller.submit(request(Kind::kAllreduce, "a"), 2);
    if (controller.receive(second, b, 2).is_ok()) take(controller, parent, 15 * kSecond);
    static_cast<void>(controller.waiting());
    static_cast<void>(controller.due_in(16 * kSecond));
    controller.peer_left(second, 16 * kSecond);
    take(controller, parent, 40 * kSecond);
  }
}

}  // namespace

void feed(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t cut = bytes.size() * data[0] / 255;
  const std::string a = bytes.substr(0, cut);
  const std::string b = bytes.substr(cut);
  static_cast<void>(decode_requests(bytes).is_ok());
  static_cast<void>(decode_responses(bytes).is_ok());
  hear(0, -1, 1, 2, a, b);  // rank 0
  hear(1, 0, 0, 3, a, b);   // a rank between: its parent, then a child
  hear(1, 0, 3, 0, a, b);   // and the other way round
  hear(3, 1, 1, 1, a, b);   // a leaf
}

}  // namespace hvd::test
