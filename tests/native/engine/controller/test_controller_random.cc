// Random schedules with fixed seeds: whatever the number of ranks, the tree, the sets, the cache
// and the order in which requests and letters come, all ranks do the same things in the same order,
// and everything once.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/controller/world.h"

namespace hvd::test {
namespace {

struct Plan {
  int size = 1;
  std::vector<std::vector<std::int64_t>> sets;  // by id
  bool messages = false;                        // also between neighbours in a ring
  int names = 4;
  int rounds = 3;
  unsigned change = 200;  // in 1,000: how often the requests for a name are others than last time
  ControllerOptions options;
};

using Asked = std::pair<int, std::string>;  // set, name

// One line per response: what it says, without how it came.
std::string line_of(const Response& response) {
  std::string line = std::to_string(response.set) + " " + name_of(response.kind);
  for (const std::string& name : response.names) line += " " + name;
  return line + " " + shape_text(response.sizes) + (response.shared ? " shared" : "") +
         (response.status ? "" : " " + response.status.message);
}

class Schedule {
 public:
  Schedule(const Plan& plan, unsigned seed)
      : plan_(plan), random_(seed), world_(plan.size, plan.options) {
    rounds_.resize(static_cast<std::size_t>(plan.size));
    lines_.resize(static_cast<std::size_t>(plan.size));
  }

  // The responses of each rank.
  std::vector<std::vector<std::string>> run() {
    add_sets();
    while (step()) continue;
    for (int rank = 0; rank < plan_.size; ++rank) {
      CHECK(world_.at(rank).idle());
      CHECK(world_.at(rank).waiting().empty());
      for (const auto& [asked, count] : rounds(rank)) {
        CHECK_MESSAGE(count == plan_.rounds, asked.second << " at rank " << rank);
      }
    }
    return lines_;
  }

 private:
  std::map<Asked, int>& rounds(int rank) { return rounds_[static_cast<std::size_t>(rank)]; }

  void add_sets() {
    for (std::size_t id = 0; id < plan_.sets.size(); ++id) {
      if (id > 0) world_.submit_all(about(Kind::kAddSet, "add", plan_.sets[id]));
      world_.deliver_all(&random_);
    }
    for (int rank = 0; rank < plan_.size; ++rank) {
      world_.responses(rank);
      const int n = plan_.size;
      for (int peer = 0; plan_.messages && peer < n; ++peer) {
        if (peer == rank || (peer != (rank + 1) % n && rank != (peer + 1) % n)) continue;
        const Asked asked{pair_id(rank, peer, n), "s"};
        rounds(rank)[asked] = 0;
        open_.emplace_back(rank, asked);
      }
      for (std::size_t id = 0; id < plan_.sets.size(); ++id) {
        const auto& ranks = plan_.sets[id];
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        for (int name = 0; name < plan_.names; ++name) {
          const Asked asked{static_cast<int>(id), "t" + std::to_string(name)};
          rounds(rank)[asked] = 0;
          open_.emplace_back(rank, asked);
        }
      }
    }
  }

  // All ranks draw the same from the set, the name and the round.
  Request request(int rank, const Asked& asked, int round) const {
    if (const auto pair = pair_of(asked.first, plan_.size)) {
      Request send = send_request(pair->low, pair->high, round, plan_.size);
      send.name = asked.second;
      send.tensors = sum_of(asked.second, {8, round}).tensors;
      return send;
    }
    const auto seed = std::hash<std::string>()(asked.second + "/" + std::to_string(asked.first));
    std::mt19937 draw(static_cast<unsigned>(seed));
    const Kind kind =
        std::vector<Kind>{Kind::kAllreduce, Kind::kAllgather, Kind::kBroadcast,
                          Kind::kBarrier,   Kind::kAlltoall,  Kind::kReducescatter}[draw() % 6];
    std::int64_t rows = 8;
    for (int i = 0; i <= round; ++i) {
      if (draw() % 1000 < plan_.change) rows += 1 + draw() % 3;
    }
    Request one = in_set(of_kind(kind, asked.second, {rows, 2}), asked.first);
    const std::size_t members = plan_.sets[static_cast<std::size_t>(asked.first)].size();
    if (kind == Kind::kAllgather) one.tensors[0].shape[0] += rank % 3;
    if (kind == Kind::kAlltoall) {
      one.sizes.assign(members, rows / 64 + rank % 2);
      one.tensors[0].shape[0] += static_cast<std::int64_t>(members);  // at least what is split
    }
    if (kind == Kind::kBarrier) one.tensors.clear();
    if (kind == Kind::kAllreduce && draw() % 2 == 0) one.tensors[0].place = 64 * rows;
    return one;
  }

  bool step() {
    if (!open_.empty() && random_() % 3 == 0) {
      const std::size_t at = random_() % open_.size();
      const auto [rank, asked] = open_[at];
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
      world_.submit(rank, request(rank, asked, rounds(rank)[asked]));
      listen(rank);
      return true;
    }
    const bool more = world_.deliver(&random_);
    for (int rank = 0; rank < plan_.size; ++rank) listen(rank);
    return more || !open_.empty();
  }

  void listen(int rank) {
    for (const Response& response : world_.responses(rank)) {
      CHECK(response.status.is_ok());
      lines_[static_cast<std::size_t>(rank)].push_back(line_of(response));
      for (const std::string& name : response.names) {
        const Asked asked{response.set, name};
        const int round = ++rounds(rank).at(asked);
        if (round < plan_.rounds) open_.emplace_back(rank, asked);
      }
    }
  }

  const Plan plan_;
  std::mt19937 random_;
  World world_;
  std::vector<std::map<Asked, int>> rounds_;  // by rank, what has been done how often
  std::vector<std::pair<int, Asked>> open_;   // what may be asked for
  std::vector<std::vector<std::string>> lines_;
};

// Two ranks receive the responses that both receive in the same order.
void check_one_order(const Plan& plan, const std::vector<std::vector<std::string>>& lines) {
  const auto common = [&](int rank, int other) {
    std::vector<std::string> some;
    for (const std::string& line : lines[static_cast<std::size_t>(rank)]) {
      const int set = std::stoi(line);
      const auto pair = pair_of(set, plan.size);
      const std::vector<std::int64_t> ranks = pair
                                                  ? std::vector<std::int64_t>{pair->low, pair->high}
                                                  : plan.sets[static_cast<std::size_t>(set)];
      if (std::find(ranks.begin(), ranks.end(), other) != ranks.end()) some.push_back(line);
    }
    return some;
  };
  for (int a = 0; a < plan.size; ++a) {
    for (int b = 0; b < a; ++b) CHECK(common(a, b) == common(b, a));
  }
}

Plan random_plan(std::mt19937& random) {
  Plan plan;
  plan.size = 1 + static_cast<int>(random() % 12);
  plan.messages = random() % 2 == 0;
  plan.options.fanout = 1 + static_cast<int>(random() % 5);
  plan.options.cache_capacity = std::vector<std::size_t>{0, 2, 3, 7, 1024}[random() % 5];
  plan.options.fusion_threshold = std::vector<std::int64_t>{0, 200, 1 << 20}[random() % 3];
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < plan.size; ++rank) all.push_back(rank);
  plan.sets.push_back(all);
  for (std::size_t i = 0; i < random() % 4; ++i) {
    std::vector<std::int64_t> some;
    for (const std::int64_t rank : all) {
      if (random() % 2 == 0) some.push_back(rank);
    }
    if (some.empty() || std::find(plan.sets.begin(), plan.sets.end(), some) != plan.sets.end()) {
      continue;
    }
    plan.sets.push_back(some);
  }
  return plan;
}

}  // namespace

TEST_CASE("random schedules: one order for all sets, no response lost or repeated") {
  std::mt19937 random(2024);
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const Plan plan = random_plan(random);
    CAPTURE(plan.size);
    CAPTURE(plan.options.fanout);
    CAPTURE(plan.options.cache_capacity);
    check_one_order(plan, Schedule(plan, seed).run());
  }
}

TEST_CASE("random schedules: the cache changes only the number of bytes") {
  std::mt19937 random(7);
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Plan plan = random_plan(random);
    plan.options.cache_capacity = 1024;
    const auto with = Schedule(plan, seed).run();
    plan.options.cache_capacity = 0;
    CHECK(with == Schedule(plan, seed).run());
  }
}

TEST_CASE("random schedules: the same seed gives the same run") {
  std::mt19937 random(99);
  const Plan plan = random_plan(random);
  CHECK(Schedule(plan, 5).run() == Schedule(plan, 5).run());
}

}  // namespace hvd::test
