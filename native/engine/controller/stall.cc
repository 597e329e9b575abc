#include "engine/controller/stall.h"

#include <array>
#include <cstdio>
#include <map>

#include "engine/controller/mismatch.h"

namespace hvd {
namespace {

constexpr std::size_t kMostNames = 6;

std::string seconds_text(std::int64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", static_cast<double>(ns) * 1e-9);
  return text.data();
}

std::string missing_text(const std::vector<Waiting>& stalled, std::int64_t shutdown_ns,
                         std::int64_t now_ns) {
  struct Lacks {
    std::vector<const Waiting*> names;
    bool late = false;
  };
  std::map<int, Lacks> by_rank;
  for (const Waiting& waiting : stalled) {
    for (const int rank : waiting.missing) {
      Lacks& lacks = by_rank[rank];
      lacks.names.push_back(&waiting);
      lacks.late = lacks.late || (shutdown_ns > 0 && now_ns - waiting.since_ns >= shutdown_ns);
    }
  }
  std::string text;
  for (const auto& [rank, lacks] : by_rank) {
    text += "\n" + std::to_string(rank) + (lacks.late ? "!" : "") + ": [";
    for (std::size_t i = 0; i < std::min(lacks.names.size(), kMostNames); ++i) {
      text += (i > 0 ? ", " : "") + lacks.names[i]->name;
    }
    text += lacks.names.size() > kMostNames ? " ...]" : "]";
  }
  return text;
}

std::string waiting_text(const Waiting& waiting, std::int64_t now_ns) {
  std::string text = "\n" + waiting.name;
  if (waiting.set != 0) text += " of process set " + std::to_string(waiting.set);
  return text + ": " + ranks_text(waiting.requested) + " for " +
         seconds_text(now_ns - waiting.since_ns) + " s";
}

}  // namespace

std::string stall_text(const std::vector<Waiting>& stalled, std::int64_t warning_ns,
                       std::int64_t shutdown_ns, std::int64_t now_ns) {
  std::string text =
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
      "ranks and are waiting for remainder of ranks for more than " +
      seconds_text(warning_ns) +
      " seconds. This may indicate that different ranks are trying to submit different tensors or "
      "that only subset of ranks is submitting tensors, which will cause deadlock. \nMissing "
      "ranks:";
  text += missing_text(stalled, shutdown_ns, now_ns) + "\nWaiting ranks:";
  for (std::size_t i = 0; i < std::min(stalled.size(), kMostNames); ++i) {
    text += waiting_text(stalled[i], now_ns);
  }
  if (stalled.size() > kMostNames) {
    text += "\nand " + std::to_string(stalled.size() - kMostNames) + " more";
  }
  return text;
}

Status stalled(const Waiting& waiting, std::int64_t now_ns) {
  return Status::make(Code::kStalled,
                      std::string(name_of(waiting.kind)) + " " + waiting.name + ": " +
                          ranks_text(waiting.requested) + " waited " +
                          seconds_text(now_ns - waiting.since_ns) + " s for " +
                          ranks_text(waiting.missing) +
                          ", which did not request it (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS).",
                      "engine/stall", waiting.missing.front());
}

}  // namespace hvd
