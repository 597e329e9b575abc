// Benchmark of the collectives, without Python:
//   hvd_bench [--np 2] [--threads] [--transport auto] [--sizes 4096,1048576]
//             [--contenders auto,slices] [--dtype float32] [--slot-bytes N] [--slots N]
//             [--rounds 7] [--engine] [--json]
// A contender is an algorithm of allreduce (auto direct slices ring hierarchical), maybe with the
// bytes of a segment (slices:65536), or "shared" (tensors in the shared heap). Beside them run
// "memcpy" (every rank copies that many bytes), "staged" (staged.h: the machine's limit) and, with
// --engine, "engine" (an engine with its own links: enqueue and wait). They alternate within every
// round; the figures are medians over the rounds of rank 0's time. busbw = 2 (n - 1) / n * bytes /
// time.
#include <arpa/inet.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <thread>

#include "base/cores.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "bench/staged.h"
#include "collective/cpu_backend.h"
#include "engine/engine.h"
#include "transport/bootstrap/tcp_bootstrap.h"
#include "transport/mesh/mesh.h"

namespace hvd::bench {
namespace {

constexpr std::chrono::seconds kEngineTimeout(60);

// The same name for all calls, as in a training step: cached after the first one.
Request request_for(const std::vector<Operand>& operands, const Reduction& reduction) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.name = "bench";
  request.op = reduction.op;
  for (const Operand& operand : operands) {
    TensorMeta meta;
    meta.dtype = reduction.dtype;
    meta.shape = {static_cast<std::int64_t>(operand.count)};
    request.tensors.push_back(std::move(meta));
  }
  return request;
}

// One synchronous allreduce as in a frontend: enqueue and wait, which executes it.
Status allreduce(Engine& engine, const std::vector<Operand>& operands, const Reduction& reduction) {
  const auto handle = engine.enqueue(request_for(operands, reduction), operands, Next::kWaits);
  if (!handle) return handle.status();
  const auto outcome = engine.wait(handle.value(), kEngineTimeout);
  if (!outcome) return outcome.status();
  if (outcome.value() != nullptr) return outcome.value()->status;
  return Status::make(Code::kTimeout, "an allreduce is not done after a minute", "bench/engine");
}

struct Settings {
  int np = 2;
  bool threads = false;
  bool engine = false;
  bool json = false;
  int rounds = 7;
  int cores = usable_cores();  // before threads are pinned
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::size_t> sizes{4096,    16384,    65536,    262144,   1048576,
                                 4194304, 16777216, 67108864, 268435456};
  std::vector<std::string> contenders{"auto"};
  AlgorithmOptions algorithms;
  MeshOptions mesh;
  std::map<std::string, std::string> for_engine;  // the engine's options; the rest are defaults
};

// One measured operation, executed once on `bytes` by every rank.
struct Candidate {
  std::string name;
  std::function<Status(std::size_t bytes)> once;
};

struct Figure {
  std::string name;
  double seconds = 0;  // the median
  double best = 0;     // for a machine that is not quiet
};

std::size_t number_of(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 0); }

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "hvd_bench: %s\n", why.c_str());
  std::_Exit(1);
}

void must(const Status& status) {
  if (!status) give_up(status.where + ": " + status.message);
}

Group everybody(const Topology& topology) {
  Group group;
  for (int rank = 0; rank < topology.size; ++rank) group.ranks.push_back(rank);
  group.group_rank = topology.rank;
  return group;
}

// One rank: its mesh, its memory, its contenders.
class Bench {
 public:
  // engine: nullptr if it is not measured.
  Bench(const Settings& settings, Mesh& mesh, Engine* engine, StagedMemory& memory)
      : settings_(settings),
        mesh_(mesh),
        backend_(mesh, settings.algorithms),
        group_(everybody(mesh.topology())),
        most_(*std::max_element(settings.sizes.begin(), settings.sizes.end())),
        values_(most_),
        other_(most_),
        staged_(memory, group_.group_rank, group_.size(), group_.size() <= settings.cores) {
    for (const std::string& name : settings.contenders) add(name);
    if (engine != nullptr) add_engine(*engine);
    candidates_.push_back({"memcpy", [this](std::size_t bytes) {
                             std::memcpy(other_.data(), values_.data(), bytes);
                             return Status::ok();
                           }});
    if (settings.dtype == Dtype::kFloat32 && mesh.transport_to(group_.rank_at(1)) != "tcp")
      add_staged();
  }

  void run() {
    for (const std::size_t bytes : settings_.sizes) report(bytes, measured(bytes));
  }

 private:
  void add(const std::string& name) {
    if (name == "shared") return add_shared();
    const std::size_t colon = std::min(name.find(':'), name.size());
    const Result<Algorithm> algorithm = algorithm_of(name.substr(0, colon));
    must(algorithm.status());
    AlgorithmOptions options = settings_.algorithms;
    options.allreduce = algorithm.value();
    if (colon < name.size()) options.segment_bytes = number_of(name.substr(colon + 1));
    // One backend each: registering groups is not measured.
    auto backend = std::make_shared<CpuBackend>(mesh_, options);
    candidates_.push_back({name, [this, backend](std::size_t bytes) {
                             operands_[0] = {values_.data(), values_.data(),
                                             bytes / size_of(settings_.dtype)};
                             return backend->allreduce(group_, operands_, reduction());
                           }});
  }

  void add_shared() {
    SharedHeap* const heap = mesh_.heap();
    if (heap == nullptr) give_up("no shared heap here");
    const std::size_t each = (most_ + 4095) / 4096 * 4096;
    if (group_.group_rank == 0)
      must(heap->claim(0, each * static_cast<std::size_t>(group_.size())));
    must(meet());
    std::byte* const mine = heap->base() + each * static_cast<std::size_t>(group_.group_rank);
    std::vector<std::ptrdiff_t> offsets;
    offsets.reserve(group_.ranks.size());
    for (int group_rank = 0; group_rank < group_.size(); ++group_rank)
      offsets.push_back((group_rank - group_.group_rank) * static_cast<std::ptrdiff_t>(each));
    candidates_.push_back({"shared", [this, mine, offsets](std::size_t bytes) {
                             operands_[0] = {mine, mine, bytes / size_of(settings_.dtype)};
                             // All inputs must be ready; a barrier over the links is the fastest
                             // check.
                             if (Status status = meet(); !status) return status;
                             return backend_.allreduce_shared(group_, operands_, offsets,
                                                              reduction());
                           }});
  }

  void add_engine(Engine& engine) {
    candidates_.push_back({"engine", [this, &engine](std::size_t bytes) {
                             operands_[0] = {values_.data(), values_.data(),
                                             bytes / size_of(settings_.dtype)};
                             return allreduce(engine, operands_, reduction());
                           }});
  }

  void add_staged() {
    candidates_.push_back({"staged", [this](std::size_t bytes) {
                             staged_.allreduce(reinterpret_cast<float*>(values_.data()),
                                               bytes / sizeof(float));
                             return Status::ok();
                           }});
  }

  Reduction reduction() const { return {settings_.dtype, ReduceOp::kSum, {}}; }

  Status meet() {
    meeting_[0] = {&flag_, &flag_, 1};
    return backend_.allreduce(group_, meeting_, {});
  }

  int repetitions(std::size_t bytes) const {
    const int most = group_.size() <= settings_.cores ? 400 : 60;
    return std::clamp(static_cast<int>((std::size_t{64} << 20U) / bytes), 1, most);
  }

  std::vector<Figure> measured(std::size_t bytes) {
    std::vector<std::vector<double>> seconds(candidates_.size());
    for (int round = -1; round < settings_.rounds; ++round) {  // round -1 warms up
      for (std::size_t i = 0; i < candidates_.size(); ++i) {
        const int times = repetitions(bytes);
        must(meet());
        const auto start = Clock::now();
        for (int k = 0; k < times; ++k) must(candidates_[i].once(bytes));
        const std::chrono::duration<double> taken = Clock::now() - start;
        if (round >= 0) seconds[i].push_back(taken.count() / times);
      }
    }
    std::vector<Figure> figures;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      std::sort(seconds[i].begin(), seconds[i].end());
      figures.push_back(
          {candidates_[i].name, seconds[i][seconds[i].size() / 2], seconds[i].front()});
    }
    return figures;
  }

  void report(std::size_t bytes, const std::vector<Figure>& figures) const {
    if (group_.group_rank != 0) return;
    double copy = 0, limit = 0;
    for (const Figure& figure : figures) {
      if (figure.name == "memcpy") copy = figure.seconds;
      if (figure.name == "staged") limit = figure.seconds;
    }
    const double n = group_.size();
    for (const Figure& figure : figures) {
      const double algbw = static_cast<double>(bytes) / figure.seconds / 1e9;
      std::printf(
          settings_.json ? "{\"np\": %d, \"bytes\": %zu, \"contender\": \"%s\", \"us\": %.3f, "
                           "\"best_us\": %.3f, \"algbw\": "
                           "%.3f, \"busbw\": %.3f, \"to_memcpy\": %.3f, \"to_staged\": %.3f}\n"
                         : "np %d  %10zu B  %-13s %11.2f us (best %11.2f)  algbw %7.2f GB/s  busbw "
                           "%7.2f GB/s  "
                           "memcpy x %6.2f  staged x %5.2f\n",
          group_.size(), bytes, figure.name.c_str(), figure.seconds * 1e6, figure.best * 1e6, algbw,
          algbw * 2 * (n - 1) / n, figure.seconds / copy, limit > 0 ? figure.seconds / limit : 0.0);
    }
    std::fflush(stdout);
  }

  const Settings& settings_;
  Mesh& mesh_;
  CpuBackend backend_;
  const Group group_;
  const std::size_t most_;
  std::vector<std::byte> values_, other_;
  Staged staged_;
  std::vector<Candidate> candidates_;
  std::vector<Operand> operands_{1}, meeting_{1};
  float flag_ = 0;
};

StagedMemory& shared_windows() {
  void* const memory = mmap(nullptr, sizeof(StagedMemory), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory for the windows of the limit");
  return *static_cast<StagedMemory*>(memory);  // zeroed, which is what its counters start with
}

std::uint16_t free_port() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), general, length) != 0 ||
      ::getsockname(socket.get(), general, &length) != 0)
    give_up("no free port");
  return ntohs(address.sin_port);
}

void stay_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  (void)sched_setaffinity(0, sizeof cores, &cores);
}

EngineOptions engine_options(const Settings& settings) {
  Result<EngineOptions> options = parse_options(settings.for_engine);
  must(options.status());
  return options.take();
}

int run_process(const Settings& settings, int rank, std::uint16_t port, StagedMemory& memory) {
  auto bootstrap = TcpBootstrap::connect(rank, settings.np, "127.0.0.1", port, 30);
  must(bootstrap.status());
  auto mesh = connect_mesh(rank, settings.np, *bootstrap.value(), settings.mesh);
  must(mesh.status());
  std::unique_ptr<Engine> engine;
  if (settings.engine) {
    auto started = Engine::start(rank, settings.np, *bootstrap.value(), engine_options(settings));
    must(started.status());
    engine = started.take();
  }
  stay_on(rank % settings.cores);  // this thread alone
  Bench(settings, *mesh.value(), engine.get(), memory).run();
  mesh.value()->leave();
  return 0;
}

int run_processes(const Settings& settings, StagedMemory& memory) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < settings.np; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) give_up("cannot fork");
    if (pid == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::_Exit(run_process(settings, rank, port, memory));
    }
    ranks.push_back(pid);
  }
  int failed = 0;
  for (std::size_t left = ranks.size(); left > 0; --left) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    ranks.erase(std::remove(ranks.begin(), ranks.end(), ended), ranks.end());
    if (status == 0) continue;
    failed = 1;
    for (const pid_t pid : ranks) kill(pid, SIGKILL);
  }
  return failed;
}

std::vector<std::unique_ptr<Engine>> local_engines(const Settings& settings) {
  std::vector<std::unique_ptr<Engine>> engines(static_cast<std::size_t>(settings.np));
  if (!settings.engine) return engines;
  const EngineOptions options = engine_options(settings);
  auto meshes = make_local_meshes(settings.np, options.mesh);
  for (std::size_t rank = 0; rank < engines.size(); ++rank)
    engines[rank] = std::make_unique<Engine>(std::move(meshes[rank]), options);
  return engines;
}

int run_threads(const Settings& settings, StagedMemory& memory) {
  const auto meshes = make_local_meshes(settings.np, settings.mesh);
  const auto engines = local_engines(settings);
  std::vector<std::thread> threads;
  threads.reserve(meshes.size());
  for (int rank = 0; rank < settings.np; ++rank) {
    threads.emplace_back([&, rank] {
      stay_on(rank % settings.cores);
      const auto at = static_cast<std::size_t>(rank);
      Bench(settings, *meshes[at], engines[at].get(), memory).run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char letter : list) {
    if (letter == ',') {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

Dtype dtype_of(const std::string& name) {
  for (int number = 0; number < kDtypeCount; ++number) {
    if (name == name_of(static_cast<Dtype>(number))) return static_cast<Dtype>(number);
  }
  give_up("no dtype is called " + name);
}

struct Flag {
  const char* name;
  bool Settings::* set;
};

constexpr Flag kFlags[] = {{"--threads", &Settings::threads},
                           {"--engine", &Settings::engine},
                           {"--json", &Settings::json}};

struct Option {
  const char* name;
  void (*set)(Settings& settings, const std::string& value);
};

constexpr Option kOptions[] = {
    {"--np", [](Settings& s, const std::string& v) { s.np = static_cast<int>(number_of(v)); }},
    {"--rounds",
     [](Settings& s, const std::string& v) { s.rounds = static_cast<int>(number_of(v)); }},
    {"--transport",
     [](Settings& s, const std::string& v) { s.for_engine["transport"] = s.mesh.transport = v; }},
    {"--dtype", [](Settings& s, const std::string& v) { s.dtype = dtype_of(v); }},
    {"--contenders", [](Settings& s, const std::string& v) { s.contenders = split(v); }},
    {"--slot-bytes",
     [](Settings& s, const std::string& v) {
       s.mesh.slot_bytes = number_of(v);
       s.for_engine["slot_bytes"] = std::to_string(s.mesh.slot_bytes);
     }},
    {"--slots",
     [](Settings& s, const std::string& v) {
       s.mesh.slots = number_of(v);
       s.for_engine["slots"] = std::to_string(s.mesh.slots);
     }},
    {"--sizes",
     [](Settings& s, const std::string& v) {
       s.sizes.clear();
       for (const std::string& size : split(v)) s.sizes.push_back(number_of(size));
     }},
};

// The row of this name, or nullptr.
template <typename Row, std::size_t kCount>
const Row* named(const Row (&rows)[kCount], const std::string& name) {
  const auto* const end = std::end(rows);
  const auto* const row =
      std::find_if(std::begin(rows), end, [&](const Row& one) { return name == one.name; });
  return row == end ? nullptr : row;
}

Settings settings_of(const std::vector<std::string>& words) {
  Settings settings;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (const Flag* const flag = named(kFlags, words[i]); flag != nullptr) {
      settings.*(flag->set) = true;
      continue;
    }
    const Option* const option = named(kOptions, words[i]);
    if (option == nullptr) give_up("no option is called " + words[i]);
    if (i + 1 == words.size()) give_up(words[i] + " needs a value");
    option->set(settings, words[++i]);
  }
  if (settings.np < 2 || settings.np > static_cast<int>(StagedMemory::kMostRanks))
    give_up("--np must be 2 to " + std::to_string(StagedMemory::kMostRanks));
  return settings;
}

}  // namespace
}  // namespace hvd::bench

int main(int argc, char** argv) {
  const hvd::bench::Settings settings =
      hvd::bench::settings_of(std::vector<std::string>(argv + 1, argv + argc));
  hvd::bench::StagedMemory& memory = hvd::bench::shared_windows();
  return settings.threads ? hvd::bench::run_threads(settings, memory)
                          : hvd::bench::run_processes(settings, memory);
}
