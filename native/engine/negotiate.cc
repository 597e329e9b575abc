#include "engine/negotiate.h"

#include <algorithm>
#include <utility>

#include "engine/mismatch.h"

namespace hvd {
namespace {

const Request& any_of(const std::vector<Request>& by_rank) {
  return *std::find_if(by_rank.begin(), by_rank.end(),
                       [](const Request& request) { return !request.name.empty(); });
}

}  // namespace

void Negotiator::add(int rank, Request request, std::int64_t now_ns) {
  const std::string name = request.name;
  Entry& entry = table_[name];
  if (entry.by_rank.empty()) {
    entry.by_rank.resize(static_cast<std::size_t>(size_));
    entry.since_ns = now_ns;
  }
  Request& place = entry.by_rank[static_cast<std::size_t>(rank)];
  if (place.name.empty()) ++entry.count;
  place = std::move(request);
  if (entry.count < size_ && first_left_ < 0) return;
  auto node = table_.extract(name);
  if (node.mapped().count == size_) {
    agree(std::move(node.mapped()));
  } else {
    fail(node.mapped(), first_left_);
  }
}

void Negotiator::leave(int rank) {
  if (left_[static_cast<std::size_t>(rank)]) return;
  left_[static_cast<std::size_t>(rank)] = true;
  if (first_left_ < 0) first_left_ = rank;
  // What this rank has asked for and nobody has completed yet, it has abandoned; the rest it will
  // never ask for.
  for (const auto& [name, entry] : std::exchange(table_, {})) fail(entry, rank);
}

std::vector<Agreed> Negotiator::take() { return std::exchange(agreed_, {}); }

std::vector<Waiting> Negotiator::waiting() const {
  std::vector<Waiting> all;
  for (const auto& [name, entry] : table_) {
    Waiting waiting{name, any_of(entry.by_rank).kind, entry.since_ns, {}};
    for (int rank = 0; rank < size_; ++rank) {
      if (entry.by_rank[static_cast<std::size_t>(rank)].name.empty())
        waiting.missing.push_back(rank);
    }
    all.push_back(std::move(waiting));
  }
  return all;
}

void Negotiator::agree(Entry entry) {
  Agreed agreed;
  agreed.status = compare(entry.by_rank);
  if (agreed.status.is_ok() && entry.by_rank.front().kind == Kind::kAllgather) {
    for (const Request& request : entry.by_rank) {
      agreed.rows.push_back(request.tensors.front().shape.front());
    }
  }
  agreed.request = std::move(entry.by_rank.front());
  agreed_.push_back(std::move(agreed));
}

void Negotiator::fail(const Entry& entry, int because_of) {
  Agreed agreed;
  agreed.request = any_of(entry.by_rank);
  agreed.status = shut_down_by(because_of);
  agreed_.push_back(std::move(agreed));
}

}  // namespace hvd
