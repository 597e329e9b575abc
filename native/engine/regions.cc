#include "engine/regions.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

namespace hvd {
namespace {

Status unavailable(const std::string& why) {
  return Status::make(Code::kUnavailable, "no shared memory: " + why, "engine/regions");
}

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return std::max(page, (bytes + page - 1) / page * page);
}

}  // namespace

Regions::Regions(Mesh& mesh)
    : heap_(mesh.heap()),
      local_rank_(mesh.topology().local_rank),
      local_size_(mesh.topology().local_size) {
  std::map<int, int> seen;
  for (int rank = 0; rank < mesh.topology().size; ++rank) {
    const auto& host_of = mesh.topology().host_of;
    const auto at = static_cast<std::size_t>(rank);
    local_rank_of_.push_back(seen[at < host_of.size() ? host_of[at] : 0]++);
  }
}

Status Regions::allocate(std::int64_t region, std::int64_t bytes) {
  if (heap_ == nullptr) return unavailable("the ranks of this host do not share any");
  const auto ranks = static_cast<std::size_t>(local_size_);
  if (bytes < 0 || static_cast<std::size_t>(bytes) > heap_->bytes() / ranks) {
    return unavailable(std::to_string(bytes) + " bytes for each of " + std::to_string(local_size_) +
                       " ranks are more than the machine has");
  }
  const Part part{0, whole_pages(static_cast<std::size_t>(bytes)), static_cast<std::size_t>(bytes)};
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<std::size_t> offset = room_for(part.stride * ranks);
  if (!offset) {
    return unavailable("its address space has no gap of " + std::to_string(part.stride * ranks) +
                       " bytes left");
  }
  if (local_rank_ == 0) {
    if (Status status = heap_->claim(*offset, part.stride * ranks); !status) return status;
  }
  parts_[region] = {*offset, part.stride, part.bytes};
  any_.store(true, std::memory_order_release);
  return Status::ok();
}

// The first gap that is long enough: the same on every rank of the host.
std::optional<std::size_t> Regions::room_for(std::size_t bytes) const {
  std::vector<std::pair<std::size_t, std::size_t>> taken;  // from, to
  taken.reserve(parts_.size());
  for (const auto& [region, part] : parts_) {
    taken.emplace_back(part.offset,
                       part.offset + part.stride * static_cast<std::size_t>(local_size_));
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

void Regions::release(std::int64_t region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parts_.find(region);
  if (found == parts_.end()) return;
  const Part part = found->second;
  parts_.erase(found);
  any_.store(!parts_.empty(), std::memory_order_release);
  if (local_rank_ == 0) {
    heap_->release(part.offset, part.stride * static_cast<std::size_t>(local_size_));
  }
}

std::byte* Regions::part_of(std::int64_t region, int local_rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parts_.find(region);
  if (found == parts_.end()) return nullptr;
  return heap_->base() + found->second.offset +
         found->second.stride * static_cast<std::size_t>(local_rank);
}

std::int64_t Regions::bytes_of(std::int64_t region) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parts_.find(region);
  return found == parts_.end() ? 0 : static_cast<std::int64_t>(found->second.bytes);
}

std::int64_t Regions::place_of(const void* data, std::int64_t bytes) const {
  if (data == nullptr || !any_.load(std::memory_order_acquire)) return kPrivate;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  for (const auto& [region, part] : parts_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(heap_->base()) + part.offset +
                       part.stride * static_cast<std::size_t>(local_rank_);
    if (at < begin || at - begin > part.bytes) continue;
    const std::size_t offset = at - begin;
    if (static_cast<std::size_t>(bytes) > part.bytes - offset) continue;
    return region * kRegionSpan + static_cast<std::int64_t>(offset);
  }
  return kPrivate;
}

std::optional<std::ptrdiff_t> Regions::offset_to(std::int64_t place, int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parts_.find(place / kRegionSpan);
  if (place < 0 || found == parts_.end()) return std::nullopt;
  const int steps = local_rank_of_[static_cast<std::size_t>(rank)] - local_rank_;
  return static_cast<std::ptrdiff_t>(found->second.stride) * steps;
}

}  // namespace hvd
