#include "engine/controller/response_cache.h"

#include <algorithm>

#include "engine/message/wire.h"

namespace hvd {
namespace {

bool same(const TensorMeta& a, const TensorMeta& b) {
  return a.dtype == b.dtype && a.device == b.device && a.place == b.place && a.shape == b.shape;
}

}  // namespace

bool same(const Request& a, const Request& b) {
  return a.kind == b.kind && a.op == b.op && a.set == b.set && a.root == b.root &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.sizes == b.sizes &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const TensorMeta& x, const TensorMeta& y) { return same(x, y); });
}

bool cacheable(const Request& request) {
  switch (request.kind) {
    case Kind::kAllreduce:
    case Kind::kAllgather:
    case Kind::kBroadcast:
    case Kind::kBarrier:
    case Kind::kAlltoall:
    case Kind::kReducescatter:
      return request.name.find(".noname.") == std::string::npos;
    default:
      return false;
  }
}

CacheLru::CacheLru(std::size_t capacity) : capacity_(std::min<std::size_t>(capacity, kMostSlots)) {}

void CacheLru::touch(int slot) {
  unlink(slot);
  append(slot);
}

int CacheLru::allocate() {
  int slot = -1;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (places_.size() < capacity_) {
    slot = static_cast<int>(places_.size());
    places_.emplace_back();
  } else if (oldest_ >= 0 && at(oldest_).round != round_) {
    slot = oldest_;
    unlink(slot);
    full_ = true;
  } else {
    return -1;
  }
  append(slot);
  return slot;
}

void CacheLru::free(int slot) {
  unlink(slot);
  at(slot).used = false;
  free_.push_back(slot);
}

void CacheLru::unlink(int slot) {
  Place& place = at(slot);
  if (!place.used) return;
  (place.before >= 0 ? at(place.before).after : oldest_) = place.after;
  (place.after >= 0 ? at(place.after).before : newest_) = place.before;
}

void CacheLru::append(int slot) {
  Place& place = at(slot);
  place = {newest_, -1, round_, true};
  (newest_ >= 0 ? at(newest_).after : oldest_) = slot;
  newest_ = slot;
}

}  // namespace hvd
