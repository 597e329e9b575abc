#include "engine/options.h"

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <vector>

namespace hvd {
namespace {

// Parses one value into the options; false: the text is invalid.
using Setter = bool (*)(const std::string& text, EngineOptions& options);

struct Row {
  const char* expects;
  Setter set;
};

constexpr double kLongestSeconds = 1e9;

bool real(const std::string& text, double least, double most, double& value) {
  char* end = nullptr;
  errno = 0;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && errno == 0 && value >= least && value <= most;
}

template <typename T>
bool whole(const std::string& text, T& target, long long least = 0,
           long long most = std::numeric_limits<long long>::max()) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno != 0 || value < least || value > most) return false;
  target = static_cast<T>(value);
  return true;
}

template <typename T>
bool count(const std::string& text, T& target, long long least = 0) {
  return whole(text, target, least, std::numeric_limits<int>::max());
}

bool flag(const std::string& text, bool& target) {
  target = text == "1";
  return text == "0" || text == "1";
}

bool word(const std::string& text, std::string& target) {
  target = text;
  return true;
}

bool seconds(const std::string& text, double& target) {
  return real(text, 0, kLongestSeconds, target);
}

bool nanoseconds(const std::string& text, double ns_per_unit, double most, std::int64_t& target) {
  double value = 0;
  if (!real(text, 0, most, value)) return false;
  target = static_cast<std::int64_t>(value * ns_per_unit);
  return true;
}

bool one_of(const std::string& text, std::initializer_list<const char*> names,
            std::string& target) {
  for (const char* name : names) {
    if (text == name) return word(text, target);
  }
  return false;
}

// "0,2,4": numbers separated by commas.
bool cores(const std::string& text, std::string& target) {
  bool digit_before = false;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c != ',' || !digit_before)) return false;
    digit_before = digit;
  }
  return (text.empty() || digit_before) && word(text, target);
}

// "3,0,2": local rank, cross rank and cross size.
bool place(const std::string& text, std::optional<Place>& target) {
  std::vector<int> numbers;
  for (std::size_t at = 0, comma = 0; comma != std::string::npos; at = comma + 1) {
    comma = text.find(',', at);
    if (!count(text.substr(at, comma - at), numbers.emplace_back())) return false;
  }
  if (numbers.size() != 3) return false;
  target = Place{numbers[0], numbers[1], numbers[2]};
  return true;
}

bool algorithm(const std::string& text, Algorithm& target) {
  const Result<Algorithm> found = algorithm_of(text);
  if (found) target = found.value();
  return found.is_ok();
}

using Rows = std::map<std::string, Row>;
using Text = const std::string&;
using Options = EngineOptions&;

Rows mesh_rows() {
  return {
      {"transport",
       {"auto, shm, tcp or mpi",
        [](Text t, Options o) {
          return one_of(t, {"auto", "shm", "tcp", "mpi"}, o.mesh.transport);
        }}},
      {"tcp_interface",
       {"an address or interface",
        [](Text t, Options o) { return word(t, o.mesh.tcp_interface); }}},
      {"slot_bytes",
       {"a whole number of bytes", [](Text t, Options o) { return whole(t, o.mesh.slot_bytes); }}},
      {"slots", {"a whole number", [](Text t, Options o) { return whole(t, o.mesh.slots); }}},
      {"start_timeout_s",
       {"seconds", [](Text t, Options o) { return seconds(t, o.mesh.start_timeout_s); }}},
      {"host", {"a name", [](Text t, Options o) { return word(t, o.mesh.host); }}},
      {"place",
       {"local rank, cross rank and cross size, with commas between them",
        [](Text t, Options o) { return place(t, o.mesh.place); }}},
      {"fanout",
       {"a whole number, at least 1",
        [](Text t, Options o) {
          return count(t, o.mesh.fanout, 1) && count(t, o.controller.fanout, 1);
        }}},
      {"tcp_streams",
       {"a whole number from 1 to 64",
        [](Text t, Options o) { return whole(t, o.mesh.tcp_streams, 1, 64); }}},
      {"secret", {"a text", [](Text t, Options o) { return word(t, o.mesh.secret); }}},
      {"heap_bytes",
       {"a whole number of bytes", [](Text t, Options o) { return whole(t, o.mesh.heap_bytes); }}},
      {"stop_warning_s",
       {"seconds", [](Text t, Options o) { return seconds(t, o.mesh.stop_warning_s); }}},
      {"stop_abort_s",
       {"seconds", [](Text t, Options o) { return seconds(t, o.mesh.stop_abort_s); }}},
      {"net_timeout_s",
       {"seconds", [](Text t, Options o) { return seconds(t, o.mesh.net_timeout_s); }}},
  };
}

Rows algorithm_rows() {
  return {
      {"allreduce_algorithm",
       {"auto, direct, slices, ring or hierarchical",
        [](Text t, Options o) { return algorithm(t, o.algorithms.allreduce); }}},
      {"hierarchical_allreduce",
       {"0 or 1",
        [](Text t, Options o) {
          o.controller.tuner.fixed_hierarchical_allreduce = true;
          return flag(t, o.algorithms.hierarchical_allreduce);
        }}},
      {"hierarchical_allgather",
       {"0 or 1",
        [](Text t, Options o) {
          o.controller.tuner.fixed_hierarchical_allgather = true;
          return flag(t, o.algorithms.hierarchical_allgather);
        }}},
  };
}

Rows controller_rows() {
  return {
      {"fusion_threshold",
       {"a whole number of bytes",
        [](Text t, Options o) {
          o.controller.tuner.fixed_threshold = true;
          return whole(t, o.controller.fusion_threshold);
        }}},
      {"cycle_time_ms",
       {"milliseconds, at most 60000",
        [](Text t, Options o) {
          o.controller.tuner.fixed_cycle = true;
          return nanoseconds(t, 1e6, 60'000, o.controller.cycle_ns);
        }}},
      {"cache_capacity",
       {"a whole number",
        [](Text t, Options o) {
          o.controller.tuner.fixed_cache = true;
          return count(t, o.controller.cache_capacity);
        }}},
      {"group_fusion",
       {"0 or 1", [](Text t, Options o) { return flag(t, o.controller.group_fusion); }}},
      {"stall_warning_s",
       {"seconds",
        [](Text t, Options o) {
          return nanoseconds(t, 1e9, kLongestSeconds, o.controller.stall_warning_ns);
        }}},
      {"stall_shutdown_s",
       {"seconds",
        [](Text t, Options o) {
          return nanoseconds(t, 1e9, kLongestSeconds, o.controller.stall_shutdown_ns);
        }}},
  };
}

Rows tuner_rows() {
  return {
      {"autotune", {"0 or 1", [](Text t, Options o) { return flag(t, o.controller.tuner.on); }}},
      {"autotune_log",
       {"a path", [](Text t, Options o) { return word(t, o.controller.tuner.log); }}},
      {"autotune_warmup_samples",
       {"a whole number",
        [](Text t, Options o) { return count(t, o.controller.tuner.warmup_samples); }}},
      {"autotune_steps_per_sample",
       {"a whole number, at least 1",
        [](Text t, Options o) { return count(t, o.controller.tuner.steps_per_sample, 1); }}},
      {"autotune_max_samples",
       {"a whole number, at least 1",
        [](Text t, Options o) { return count(t, o.controller.tuner.max_samples, 1); }}},
      {"autotune_noise",
       {"a number from 0 to 1",
        [](Text t, Options o) { return real(t, 0, 1, o.controller.tuner.noise); }}},
      {"autotune_seed",
       {"a whole number", [](Text t, Options o) { return whole(t, o.controller.tuner.seed); }}},
  };
}

Rows engine_rows() {
  return {
      {"trace_capacity",
       {"a whole number of records, at most 1048576",
        [](Text t, Options o) { return whole(t, o.trace_capacity, 0, 1'048'576); }}},
      {"timeline", {"a path", [](Text t, Options o) { return word(t, o.timeline); }}},
      {"mark_cycles", {"0 or 1", [](Text t, Options o) { return flag(t, o.mark_cycles); }}},
      {"thread_affinity",
       {"numbers of cores, with commas between them",
        [](Text t, Options o) { return cores(t, o.thread_affinity); }}},
      {"caller_runs_bytes",
       {"a whole number of bytes",
        [](Text t, Options o) { return whole(t, o.caller_runs_bytes); }}},
  };
}

Rows accelerator_rows() {
  return {
      {"gpu_operations",
       {"auto, ring, nccl, prefer-nccl or staged",
        [](Text t, Options o) {
          return one_of(t, {"auto", "ring", "nccl", "prefer-nccl", "staged"},
                        o.accelerator.operations);
        }}},
      {"gpu_ring",
       {"auto, slices or persistent",
        [](Text t, Options o) {
          return one_of(t, {"auto", "slices", "persistent"}, o.accelerator.ring);
        }}},
      {"cuda_driver", {"a file", [](Text t, Options o) { return word(t, o.accelerator.driver); }}},
      {"gpu_arena_bytes",
       {"a whole number of bytes, at least 65536",
        [](Text t, Options o) { return whole(t, o.accelerator.arena_bytes, 65'536); }}},
      {"gpu_timeout_s",
       {"seconds",
        [](Text t, Options o) { return nanoseconds(t, 1e9, kLongestSeconds, o.gpu_timeout_ns); }}},
  };
}

const Rows& rows() {
  static const Rows kRows = [] {
    Rows all;
    for (Rows part : {mesh_rows(), algorithm_rows(), controller_rows(), tuner_rows(), engine_rows(),
                      accelerator_rows()}) {
      all.merge(part);
    }
    return all;
  }();
  return kRows;
}

Status refuse(const std::string& message) {
  return Status::make(Code::kInvalidArgument, message, "engine/options");
}

// The tuner starts with the configured values.
void start_tuner(EngineOptions& options) {
  Tunables& start = options.controller.tuner.start;
  start.fusion_threshold = options.controller.fusion_threshold;
  start.cycle_ns = options.controller.cycle_ns;
  start.hierarchical_allreduce = options.algorithms.hierarchical_allreduce;
  start.hierarchical_allgather = options.algorithms.hierarchical_allgather;
  start.cache = options.controller.cache_capacity > 0;
}

// The options by which every rank decides on its own, so all ranks must have the same values; of
// the rest only rank 0's values matter.
std::string agreement_of(const EngineOptions& options) {
  return std::string("allreduce_algorithm=") + name_of(options.algorithms.allreduce) +
         "\nhierarchical_allreduce=" + std::to_string(options.algorithms.hierarchical_allreduce) +
         "\nhierarchical_allgather=" + std::to_string(options.algorithms.hierarchical_allgather) +
         "\ncache_capacity=" + std::to_string(options.controller.cache_capacity) +
         "\nfanout=" + std::to_string(options.controller.fanout) +
         "\ntcp_streams=" + std::to_string(options.mesh.tcp_streams) +
         "\ngpu_operations=" + options.accelerator.operations +
         "\ngpu_ring=" + options.accelerator.ring +
         "\ngpu_arena_bytes=" + std::to_string(options.accelerator.arena_bytes) + "\n";
}

}  // namespace

Result<EngineOptions> parse_options(const std::map<std::string, std::string>& table) {
  EngineOptions options;
  for (const auto& [key, text] : table) {
    const auto row = rows().find(key);
    if (row == rows().end()) {
      std::string known;
      for (const auto& [name, unused] : rows()) known += (known.empty() ? "" : ", ") + name;
      return refuse("unknown engine option \"" + key + "\"; known are " + known);
    }
    if (!row->second.set(text, options)) {
      // Secrets are not shown.
      const std::string shown = key == "secret" ? "" : "=\"" + text + "\"";
      return refuse("engine option " + key + shown + ": expected " + row->second.expects);
    }
  }
  start_tuner(options);
  options.mesh.agreement = agreement_of(options);
  return options;
}

}  // namespace hvd
