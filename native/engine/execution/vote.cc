#include "engine/execution/vote.h"

#include <array>
#include <cstdio>
#include <string>

#include "engine/execution/outputs.h"

namespace hvd {
namespace {

// "4.3 GB"
std::string size_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"kB", "MB", "GB", "TB", "PB"};
  constexpr double kStep = 1000;
  double size = static_cast<double>(bytes) / kStep;
  std::size_t unit = 0;
  for (; size >= kStep && unit + 1 < kUnits.size(); ++unit) size /= kStep;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", size, kUnits[unit]);
  return text.data();
}

// "allgather 'x' and 2 more". The frontends put the kind before the user's name.
std::string operation_text(const Response& response) {
  const std::string kind = lower_name_of(response.kind);
  const std::string& name = response.names.front();
  const bool prefixed = name.rfind(kind + ".", 0) == 0;
  const std::size_t others = response.names.size() - 1;
  return kind + " '" + (prefixed ? name.substr(kind.size() + 1) : name) + "'" +
         (others == 0 ? "" : " and " + std::to_string(others) + " more");
}

Status lacks_memory(const Work& work, const Group& group, int group_rank) {
  const bool reduces = work.response.kind == Kind::kAllreduce;
  const int rank = group.ranks[static_cast<std::size_t>(group_rank)];
  return Status::make(Code::kNoMemory,
                      "rank " + std::to_string(rank) + " has no " +
                          (work.device() == kCpu ? "memory" : "device memory") + " for the " +
                          size_text(needed_bytes(work, group, group_rank)) +
                          (reduces ? " stand-in for " : " output of ") +
                          operation_text(work.response),
                      "engine/vote", rank);
}

}  // namespace

Result<int> first_failing(Backend& backend, const Group& group, bool failed) {
  std::int32_t group_rank = failed ? group.group_rank : group.size();
  Reduction reduction;
  reduction.dtype = Dtype::kInt32;
  reduction.op = ReduceOp::kMin;
  Status status = backend.allreduce(group, {{&group_rank, &group_rank, 1}}, reduction);
  if (!status) return status;
  return group_rank;
}

Result<Ending> vote_on_memory(Backend& backend, const Work& work, const Group& group,
                              const Status& mine) {
  if (!mine && mine.code != Code::kUnavailable) return mine;
  const std::int64_t unvoted = work.device() == kCpu ? kVotedBytes : 0;
  if (most_needed_bytes(work, group) <= unvoted) {
    if (!mine) return mine;
    return Ending();
  }
  const Result<int> group_rank = first_failing(backend, group, !mine);
  if (!group_rank) return group_rank.status();
  if (group_rank.value() == group.size()) return Ending();
  return std::make_shared<const Status>(lacks_memory(work, group, group_rank.value()));
}

}  // namespace hvd
