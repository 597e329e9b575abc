// Programs that use the core by its C table alone, one of which dies: the others' requests end with
// its name, each told once.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "base/futex.h"
#include "c_api/hvd_core.h"
#include "faults/processes.h"

namespace hvd::test {
namespace {

constexpr int kRanks = 3, kFailing = 1, kRequests = 4;
constexpr double kPatience = 60;

struct Carrier {
  Bootstrap& bootstrap;
  std::vector<std::string> all;

  static std::int32_t exchange(void* context, const void* mine, std::size_t size, const void** all,
                               std::size_t* sizes, char* /*text*/, std::size_t /*text_size*/) {
    auto& self = *static_cast<Carrier*>(context);
    auto answers = self.bootstrap.allgather({static_cast<const char*>(mine), size});
    if (!answers) return 1;
    self.all = answers.take();
    for (std::size_t i = 0; i < self.all.size(); ++i) {
      all[i] = self.all[i].data();
      sizes[i] = self.all[i].size();
    }
    return 0;
  }
};

// The results of a rank's requests.
struct Endings {
  Word calls{0};
  std::array<std::int32_t, kRequests> codes{}, ranks{};

  static void done(void* context, const hvd_outcome* outcome) {
    auto& self = *static_cast<Endings*>(context);
    const std::uint32_t at = self.calls.load();
    if (at < kRequests) {
      self.codes[at] = outcome->code;
      self.ranks[at] = outcome->rank;
    }
    self.calls.fetch_add(1);
    futex_wake_all(self.calls);
  }
  void wait() {
    for (std::uint32_t now = calls.load(); now < kRequests; now = calls.load()) {
      futex_wait(calls, now, std::chrono::hours(1));
    }
  }
  // A rank's death, of all of them, once each.
  Status summary() const {
    Status status = Status::make(static_cast<Code>(codes[0]), "", "", ranks[0]);
    for (std::size_t i = 0; i < kRequests; ++i) {
      if (codes[i] != codes[0] || ranks[i] != ranks[0]) status.code = Code::kInternal;
    }
    if (calls.load() != kRequests) status.code = Code::kInternal;
    return status;
  }
};

bool ask(hvd_engine* engine, const std::string& name, std::vector<float>& values,
         Endings& endings) {
  std::int64_t shape = static_cast<std::int64_t>(values.size());
  DLTensor tensor{};
  tensor.data = values.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLFloat, 32, 1};
  tensor.shape = &shape;
  hvd_request request{};
  request.struct_size = sizeof(request);
  request.kind = HVD_ALLREDUCE;
  request.name = name.c_str();
  request.count = 1;
  request.inputs = request.outputs = &tensor;
  request.op = HVD_SUM;
  request.prescale = request.postscale = 1;
  request.done = &Endings::done;
  request.context = &endings;
  return hvd_core_table()->enqueue(engine, &request, nullptr, 0) == HVD_OK;
}

Status live(int rank, Bootstrap& bootstrap, const Line& line) {
  const hvd_core& core = *hvd_core_table();
  Carrier carrier{bootstrap, {}};
  char text[256] = "";
  hvd_engine* const engine = core.start(rank, kRanks, &Carrier::exchange, &carrier, nullptr,
                                        nullptr, 0, text, sizeof(text));
  if (engine == nullptr) return Status::make(Code::kInternal, text, "");
  std::array<std::vector<float>, kRequests> values;
  values.fill(std::vector<float>(5));
  Endings endings;
  bool taken = true;
  for (int i = 0; i < kRequests && rank != kFailing; ++i) {
    taken = ask(engine, std::to_string(i), values[static_cast<std::size_t>(i)], endings) && taken;
  }
  line.started();
  if (rank == kFailing) ::pause();
  endings.wait();
  Endings later;
  for (int i = 0; i < kRequests; ++i) taken = ask(engine, "later", values[0], later) && taken;
  const Status status = endings.summary();
  const bool same = later.summary().code == status.code;
  core.shutdown(engine);
  core.release(engine);
  return taken && same ? status : Status::make(Code::kInternal, "refused, or told otherwise", "");
}

}  // namespace

TEST_CASE("plugins: a rank that dies ends every request of the others") {
  Processes ranks(kRanks, [](int rank, Bootstrap& bootstrap, Line& line) {
    line.say(Report::of(live(rank, bootstrap, line)));
  });
  REQUIRE(ranks.all_started(kPatience));
  ranks.signal(kFailing, SIGKILL);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kFailing) continue;
    const std::optional<Report> report = ranks.report(rank, kPatience);
    REQUIRE(report.has_value());
    CHECK_MESSAGE(report->status_code() == Code::kRankDied, report->message);
    CHECK(report->rank == kFailing);
  }
}

}  // namespace hvd::test
