// Row I8: a rank that is let in and lies. It speaks the protocol, but what it says is false: rank 0
// says so and names it, every other rank's wait ends, nobody crashes.
//   liar   rank 1, by hand: a mesh without an engine
#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "engine/engines.h"
#include "engine/message/wire.h"
#include "world.h"

using namespace hvd;
using namespace hvd::test;

namespace {

constexpr int kRanks = 3, kLiar = 1;

struct Lie {
  std::string what;
  std::string bytes;     // the message
  std::string sentence;  // in the error of everybody else
};

std::string asks_of(const Request& request, std::vector<int> ranks = {kLiar}) {
  RequestList requests;
  requests.full.push_back({request, std::move(ranks)});
  return encode(requests);
}

Request with_sizes(Request request, std::vector<std::int64_t> sizes) {
  request.sizes = std::move(sizes);
  return request;
}

Request of_set(int set) { return in_set(about(Kind::kRemoveSet, "x", {1}), set); }

std::string some_responses() {
  std::string items;
  append_cached(items, {0});
  return response_list_of(items, 1);
}

std::vector<Lie> lies() {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const std::string unreadable = "is not a list of requests";
  const std::string senseless = "an invalid request: ";
  return {
      {"in the name of another", asks_of(sum_of("x"), {2}), "of rank 2 came from a rank outside"},
      {"in the name of rank 0", asks_of(sum_of("x"), {0}), "of rank 0 came from a rank outside"},
      {"in the name of nobody", asks_of(sum_of("x"), {-1}), "of rank -1 came from a rank outside"},
      {"of a rank that is not", asks_of(sum_of("x"), {99}), "of rank 99 came from a rank outside"},
      {"decides itself", some_responses(), unreadable},
      {"new parameters", asks_of(about(Kind::kTune, "x")), unreadable},
      {"less than nothing", asks_of(sum_of("x", {-4})), unreadable},
      {"more than there is", asks_of(sum_of("x", {huge, huge})), unreadable},
      {"a set within a set", asks_of(of_set(0)), ""},
      {"no rows to gather", asks_of(of_kind(Kind::kAllgather, "x", {})), unreadable},
      {"no splits", asks_of(of_kind(Kind::kAlltoall, "x", {4})), senseless},
      {"negative splits", asks_of(with_sizes(of_kind(Kind::kAlltoall, "x", {4}), {-1, 5, 0})),
       unreadable},
      {"more than it has", asks_of(with_sizes(of_kind(Kind::kAlltoall, "x", {4}), {4, huge, 0})),
       senseless},
      {"memory of no size", asks_of(about(Kind::kAllocate, "x")), unreadable},
      {"less memory than none", asks_of(about(Kind::kAllocate, "x", {-1})), senseless},
      {"another shape", asks_of(sum_of("x", {5})), "[5]"},
      {"another dtype", asks_of(sum_of("x", {4}, Dtype::kInt64)), "int64"},
      {"another operation", asks_of(of_kind(Kind::kBroadcast, "x", {4})), "BROADCAST"},
  };
}

// Two engines that wait for a sum, and the liar, which says this and goes: at once, or when they
// are done.
std::vector<Status> after(const std::vector<std::string>& messages, bool stays) {
  const EngineOptions options = options_of({});
  auto meshes = make_local_meshes(kRanks, options.mesh);
  std::vector<Status> ends(kRanks);
  Meeting done(kRanks);
  run_ranks(kRanks, [&](int rank) {
    auto& mesh = meshes[static_cast<std::size_t>(rank)];
    if (rank == kLiar) {
      for (const std::string& message : messages) static_cast<void>(mesh->send_control(0, message));
      if (stays) done.allgather(rank, "");
      mesh->leave();
      return;
    }
    Engine engine(std::move(mesh), options);
    std::vector<float> values(4, 1.0F);
    auto handle = engine.enqueue(request_for<float>("x", 4), {in_place(values)});
    ends[static_cast<std::size_t>(rank)] =
        handle.is_ok() ? outcome_of(engine, handle.value()).status : handle.status();
    if (stays) done.allgather(rank, "");
    engine.shutdown();
  });
  return ends;
}

// Something that the wire can carry, most of it senseless.
std::string made_up(std::mt19937& random) {
  const auto any = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most));
  };
  const auto number = [&]() -> std::int64_t {
    const std::int64_t extreme = std::numeric_limits<std::int64_t>::max();
    const std::vector<std::int64_t> all{0, 1, 3, 4, -1, 1 << 20, extreme, -extreme};
    return all[random() % all.size()];
  };
  RequestList requests;
  requests.assignments = random() % 3;
  requests.changes = random() % 3;
  if (any(3) == 0) requests.slots = {random(), random()};
  for (int i = any(3); i >= 0; --i) {
    Request request = of_kind(static_cast<Kind>(any(kKindCount)), any(2) == 0 ? "x" : "y", {});
    for (int dimensions = any(3); dimensions > 0; --dimensions)
      request.tensors.front().shape.push_back(any(3) == 0 ? number() : 4);
    request.tensors.resize(static_cast<std::size_t>(any(3)), request.tensors.front());
    for (int sizes = any(4); sizes > 0; --sizes) request.sizes.push_back(number());
    request.set = any(4) == 0 ? any(3) : 0;
    request.root = any(5) - 1;
    requests.full.push_back({request, any(4) == 0 ? std::vector<int>() : std::vector<int>{kLiar}});
  }
  return encode(requests);
}

}  // namespace

TEST_CASE("liars: I8 an impossible message is answered with an error that names its sender") {
  for (const Lie& lie : lies()) {
    CAPTURE(lie.what);
    const std::vector<Status> ends = after({lie.bytes}, true);
    for (const int rank : {0, 2}) {
      const Status& end = ends[static_cast<std::size_t>(rank)];
      CAPTURE(rank);
      CAPTURE(end.message);
      CHECK_FALSE(end.is_ok());
      CHECK(end.rank == kLiar);
      CHECK(end.message.find(lie.sentence) != std::string::npos);
    }
  }
}

TEST_CASE("liars: I8 a thousand invented messages crash no rank, and every wait ends") {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<std::string> messages(10);
    for (std::string& message : messages) message = made_up(random);
    const std::vector<Status> ends = after(messages, false);
    for (const int rank : {0, 2}) CHECK_FALSE(ends[static_cast<std::size_t>(rank)].is_ok());
  }
}
