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

Names fused(const std::vector<Agreed>& agreed, std::int64_t threshold, bool groups = true) {
  FusionManager fusion(threshold, 0, groups);
  for (const Agreed& one : agreed) fusion.add(one, 0);
  return names_of(fusion.take(0));
}

Request with(const std::string& name, void (*change)(Request&)) {
  Request request = sum_of(name);
  change(request);
  return request;
}

}  // namespace

TEST_CASE("fusion: only equals, up to the threshold, in the order of the first member") {
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

TEST_CASE("fusion: gathered and scattered tensors fuse, exchanged ones do not") {
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

TEST_CASE("fusion: groups stay alone when they shall") {
  Request group = sum_of("group");
  group.tensors.push_back(group.tensors[0]);
  const std::vector<Agreed> all{agreed_on(sum_of("a")), agreed_on(group), agreed_on(sum_of("b"))};
  CHECK(fused(all, 1 << 20) == Names{{"a", "group", "b"}});
  CHECK(fused(all, 1 << 20, false) == Names{{"a", "b"}, {"group"}});
}

TEST_CASE("fusion: an operation that failed stays alone and keeps its reason") {
  Agreed bad = agreed_on(sum_of("bad"));
  bad.status = Status::make(Code::kMismatch, "no", "test");
  FusionManager fusion(1 << 20, 0, true);
  for (const Agreed& one : {agreed_on(sum_of("a")), bad, agreed_on(sum_of("b"))})
    fusion.add(one, 0);
  const auto all = fusion.take(0);
  CHECK(names_of(all) == Names{{"a", "b"}, {"bad"}});
  CHECK(all[1][0].status.message == "no");
}

TEST_CASE("fusion: a cycle holds small operations back, but never past its end or the threshold") {
  FusionManager fusion(64, 100, true);
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

}  // namespace hvd::test
