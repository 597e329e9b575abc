#include "cuda/agreement.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "cuda/device/pinned.h"
#include "cuda/group/self_test.h"
#include "cuda/nccl/nccl_backend.h"
#include "cuda/ring/ring_backend.h"
#include "cuda/staged/staged_backend.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/agreement";
constexpr double kWorth = 0.8;  // of the ring's time, at most

// What came of a way: no backend where it went wrong for a member.
struct Attempt {
  Way way = Way::kStaged;
  std::unique_ptr<DeviceBackend> backend;
  Status status = Status::ok();
  std::size_t forms = 0;  // that were tried
  double seconds = 0;     // of a sum; 0: nothing was tried
};

Result<std::unique_ptr<DeviceBackend>> make(Way way, const Party& party) {
  switch (way) {
    case Way::kRing:
      return make_ring_backend(party);
    case Way::kNccl:
      return make_nccl_backend(party);
    case Way::kStaged:
      return make_staged_backend(party);
  }
  return Status::make(Code::kInternal, "there is no such way", kRoom);
}

// Nothing of the staged way is new, and one member alone has nobody to sum with.
Result<double> try_out(Way way, DeviceBackend& backend, const Party& party) {
  if (way == Way::kStaged || party.team.size() == 1) return 0.0;
  return pass_trial(backend, party);
}

Attempt attempt_once(Way way, const Party& party) {
  Attempt attempt;
  attempt.way = way;
  Result<std::unique_ptr<DeviceBackend>> made = make(way, party);
  if (party.mesh->abort().raised()) {
    attempt.status = party.mesh->abort().cause();
    return attempt;
  }
  attempt.status = all_went_well(party, made.status());
  if (!attempt.status) return attempt;
  attempt.forms = made.value()->forms();
  const Result<double> seconds = try_out(way, *made.value(), party);
  if (!seconds) {
    attempt.status = part_together(*made.value(), party, seconds.status());
    return attempt;
  }
  attempt.seconds = seconds.value();
  attempt.backend = made.take();
  return attempt;
}

void say(Level level, const Party& party, const std::string& what) {
  if (party.team.place == 0) log(level, kRoom, "device tensors " + what);  // once for all
}

std::string quoted(Way way) { return std::string("'") + name_of(way) + "'"; }

// A persistent ring that fails leaves the one in slices.
Attempt attempt(Way way, Party& party) {
  Attempt attempt = attempt_once(way, party);
  if (attempt.status || attempt.forms < 2 || party.mesh->abort().raised()) return attempt;
  say(Level::kWarning, party, "do not go by a persistent ring: " + attempt.status.message);
  for (Facts& member : party.members) put(member.ring, "slices");
  return attempt_once(way, party);
}

// Nobody has memory of another member mapped any more when that gives it back.
Status part_with(DeviceBackend& loser, const Party& party) {
  Status status = loser.settle();
  if (status) status = wait_for_stream(*party.device, party.device->stream(), party.mesh->abort());
  status = all_went_well(party, status);
  return status ? part_together(loser, party, Status::ok()) : status;
}

std::string in_ms(const Attempt& attempt) {
  return quoted(attempt.way) + " took " + std::to_string(attempt.seconds * 1e3) + " ms";
}

}  // namespace

bool is_worth_it(double nccl, double ring) { return nccl < kWorth * ring; }

Result<Agreed> agree_on(const std::vector<Way>& ways, Party party) {
  Attempt best;
  Status first = Status::ok();
  for (const Way way : ways) {
    const bool races = best.backend != nullptr;
    if (races && (way == Way::kStaged || best.seconds == 0)) break;
    Attempt next = attempt(way, party);
    if (!next.status) {
      if (party.mesh->abort().raised()) return next.status;
      say(races ? Level::kInfo : Level::kWarning, party,
          "do not go the way " + quoted(way) + ": " + next.status.message);
      if (first) first = next.status;
      continue;
    }
    if (races) {
      say(Level::kInfo, party, "raced: a first sum by " + in_ms(best) + ", by " + in_ms(next));
      if (is_worth_it(next.seconds, best.seconds)) std::swap(best, next);
      if (Status status = part_with(*next.backend, party); !status) return status;
    } else {
      best = std::move(next);
    }
  }
  if (best.backend == nullptr) return first;
  return Agreed{best.way, std::move(best.backend)};
}

}  // namespace hvd::cuda
