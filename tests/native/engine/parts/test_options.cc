// The table of texts: every key arrives where it belongs, and what does not fit is named.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/options.h"

using namespace hvd;

namespace {

struct Example {
  const char* key;
  const char* text;
  std::function<bool(const EngineOptions&)> arrived;
};

const std::vector<Example>& examples() {
  using O = const EngineOptions&;
  static const std::vector<Example> kExamples{
      {"transport", "mpi", [](O o) { return o.mesh.transport == "mpi"; }},
      {"tcp_interface", "eth1", [](O o) { return o.mesh.tcp_interface == "eth1"; }},
      {"slot_bytes", "65536", [](O o) { return o.mesh.slot_bytes == 65536; }},
      {"slots", "7", [](O o) { return o.mesh.slots == 7; }},
      {"start_timeout_s", "2.5", [](O o) { return o.mesh.start_timeout_s == 2.5; }},
      {"host", "a", [](O o) { return o.mesh.host == "a"; }},
      {"fanout", "3", [](O o) { return o.mesh.fanout == 3 && o.controller.fanout == 3; }},
      {"tcp_streams", "4", [](O o) { return o.mesh.tcp_streams == 4; }},
      {"secret", "s", [](O o) { return o.mesh.secret == "s"; }},
      {"heap_bytes", "1048576", [](O o) { return o.mesh.heap_bytes == 1048576; }},
      {"stop_warning_s", "0.25", [](O o) { return o.mesh.stop_warning_s == 0.25; }},
      {"stop_abort_s", "0", [](O o) { return o.mesh.stop_abort_s == 0; }},
      {"net_timeout_s", "2.5", [](O o) { return o.mesh.net_timeout_s == 2.5; }},
      {"gpu_operations", "nccl", [](O o) { return o.accelerator.operations == "nccl"; }},
      {"gpu_ring", "slices", [](O o) { return o.accelerator.ring == "slices"; }},
      {"cuda_driver", "/a/driver.so", [](O o) { return o.accelerator.driver == "/a/driver.so"; }},
      {"gpu_arena_bytes", "65536", [](O o) { return o.accelerator.arena_bytes == 65536; }},
      {"gpu_timeout_s", "1.5", [](O o) { return o.gpu_timeout_ns == 1'500'000'000; }},
      {"allreduce_algorithm", "ring",
       [](O o) { return o.algorithms.allreduce == Algorithm::kRing; }},
      {"hierarchical_allreduce", "0", [](O o) { return !o.algorithms.hierarchical_allreduce; }},
      {"hierarchical_allgather", "0", [](O o) { return !o.algorithms.hierarchical_allgather; }},
      {"fusion_threshold", "0", [](O o) { return o.controller.fusion_threshold == 0; }},
      {"cycle_time_ms", "1.5", [](O o) { return o.controller.cycle_ns == 1'500'000; }},
      {"cache_capacity", "9", [](O o) { return o.controller.cache_capacity == 9; }},
      {"group_fusion", "0", [](O o) { return !o.controller.group_fusion; }},
      {"stall_warning_s", "0.5", [](O o) { return o.controller.stall_warning_ns == 500'000'000; }},
      {"stall_shutdown_s", "3",
       [](O o) { return o.controller.stall_shutdown_ns == 3'000'000'000; }},
      {"autotune", "1", [](O o) { return o.controller.tuner.on; }},
      {"autotune_log", "/tmp/x", [](O o) { return o.controller.tuner.log == "/tmp/x"; }},
      {"autotune_warmup_samples", "0", [](O o) { return o.controller.tuner.warmup_samples == 0; }},
      {"autotune_steps_per_sample", "2",
       [](O o) { return o.controller.tuner.steps_per_sample == 2; }},
      {"autotune_max_samples", "8", [](O o) { return o.controller.tuner.max_samples == 8; }},
      {"autotune_noise", "0.1", [](O o) { return o.controller.tuner.noise == 0.1; }},
      {"autotune_seed", "5", [](O o) { return o.controller.tuner.seed == 5; }},
      {"trace_capacity", "100", [](O o) { return o.trace_capacity == 100; }},
      {"timeline", "/tmp/t.json", [](O o) { return o.timeline == "/tmp/t.json"; }},
      {"mark_cycles", "1", [](O o) { return o.mark_cycles; }},
      {"place", "3,0,2",
       [](O o) {
         const Place place = o.mesh.place.value_or(Place{});
         return place.local_rank == 3 && place.cross_rank == 0 && place.cross_size == 2;
       }},
      {"thread_affinity", "0,12,3", [](O o) { return o.thread_affinity == "0,12,3"; }},
      {"caller_runs_bytes", "0", [](O o) { return o.caller_runs_bytes == 0; }},
  };
  return kExamples;
}

std::string refusal(const std::string& key, const std::string& text) {
  const auto parsed = parse_options({{key, text}});
  CHECK(parsed.status().code == (parsed ? Code::kOk : Code::kInvalidArgument));
  return parsed.status().message;
}

}  // namespace

TEST_CASE("options: every key sets its option and no other") {
  const auto nothing = parse_options({});
  REQUIRE(nothing);
  for (const Example& example : examples()) {
    CAPTURE(example.key);
    CHECK_FALSE(example.arrived(nothing.value()));
    const auto parsed = parse_options({{example.key, example.text}});
    REQUIRE(parsed);
    CHECK(example.arrived(parsed.value()));
  }
}

TEST_CASE("options: the message about an unknown key lists all keys") {
  const std::string message = refusal("fusion", "1");
  CHECK(message.find("unknown engine option \"fusion\"; known are ") == 0);
  std::string known;
  std::set<std::string> keys;
  for (const Example& example : examples()) keys.insert(example.key);
  for (const std::string& key : keys) known += (known.empty() ? "" : ", ") + key;
  CHECK(message.substr(message.find("known are ") + 10) == known);
}

TEST_CASE("options: an invalid value is reported with the expected one") {
  const std::vector<std::pair<std::string, std::string>> wrong{{"transport", "rdma"},
                                                               {"slots", "many"},
                                                               {"slots", ""},
                                                               {"slots", "-1"},
                                                               {"slots", "3x"},
                                                               {"slots", "99999999999999999999"},
                                                               {"fanout", "0"},
                                                               {"tcp_streams", "0"},
                                                               {"tcp_streams", "65"},
                                                               {"start_timeout_s", "-1"},
                                                               {"start_timeout_s", ""},
                                                               {"start_timeout_s", "inf"},
                                                               {"stop_abort_s", "nan"},
                                                               {"cycle_time_ms", "-1"},
                                                               {"cycle_time_ms", "60001"},
                                                               {"allreduce_algorithm", "best"},
                                                               {"hierarchical_allreduce", "yes"},
                                                               {"autotune", "2"},
                                                               {"autotune_noise", "1.1"},
                                                               {"autotune_steps_per_sample", "0"},
                                                               {"mark_cycles", ""},
                                                               {"place", "1,2"},
                                                               {"place", "1,2,3,4"},
                                                               {"place", "1,,3"},
                                                               {"place", "1,2,3,"},
                                                               {"thread_affinity", "0,,1"},
                                                               {"thread_affinity", ",0"},
                                                               {"thread_affinity", "0,"},
                                                               {"thread_affinity", "a"},
                                                               {"trace_capacity", "1048577"},
                                                               {"gpu_operations", "mpi"},
                                                               {"gpu_operations", "NCCL"},
                                                               {"gpu_ring", "steps"},
                                                               {"gpu_arena_bytes", "65535"}};
  for (const auto& [key, text] : wrong) {
    CAPTURE(key);
    CAPTURE(text);
    CHECK(refusal(key, text).find("engine option " + key + "=\"" + text + "\": expected ") == 0);
  }
}

TEST_CASE("options: the tuner starts from options that are set, and keeps them") {
  const auto parsed = parse_options({{"fusion_threshold", "77"},
                                     {"cycle_time_ms", "2"},
                                     {"cache_capacity", "0"},
                                     {"hierarchical_allgather", "0"}});
  REQUIRE(parsed);
  const TunerOptions& tuner = parsed.value().controller.tuner;
  CHECK(tuner.start.fusion_threshold == 77);
  CHECK(tuner.start.cycle_ns == 2'000'000);
  CHECK_FALSE(tuner.start.cache);
  CHECK(tuner.start.hierarchical_allreduce);
  CHECK_FALSE(tuner.start.hierarchical_allgather);
  CHECK(tuner.fixed_threshold);
  CHECK(tuner.fixed_cycle);
  CHECK(tuner.fixed_cache);
  CHECK(tuner.fixed_hierarchical_allgather);
  CHECK_FALSE(tuner.fixed_hierarchical_allreduce);
  const auto nothing = parse_options({});
  REQUIRE(nothing);
  CHECK(nothing.value().controller.tuner.start.fusion_threshold ==
        nothing.value().controller.fusion_threshold);
  CHECK_FALSE(nothing.value().controller.tuner.fixed_threshold);
}

TEST_CASE(
    "options: the agreement covers the options by which each rank decides alone, and no others") {
  const auto agreement = [](const std::map<std::string, std::string>& table) {
    const auto parsed = parse_options(table);
    REQUIRE(parsed);
    return parsed.value().mesh.agreement;
  };
  const std::string usual = agreement({});
  CHECK(agreement({{"hierarchical_allreduce", "1"}}) == usual);
  CHECK(agreement({{"fusion_threshold", "1"}, {"timeline", "x"}, {"secret", "s"}}) == usual);
  CHECK(agreement({{"cuda_driver", "/a/driver.so"}}) == usual);
  for (const auto& [key, text] : std::map<std::string, std::string>{{"allreduce_algorithm", "ring"},
                                                                    {"hierarchical_allreduce", "0"},
                                                                    {"hierarchical_allgather", "0"},
                                                                    {"cache_capacity", "5"},
                                                                    {"fanout", "2"},
                                                                    {"tcp_streams", "3"},
                                                                    {"gpu_operations", "ring"},
                                                                    {"gpu_ring", "slices"},
                                                                    {"gpu_arena_bytes", "65536"}}) {
    CAPTURE(key);
    CHECK(agreement({{key, text}}) != usual);
  }
}

TEST_CASE("options: a secret does not appear in a message") {
  CHECK(refusal("secret", "x").empty());
}
