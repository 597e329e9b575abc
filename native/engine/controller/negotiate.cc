#include "engine/controller/negotiate.h"

#include <algorithm>
#include <map>
#include <string>

#include "engine/controller/mismatch.h"
#include "engine/controller/response_cache.h"

namespace hvd {
namespace {

// Names with more variants than this, or responses with more sizes, are not worth caching.
constexpr std::size_t kMostVariants = 64;
constexpr std::size_t kMostSizes = 4096;

std::vector<const Request*> by_group_rank(const Entry& entry, const Variants& variants) {
  std::vector<const Request*> requests;
  requests.reserve(static_cast<std::size_t>(entry.set->size));
  for (int group_rank = 0; group_rank < entry.set->size; ++group_rank) {
    requests.push_back(request_of(variants, entry.set->rank_at(group_rank)));
  }
  return requests;
}

std::vector<std::int64_t> gathered_rows(const std::vector<const Request*>& requests) {
  std::vector<std::int64_t> rows;
  for (std::size_t tensor = 0; tensor < requests.front()->tensors.size(); ++tensor) {
    for (const Request* request : requests) rows.push_back(request->tensors[tensor].shape.front());
  }
  return rows;
}

Status splits_of(const std::vector<const Request*>& requests, std::vector<std::int64_t>& splits) {
  for (std::size_t group_rank = 0; group_rank < requests.size(); ++group_rank) {
    const std::vector<std::int64_t>& sizes = requests[group_rank]->sizes;
    if (sizes.size() != requests.size()) {
      return Status::make(Code::kMismatch,
                          "Number of entries in splits does not equal number of workers. (rank " +
                              std::to_string(group_rank) + " of the set: " + shape_text(sizes) +
                              ")",
                          "engine/negotiate");
    }
    splits.insert(splits.end(), sizes.begin(), sizes.end());
  }
  return Status::ok();
}

std::uint64_t gathered_bytes(const Request& request, const std::vector<std::int64_t>& rows) {
  std::uint64_t bytes = 0;
  const std::size_t members = rows.size() / request.tensors.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TensorMeta& tensor = request.tensors[i / members];
    std::uint64_t row = size_of(tensor.dtype);
    for (std::size_t d = 1; d < tensor.shape.size(); ++d) {
      row *= static_cast<std::uint64_t>(tensor.shape[d]);
    }
    bytes += row * static_cast<std::uint64_t>(rows[i]);
  }
  return bytes;
}

// For fusion only: clamped, so that sums cannot overflow.
std::int64_t bytes_of(const Request& request, const std::vector<std::int64_t>& sizes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 46U;
  const bool gathered = request.kind == Kind::kAllgather && !sizes.empty();
  const std::uint64_t bytes =
      gathered ? gathered_bytes(request, sizes) : static_cast<std::uint64_t>(request.bytes());
  return static_cast<std::int64_t>(std::min(bytes, kMost));
}

bool in_shared_memory(const Request& request) {
  return request.kind == Kind::kAllreduce && request.op != ReduceOp::kAdasum &&
         std::all_of(request.tensors.begin(), request.tensors.end(),
                     [](const TensorMeta& tensor) { return tensor.place != kPrivate; });
}

// At the same offsets in shared memory on every rank; the numbers of their devices may differ.
bool all_in_shared_memory(const Variants& variants) {
  const Request& first = *variants.front().request;
  const auto alike = [](const TensorMeta& x, const TensorMeta& y) { return x.place == y.place; };
  return in_shared_memory(first) &&
         std::all_of(variants.begin(), variants.end(), [&](const Variant& variant) {
           const std::vector<TensorMeta>& tensors = variant.request->tensors;
           return std::equal(tensors.begin(), tensors.end(), first.tensors.begin(),
                             first.tensors.end(), alike);
         });
}

std::shared_ptr<const Request> lowest(const Variants& variants) {
  return std::min_element(
             variants.begin(), variants.end(),
             [](const Variant& a, const Variant& b) { return a.ranks.first() < b.ranks.first(); })
      ->request;
}

// In the order of the devices' numbers.
Whereabouts devices_of(const Request& request, const Variants& variants) {
  if (!request.on_device()) return {};
  std::map<int, RankSet> devices;
  for (const Variant& variant : variants) {
    devices[variant.request->tensors.front().device].add(variant.ranks);
  }
  return {devices.begin(), devices.end()};
}

Agreed by_slot(const Entry& entry) {
  Agreed agreed;
  agreed.request = lowest(entry.known);
  agreed.devices = devices_of(*agreed.request, entry.known);
  agreed.bytes = bytes_of(*agreed.request, entry.sizes);
  agreed.slot = entry.slot;
  agreed.shared = entry.shared;
  return agreed;
}

}  // namespace

bool same(const Whereabouts& a, const Whereabouts& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.contains(y.second) && y.second.contains(x.second);
  });
}

Status with_joined(Kind kind) {
  const char* message = nullptr;
  if (kind == Kind::kAllgather) {
    message =
        "Allgather is not supported with Join at this time. Specify sparse_to_dense=True if using "
        "DistributedOptimizer";
  } else if (kind == Kind::kAlltoall) {
    message = "Alltoall is not supported with Join at this time.";
  } else if (kind == Kind::kBroadcast) {
    message = "Broadcast is not supported with Join at this time.";
  } else if (kind == Kind::kReducescatter) {
    message = "Reducescatter is not supported with Join at this time.";
  }
  if (message == nullptr) return Status::ok();
  return Status::make(Code::kMismatch, message, "engine/negotiate");
}

Agreed agree(const Entry& entry, const RankSet& joined) {
  const bool all = entry.requested.contains(entry.set->here);
  if (all && entry.slot >= 0 && entry.by_slot.contains(entry.set->here)) return by_slot(entry);
  const Variants variants = variants_of(entry);
  Agreed agreed;
  agreed.request = lowest(variants);
  const Request& request = *agreed.request;
  agreed.status = compare(variants);
  if (!agreed.status) return agreed;
  if (!all) {
    agreed.absent = true;
    agreed.status = with_joined(request.kind);
    if (!agreed.status) {
      agreed.status.message += " (" + ranks_text(joined.numbers()) + " joined)";
      agreed.only = entry.requested.numbers();
      return agreed;
    }
  } else if (request.kind == Kind::kAllgather) {
    agreed.sizes = gathered_rows(by_group_rank(entry, variants));
  } else if (request.kind == Kind::kAlltoall) {
    agreed.status = splits_of(by_group_rank(entry, variants), agreed.sizes);
  }
  agreed.devices = devices_of(request, variants);
  agreed.bytes = bytes_of(request, agreed.sizes);
  agreed.shared = all && all_in_shared_memory(variants);
  agreed.keep = all && agreed.status && variants.size() <= kMostVariants &&
                agreed.sizes.size() <= kMostSizes && cacheable(request);
  return agreed;
}

std::optional<Response> agreed_by_all(const Request& request, int size) {
  Response response;
  response.kind = request.kind;
  response.names = {request.name};
  switch (request.kind) {
    case Kind::kAllreduce:
      response.shared = in_shared_memory(request);
      return response;
    case Kind::kBroadcast:
    case Kind::kReducescatter:
    case Kind::kBarrier:
      return response;
    case Kind::kAllgather:
      response.sizes = gathered_rows({static_cast<std::size_t>(size), &request});
      return response;
    case Kind::kAlltoall:
      if (!splits_of({static_cast<std::size_t>(size), &request}, response.sizes)) break;
      return response;
    default:
      break;
  }
  return std::nullopt;
}

}  // namespace hvd
