#include "transport/mesh/options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "transport/link/slot_ring.h"

namespace hvd {
namespace {

constexpr std::size_t kMinSlotBytes = 64;
constexpr std::size_t kMaxSlotBytes = std::size_t{64} << 20U;
constexpr int kMaxRanks = 4096;
constexpr std::size_t kMaxStreams = 64;
constexpr std::array<std::string_view, 4> kTransports{"auto", "shm", "tcp", "mpi"};

Status refuse(const std::string& message) {
  return Status::make(Code::kInvalidArgument, message, "transport/options");
}

}  // namespace

Status check_options(int rank, int size, const MeshOptions& options) {
  if (size < 1 || size > kMaxRanks)
    return refuse("size " + std::to_string(size) + " is not between 1 and " +
                  std::to_string(kMaxRanks));
  if (rank < 0 || rank >= size)
    return refuse("rank " + std::to_string(rank) + " is not between 0 and " +
                  std::to_string(size - 1));
  if (std::find(kTransports.begin(), kTransports.end(), options.transport) == kTransports.end())
    return refuse("transport \"" + options.transport + "\" is unknown; use auto, shm, tcp or mpi");
  if (options.slot_bytes < kMinSlotBytes || options.slot_bytes > kMaxSlotBytes)
    return refuse("slot_bytes " + std::to_string(options.slot_bytes) +
                  " is not between 64 and 67108864");
  if (options.slots < 2 || options.slots > kMaxSlots)
    return refuse("slots " + std::to_string(options.slots) + " is not between 2 and 64");
  if (options.fanout < 1) return refuse("fanout must be at least 1");
  if (options.tcp_streams < 1 || options.tcp_streams > kMaxStreams)
    return refuse("tcp_streams " + std::to_string(options.tcp_streams) +
                  " is not between 1 and 64");
  if (!(options.stop_warning_s >= 0) || !(options.stop_abort_s >= 0))
    return refuse("stop_warning_s and stop_abort_s must not be negative");
  if (!(options.net_timeout_s >= 0)) return refuse("net_timeout_s must not be negative");
  if (!(options.start_timeout_s > 0)) return refuse("start_timeout_s must be positive");
  return Status::ok();
}

std::size_t rounded_slot_bytes(std::size_t slot_bytes) { return (slot_bytes + 63) / 64 * 64; }

}  // namespace hvd
