// What is carried out together, as a pure function.
#include <doctest/doctest.h>

#include <memory>

#include "engine/controller/fusion.h"
#include "engine/controller/world.h"

namespace hvd::test {
namespace {

Agreed agreed_on(const Request& request) {
  Agreed agreed;
  agreed.request = std::make_shared<const Request>(request);
  agreed.bytes = request.bytes();
  return agreed;
}

RankSet ranks(const std::vector<int>& numbers) {
  RankSet set;
  for (const int number : numbers) set.add(number);
  return set;
}

using Names = std::vector<std::vector<std::string>>;

Names names_of(const std::vector<FusionManager::FusedResponse>& all) {
  Names names;
  for (const FusionManager::FusedResponse& fused : all) {
    names.emplace_back();
    for (const Agreed& one : fused) names.back().push_back(one.request->name);
  }
  return names;
}

FusionManager fusion_of(std::int64_t threshold, std::int64_t cycle_ns = 0, bool groups = true) {
  ControllerOptions options;
  options.fusion_threshold = threshold;
  options.cycle_ns = cycle_ns;
  options.group_fusion = groups;
  return FusionManager(options);
}

Names fused(const std::vector<Agreed>& agreed, std::int64_t threshold, bool groups = true) {
  FusionManager fusion = fusion_of(threshold, 0, groups);
  for (const Agreed& one : agreed) fusion.add(one, 0);
  return names_of(fusion.take(0));
}

Request with(const std::string& name, void (*change)(Request&)) {
  Request request = sum_of(name);
  change(request);
  return request;
}

constexpr std::int64_t kMs = 1'000'000;
const std::int64_t kHold = ControllerOptions().hold_ns;

// On a device, where rank 0 has one of its tensors.
Agreed queued(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  Request request = sum_of(name, std::move(shape));
  request.tensors[0].device = 0;
  Agreed agreed = agreed_on(request);
  agreed.queues = true;
  return agreed;
}

InFlight one_since(std::int64_t since_ns, bool awaited = false) { return {1, since_ns, awaited}; }

InFlight turns(bool awaited = false) { return {0, 0, awaited, true}; }

// How many operations become of gradients of a step, one every `every_ns`, on a device that takes
// `takes_ns` for each operation. The progress engine looks when one comes and when it is due.
int operations_of_step(int gradients, std::int64_t every_ns, std::int64_t takes_ns) {
  FusionManager fusion = fusion_of(1 << 30);
  int operations = 0, asked = 0;
  std::size_t gone = 0;
  std::int64_t now = 0, begun = 0, ends = 0;
  while (gone < static_cast<std::size_t>(gradients)) {
    if (asked < gradients && now == asked * every_ns)
      fusion.add(queued(std::to_string(asked++)), now);
    const InFlight in_flight = now < ends ? one_since(begun) : InFlight{};
    for (const auto& response : fusion.take(now, in_flight)) {
      if (now >= ends) begun = now;
      ends = std::max(ends, now) + takes_ns;
      gone += response.size();
      ++operations;
    }
    const std::int64_t due = fusion.due_in(now, now < ends ? one_since(begun) : InFlight{});
    const std::int64_t next = asked < gradients ? asked * every_ns : now + due;
    now = due < 0 ? next : std::min(next, now + due);
  }
  return operations;
}

}  // namespace

TEST_CASE("fusion: of equal keys, up to the threshold, in the order of the first member") {
  std::vector<Agreed> all;
  for (const Request& request :
       {sum_of("a"), sum_of("i", {4}, Dtype::kInt32),
        with("avg", [](Request& r) { r.op = ReduceOp::kAverage; }), sum_of("b"),
        with("scaled", [](Request& r) { r.postscale = 2; }),
        with("mixed",
             [](Request& r) { r.tensors.push_back({Dtype::kInt32, kCpu, {1}, kPrivate}); }),
        with("barrier",
             [](Request& r) {
               r.kind = Kind::kBarrier;
               r.tensors.clear();
             }),
        sum_of("c"), sum_of("j", {4}, Dtype::kInt32)}) {
    all.push_back(agreed_on(request));
  }
  CHECK(fused(all, 1 << 20) ==
        Names{{"a", "b", "c"}, {"i", "j"}, {"avg"}, {"scaled"}, {"mixed"}, {"barrier"}});
  CHECK(fused(all, 32) ==
        Names{{"a", "b"}, {"i", "j"}, {"avg"}, {"scaled"}, {"mixed"}, {"barrier"}, {"c"}});
  CHECK(fused(all, 0).size() == 9);
}

TEST_CASE("fusion: every part of the key keeps operations apart") {
  using Change = void (*)(Request&);
  const std::vector<Change> changes{
      [](Request& r) { r.set = 1; },
      [](Request& r) { r.kind = Kind::kReducescatter; },
      [](Request& r) { r.op = ReduceOp::kMax; },
      [](Request& r) { r.tensors[0].dtype = Dtype::kInt32; },
      [](Request& r) { r.tensors[0].device = 0; },
      [](Request& r) { r.prescale = 3; },
      [](Request& r) { r.postscale = 3; },
      [](Request& r) { r.root = 1; },
  };
  for (const Change change : changes) {
    CHECK(fused({agreed_on(sum_of("a")), agreed_on(with("b", change))}, 1 << 20).size() == 2);
    CHECK(fused({agreed_on(with("a", change)), agreed_on(with("b", change))}, 1 << 20).size() == 1);
  }
  Agreed shared = agreed_on(sum_of("b"));
  shared.shared = true;
  CHECK(fused({agreed_on(sum_of("a")), shared}, 1 << 20).size() == 2);
  // On the lowest rank's device 0 both, but rank 1 has them on different ones.
  Agreed one = agreed_on(with("a", changes[4])), other = agreed_on(with("b", changes[4]));
  one.devices = {{0, ranks({0, 1})}};
  other.devices = {{0, ranks({0})}, {1, ranks({1})}};
  CHECK(fused({one, other}, 1 << 20).size() == 2);
  one.devices = other.devices;
  CHECK(fused({one, other}, 1 << 20).size() == 1);
  Agreed absent = agreed_on(sum_of("b"));
  absent.absent = true;
  CHECK(fused({agreed_on(sum_of("a")), absent}, 1 << 20).size() == 2);
}

TEST_CASE("fusion: allgather and reducescatter fuse, alltoall does not") {
  const auto two = [](Kind kind) {
    return fused({agreed_on(of_kind(kind, "a", {2})), agreed_on(of_kind(kind, "b", {3}))}, 1 << 20);
  };
  CHECK(two(Kind::kAllgather) == Names{{"a", "b"}});
  CHECK(two(Kind::kReducescatter) == Names{{"a", "b"}});
  CHECK(two(Kind::kBroadcast) == Names{{"a", "b"}});
  CHECK(two(Kind::kAlltoall) == Names{{"a"}, {"b"}});
  Request bytes = of_kind(Kind::kBroadcast, "b", {3});
  bytes.tensors[0].dtype = Dtype::kUint8;
  CHECK(fused({agreed_on(of_kind(Kind::kBroadcast, "a", {2})), agreed_on(bytes)}, 1 << 20) ==
        Names{{"a", "b"}});
}

TEST_CASE("fusion: groups are not fused if the option says so") {
  Request group = sum_of("group");
  group.tensors.push_back(group.tensors[0]);
  const std::vector<Agreed> all{agreed_on(sum_of("a")), agreed_on(group), agreed_on(sum_of("b"))};
  CHECK(fused(all, 1 << 20) == Names{{"a", "group", "b"}});
  CHECK(fused(all, 1 << 20, false) == Names{{"a", "b"}, {"group"}});
}

TEST_CASE("fusion: a failed operation is not fused, and keeps its reason") {
  Agreed bad = agreed_on(sum_of("bad"));
  bad.status = Status::make(Code::kMismatch, "no", "test");
  FusionManager fusion = fusion_of(1 << 20);
  for (const Agreed& one : {agreed_on(sum_of("a")), bad, agreed_on(sum_of("b"))})
    fusion.add(one, 0);
  const auto all = fusion.take(0);
  CHECK(names_of(all) == Names{{"a", "b"}, {"bad"}});
  CHECK(all[1][0].status.message == "no");
}

TEST_CASE("fusion: a cycle holds small operations, up to its end or the threshold") {
  FusionManager fusion = fusion_of(64, 100);
  CHECK(fusion.due_in(0) < 0);
  fusion.add(agreed_on(sum_of("a")), 10);
  CHECK(fusion.take(50).empty());
  CHECK(fusion.due_in(50) == 60);
  fusion.add(agreed_on(sum_of("b")), 60);
  CHECK(fusion.take(109).empty());
  CHECK(fusion.take(110).size() == 1);
  CHECK(fusion.due_in(110) < 0);
  fusion.add(agreed_on(sum_of("big", {16})), 200);
  CHECK(fusion.take(200).size() == 1);
  fusion.add(agreed_on(sum_of("a")), 300);
  fusion.add(agreed_on(of_kind(Kind::kAlltoall, "b", {1})), 301);
  CHECK(fusion.take(301).size() == 2);
  fusion.add(agreed_on(sum_of("a")), 400);
  CHECK_FALSE(fusion.empty());
  CHECK(fusion.take_all().size() == 1);
  CHECK(fusion.empty());
}

TEST_CASE("fusion: on an idle device the first starts at once, later ones when it is done") {
  FusionManager fusion = fusion_of(1 << 20);
  fusion.add(queued("a"), 0);
  CHECK(fusion.due_in(0) == 0);
  CHECK(names_of(fusion.take(0)) == Names{{"a"}});
  fusion.add(queued("b"), kMs);
  CHECK(fusion.take(kMs, one_since(0)).empty());
  CHECK(fusion.held_on_devices().size() == 1);
  CHECK(fusion.due_in(kMs, one_since(0)) == 100'000);  // devices do not say when they are done
  fusion.add(queued("c"), 2 * kMs);
  CHECK(fusion.take(2 * kMs, one_since(0)).empty());
  CHECK(names_of(fusion.take(3 * kMs)) == Names{{"b", "c"}});
  CHECK(fusion.held_on_devices().empty());
}

TEST_CASE("fusion: 160 gradients become a few operations, for any speed of the device") {
  constexpr std::int64_t kUs = 1000, kEvery = 100 * kUs;
  CHECK(operations_of_step(160, kEvery, 10 * kUs) == 160);  // each is done when the next comes
  for (const std::int64_t takes : {1, 2, 5, 8, 24, 100, 1000, 60'000}) {
    CAPTURE(takes);
    const int operations = operations_of_step(160, kEvery, takes * kMs);
    // One whenever one ends, and the last; the step lasts 16 ms.
    CHECK(operations <= 16 / takes + 2);
    CHECK(operations >= 2);
  }
  CHECK(operations_of_step(160, 0, kMs) <= 2);
  CHECK(operations_of_step(1, kEvery, 100 * kMs) == 1);
}

TEST_CASE("fusion: operations in flight may wait for held ones, which are released after a time") {
  FusionManager fusion = fusion_of(1 << 20);
  fusion.add(queued("a"), kMs);
  CHECK(fusion.take(kMs + kHold - 1, one_since(0)).empty());
  CHECK(fusion.due_in(kMs + kHold - 1, one_since(0)) == 1);
  CHECK(fusion.take(kMs + kHold, one_since(0)).size() == 1);
  // As long again as it has taken: of a device that hangs few are woken.
  std::int64_t now = kMs + kHold;
  for (const std::int64_t longest : {now, 2 * now, 4 * now}) {
    fusion.add(queued("b"), now);
    CHECK(fusion.take(now + longest - 1, one_since(0)).empty());
    now += longest;
    CHECK(fusion.take(now, one_since(0)).size() == 1);
  }
}

TEST_CASE("fusion: the threshold, an operation that cannot fuse, or a waiting caller release it") {
  FusionManager fusion = fusion_of(32);
  fusion.add(queued("a"), 0);
  CHECK(fusion.take(0, one_since(0)).empty());
  fusion.add(queued("b"), 0);
  CHECK(names_of(fusion.take(0, one_since(0))) == Names{{"a", "b"}});
  fusion.add(queued("a", {1}), 0);
  Agreed exchanged = queued("exchanged", {1});
  Request request = *exchanged.request;
  request.kind = Kind::kAlltoall;
  exchanged.request = std::make_shared<const Request>(request);
  fusion.add(exchanged, 0);
  CHECK(names_of(fusion.take(0, one_since(0))) == Names{{"a"}, {"exchanged"}});
  fusion.add(queued("a"), 0);
  CHECK(fusion.take(0, one_since(0)).empty());
  CHECK(names_of(fusion.take(0, one_since(0, true))) == Names{{"a"}});
}

TEST_CASE("fusion: operations on the host, or not on rank 0's device, wait for no device") {
  FusionManager fusion = fusion_of(1 << 20);
  Agreed elsewhere = queued("elsewhere");
  elsewhere.queues = false;
  fusion.add(agreed_on(sum_of("host")), 0);
  fusion.add(queued("device"), 0);
  fusion.add(elsewhere, 0);
  CHECK(fusion.count() == 3);
  CHECK(names_of(fusion.take(0, one_since(0))) == Names{{"host"}, {"elsewhere"}});
  fusion.add(agreed_on(sum_of("host")), 0);
  CHECK(names_of(fusion.take(0)) == Names{{"device"}, {"host"}});  // it goes on by itself
}

TEST_CASE("fusion: in turns, operations are held until a caller waits") {
  FusionManager fusion = fusion_of(40);
  for (const char* const name : {"a", "b", "c", "d"}) {
    fusion.add(queued(name), 0);
    CHECK(fusion.take(0, turns()).empty());
  }
  CHECK(names_of(fusion.take(1, turns(true))) == Names{{"a", "b"}, {"c", "d"}});
}

TEST_CASE("fusion: in turns, the wait is at most five times as long as otherwise") {
  FusionManager fusion = fusion_of(1 << 20);
  fusion.add(queued("a"), 0);
  CHECK(fusion.take(5 * kHold - 1, turns()).empty());
  CHECK(fusion.due_in(5 * kHold - 1, turns()) == 1);
  CHECK(names_of(fusion.take(5 * kHold, turns())) == Names{{"a"}});
}

TEST_CASE("fusion: on a device a cycle has the same length with operations in flight") {
  FusionManager fusion = fusion_of(1 << 20, 100);
  for (const InFlight& in_flight : {InFlight{}, one_since(0), one_since(0, true)}) {
    fusion.add(queued("a"), 10);
    CHECK(fusion.take(109, in_flight).empty());
    CHECK(fusion.due_in(109, in_flight) == 1);
    CHECK(fusion.take(110, in_flight).size() == 1);
  }
}

}  // namespace hvd::test
