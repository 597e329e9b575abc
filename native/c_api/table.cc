// The C table, with its short functions.
#include <algorithm>

#include "base/thread.h"
#include "c_api/call.h"
#include "c_api/current.h"
#include "c_api/hvd_core.h"
#include "c_api/status.h"

namespace hvd::c_api {
namespace {

template <auto kField>
std::int32_t topology_of(const hvd_engine* engine) {
  return engine == nullptr ? -1 : engine->engine->topology().*kField;
}

std::vector<int> ranks_of(const hvd_engine* engine, std::int32_t set) noexcept {
  std::vector<int> ranks;
  if (engine != nullptr) tried([&] { ranks = engine->engine->ranks_of(set); });
  return ranks;
}

std::int32_t set_size(const hvd_engine* engine, std::int32_t set) {
  return static_cast<std::int32_t>(ranks_of(engine, set).size());
}

std::int32_t set_rank(const hvd_engine* engine, std::int32_t set) {
  const std::vector<int> ranks = ranks_of(engine, set);
  const auto mine = std::find(ranks.begin(), ranks.end(), topology_of<&Topology::rank>(engine));
  return mine == ranks.end() ? -1 : static_cast<std::int32_t>(mine - ranks.begin());
}

std::int32_t set_ranks(const hvd_engine* engine, std::int32_t set, std::int32_t* into,
                       std::int32_t room) {
  const std::vector<int> ranks = ranks_of(engine, set);
  const auto all = static_cast<std::int32_t>(ranks.size());
  std::copy_n(ranks.begin(), std::clamp(room, 0, all), into);
  return all;
}

// The maximum number of results in memory of the core.
std::size_t most_outputs(const Call& call) {
  const bool given = !call.operands.empty() && call.operands.front().out != nullptr;
  return given ? 0 : call.operands.size();
}

std::int32_t enqueue(hvd_engine* engine, const hvd_request* request, char* text,
                     std::size_t text_size) {
  return guarded(text, text_size, [&] {
    if (engine == nullptr) {
      return Status::make(Code::kShutdown, "Horovod has not been initialized; use hvd.init().",
                          "c_api/table");
    }
    Result<Call> read = call_of(*engine->engine, request);
    if (!read) return read.status();
    Call call = read.take();
    auto completion = std::make_unique<DoneCall>(call.done, call.context, most_outputs(call));
    return engine->engine->enqueue(std::move(call.request), std::move(call.operands),
                                   std::move(completion), call.stream);
  });
}

void abort(hvd_engine* engine, const char* why) {
  if (engine == nullptr) return;
  tried([&] { engine->engine->abort(why == nullptr ? "" : why); });
}

void shutdown(hvd_engine* engine) {
  if (engine == nullptr) return;
  guarded(nullptr, 0, [&] {
    engine->engine->shutdown();
    return Status::ok();
  });
}

hvd_core make_table() {
  hvd_core table{};
  table.struct_size = sizeof(table);
  table.version = HVD_VERSION;
  table.current = &current;
  table.release = &release;
  table.rank = &topology_of<&Topology::rank>;
  table.size = &topology_of<&Topology::size>;
  table.local_rank = &topology_of<&Topology::local_rank>;
  table.local_size = &topology_of<&Topology::local_size>;
  table.cross_rank = &topology_of<&Topology::cross_rank>;
  table.cross_size = &topology_of<&Topology::cross_size>;
  table.set_size = &set_size;
  table.set_rank = &set_rank;
  table.set_ranks = &set_ranks;
  table.enqueue = &enqueue;
  table.keep = &keep;
  table.drop = &drop;
  table.stream_wait = &stream_wait;
  table.event_query = &event_query;
  table.start = &start;
  table.make_current = static_cast<void (*)(hvd_engine*) noexcept>(&make_current);
  table.abort = &abort;
  table.shutdown = &shutdown;
  return table;
}

}  // namespace
}  // namespace hvd::c_api

const hvd_core* hvd_core_table(void) {
  static const hvd_core table = hvd::c_api::make_table();
  return &table;
}
