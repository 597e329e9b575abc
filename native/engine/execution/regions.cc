#include "engine/execution/regions.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace hvd {
namespace {

Status unavailable(const std::string& why) {
  return Status::make(Code::kUnavailable, "no shared memory: " + why, "engine/regions");
}

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return std::max(page, (bytes + page - 1) / page * page);
}

struct Range {
  std::uintptr_t begin;
  std::size_t bytes;

  bool contains(const Range& other) const {
    return other.begin >= begin && other.begin - begin <= bytes &&
           other.bytes <= bytes - (other.begin - begin);
  }
};

std::int64_t place_at(std::int64_t region, std::size_t offset) {
  return region * kRegionSpan + static_cast<std::int64_t>(offset);
}

std::vector<int> parts_by_rank(const Topology& topology) {
  std::vector<int> parts;
  std::map<int, int> seen;
  for (int rank = 0; rank < topology.size; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    parts.push_back(seen[at < topology.host_of.size() ? topology.host_of[at] : 0]++);
  }
  return parts;
}

}  // namespace

Regions::Regions(Mesh& mesh)
    : heap_(mesh.heap()),
      part_of_rank_(parts_by_rank(mesh.topology())),
      part_(part_of_rank_[static_cast<std::size_t>(mesh.topology().rank)]),
      parts_here_(mesh.topology().local_size) {}

Status Regions::allocate(std::int64_t region, std::int64_t bytes) {
  if (heap_ == nullptr) return unavailable("the ranks of this host do not share any");
  const auto ranks = static_cast<std::size_t>(parts_here_);
  if (bytes < 0 || static_cast<std::size_t>(bytes) > heap_->bytes() / ranks) {
    return unavailable(std::to_string(bytes) + " bytes for each of " + std::to_string(parts_here_) +
                       " ranks are more than the machine has");
  }
  const Part part{0, whole_pages(static_cast<std::size_t>(bytes)), static_cast<std::size_t>(bytes)};
  const MutexLock lock(mutex_);
  const std::optional<std::size_t> offset = room_for(part.stride * ranks);
  if (!offset) {
    return unavailable("its address space has no gap of " + std::to_string(part.stride * ranks) +
                       " bytes left");
  }
  if (part_ == 0) {
    if (Status status = heap_->claim(*offset, part.stride * ranks); !status) return status;
  }
  parts_[region] = {*offset, part.stride, part.bytes};
  any_.store(true, std::memory_order_release);
  return Status::ok();
}

// The first gap that is large enough: the same on every rank of the host.
std::optional<std::size_t> Regions::room_for(std::size_t bytes) const {
  std::vector<std::pair<std::size_t, std::size_t>> taken;  // from, to
  taken.reserve(parts_.size());
  for (const auto& [region, part] : parts_) {
    taken.emplace_back(part.offset,
                       part.offset + part.stride * static_cast<std::size_t>(parts_here_));
  }
  std::sort(taken.begin(), taken.end());
  std::size_t at = 0;
  for (const auto& [from, to] : taken) {
    if (from - at >= bytes) return at;
    at = to;
  }
  if (heap_->bytes() - at >= bytes) return at;
  return std::nullopt;
}

void Regions::adopt(std::int64_t region, DeviceRegion memory, std::int64_t bytes) {
  const MutexLock lock(mutex_);
  on_devices_[region] = {std::move(memory), static_cast<std::size_t>(bytes)};
  any_.store(true, std::memory_order_release);
}

std::optional<DeviceRegion> Regions::release(std::int64_t region) {
  const MutexLock lock(mutex_);
  std::optional<DeviceRegion> adopted;
  if (const auto on = on_devices_.find(region); on != on_devices_.end()) {
    adopted = std::move(on->second.memory);
    on_devices_.erase(on);
  }
  if (const auto found = parts_.find(region); found != parts_.end()) {
    const Part part = found->second;
    parts_.erase(found);
    if (part_ == 0)
      heap_->release(part.offset, part.stride * static_cast<std::size_t>(parts_here_));
  }
  any_.store(!parts_.empty() || !on_devices_.empty(), std::memory_order_release);
  return adopted;
}

void Regions::part() {
  const MutexLock lock(mutex_);
  for (auto& [region, on] : on_devices_) on.memory.mapping.reset();
}

bool Regions::is_on_devices(std::int64_t region) const {
  const MutexLock lock(mutex_);
  return on_devices_.count(region) > 0;
}

std::byte* Regions::part_of(std::int64_t region, int rank) const {
  const MutexLock lock(mutex_);
  const auto found = parts_.find(region);
  if (found == parts_.end()) return nullptr;
  const auto part = static_cast<std::size_t>(part_of_rank_[static_cast<std::size_t>(rank)]);
  return heap_->base() + found->second.offset + found->second.stride * part;
}

std::int64_t Regions::bytes_of(std::int64_t region) const {
  const MutexLock lock(mutex_);
  const auto found = parts_.find(region);
  return found == parts_.end() ? 0 : static_cast<std::int64_t>(found->second.bytes);
}

std::uintptr_t Regions::begin_of(const Part& part) const {
  return reinterpret_cast<std::uintptr_t>(heap_->base()) + part.offset +
         part.stride * static_cast<std::size_t>(part_);
}

std::int64_t Regions::place_of(const void* data, std::int64_t bytes) const {
  if (data == nullptr || !any_.load(std::memory_order_acquire)) return kPrivate;
  const MutexLock lock(mutex_);
  const Range range{reinterpret_cast<std::uintptr_t>(data), static_cast<std::size_t>(bytes)};
  for (const auto& [region, part] : parts_) {
    const Range whole{begin_of(part), part.bytes};
    if (whole.contains(range)) return place_at(region, range.begin - whole.begin);
  }
  for (const auto& [region, part] : on_devices_) {
    const Range whole{reinterpret_cast<std::uintptr_t>(part.memory.mine.get()), part.bytes};
    if (whole.contains(range)) return place_at(region, range.begin - whole.begin);
  }
  return kPrivate;
}

std::optional<std::ptrdiff_t> Regions::offset_to(std::int64_t place, int rank) const {
  if (place < 0) return std::nullopt;
  const std::int64_t region = place / kRegionSpan;
  const auto at = static_cast<std::size_t>(rank);
  const MutexLock lock(mutex_);
  if (const auto on = on_devices_.find(region); on != on_devices_.end())
    return on->second.memory.offsets[at];
  const auto found = parts_.find(region);
  if (found == parts_.end()) return std::nullopt;
  return static_cast<std::ptrdiff_t>(found->second.stride) * (part_of_rank_[at] - part_);
}

}  // namespace hvd
