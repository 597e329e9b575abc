#include "engine/controller/negotiate.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "engine/controller/response_cache.h"

namespace hvd {

namespace {

// Difference between two requests: a sentence (empty: none) and the tensor that differs.
struct Difference {
  std::string sentence;
  std::size_t tensor = 0;
};

// `a` is the request of the lowest rank.
using Check = Difference (*)(const Request& a, const Request& b);
// The value that one rank requested, as text.
using Value = std::string (*)(const Request& request, std::size_t tensor);

struct Row {
  Check check;
  Value value;
};

// The first difference between corresponding tensors.
template <typename F>
Difference first_difference(const Request& a, const Request& b, const F& difference) {
  const std::size_t tensors = std::min(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < tensors; ++i) {
    std::string text = difference(a.tensors[i], b.tensors[i]);
    if (!text.empty()) return {std::move(text), i};
  }
  return {};
}

bool gathers(const Request& request) {
  return request.kind == Kind::kAllgather || request.kind == Kind::kAlltoall;
}

std::string shapes_of(const Request& request) {
  return std::string("Mismatched ") + name_of(request.kind) +
         " tensor shapes: One rank sent a tensor ";
}

Difference dtypes(const Request& a, const Request& b) {
  return first_difference(a, b, [](const TensorMeta& x, const TensorMeta& y) -> std::string {
    if (x.dtype == y.dtype) return "";
    return std::string("Mismatched data types: One rank had type ") + name_of(x.dtype) +
           ", but another rank had type " + name_of(y.dtype) + ".";
  });
}

Difference kinds(const Request& a, const Request& b) {
  if (a.kind == b.kind) return {};
  return {std::string("Mismatched operations: One rank did an ") + name_of(a.kind) +
          ", but another rank did an " + name_of(b.kind) + "."};
}

Difference group_sizes(const Request& a, const Request& b) {
  if (a.tensors.size() == b.tensors.size()) return {};
  return {std::string("Mismatched ") + name_of(a.kind) + " group sizes: One rank sent " +
          std::to_string(a.tensors.size()) + " tensors, but another rank sent " +
          std::to_string(b.tensors.size()) + " tensors."};
}

Difference shapes(const Request& a, const Request& b) {
  if (gathers(a)) return {};
  return first_difference(a, b, [&](const TensorMeta& x, const TensorMeta& y) -> std::string {
    if (x.shape == y.shape) return "";
    return shapes_of(a) + "of shape " + shape_text(x.shape) +
           ", but another rank sent a tensor of shape " + shape_text(y.shape) + ".";
  });
}

// Not a string stream: its locale machinery crashes where a process holds two copies of the C++
// library, as torch's may.
std::string factors_of(const Request& request, std::size_t /*tensor*/) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "(%g, %g)", request.prescale, request.postscale);
  return text.data();
}

Difference factors(const Request& a, const Request& b) {
  if (a.prescale == b.prescale && a.postscale == b.postscale) return {};
  return {"Mismatched prescale and/or postscale factors: One rank sent factors " +
          factors_of(a, 0) + ", but another rank sent factors " + factors_of(b, 0) + "."};
}

Difference ops(const Request& a, const Request& b) {
  if (a.op == b.op) return {};
  return {"Mismatched reduction operation: One rank sent reduction op " +
          std::to_string(static_cast<int>(a.op)) + ", but another rank sent reduction op " +
          std::to_string(static_cast<int>(b.op)) + "."};
}

Difference gathered_shapes(const Request& a, const Request& b) {
  if (!gathers(a)) return {};
  return first_difference(a, b, [&](const TensorMeta& x, const TensorMeta& y) -> std::string {
    if (x.shape.size() != y.shape.size()) {
      return shapes_of(a) + "of rank " + std::to_string(x.shape.size()) +
             ", but another rank sent a tensor of rank " + std::to_string(y.shape.size()) + ".";
    }
    for (std::size_t i = 1; i < x.shape.size(); ++i) {
      if (x.shape[i] == y.shape[i]) continue;
      return shapes_of(a) + "with dimension " + std::to_string(i) + " equal to " +
             std::to_string(x.shape[i]) + ", but another rank sent a tensor with dimension " +
             std::to_string(i) + " equal to " + std::to_string(y.shape[i]) + ".";
    }
    return "";
  });
}

Difference roots(const Request& a, const Request& b) {
  if (a.root == b.root) return {};
  return {"Mismatched BROADCAST root ranks: One rank specified root rank " +
          std::to_string(a.root) + ", but another rank specified root rank " +
          std::to_string(b.root) + "."};
}

const char* device_text(int device) { return device == kCpu ? "CPU" : "GPU"; }

Difference devices(const Request& a, const Request& b) {
  return first_difference(a, b, [&](const TensorMeta& x, const TensorMeta& y) -> std::string {
    if ((x.device == kCpu) == (y.device == kCpu)) return "";
    return std::string("Mismatched ") + name_of(a.kind) +
           " CPU/GPU device selection: One rank specified device " + device_text(x.device) +
           ", but another rank specified device " + device_text(y.device) + ".";
  });
}

Difference definitions(const Request& a, const Request& b) {
  if (a.kind == Kind::kAlltoall || a.sizes == b.sizes) return {};
  if (a.kind == Kind::kAddSet) {
    return {"Attempted to register process set with mismatching size/values on different ranks."};
  }
  return {std::string("Mismatched ") + name_of(a.kind) + " arguments: One rank sent " +
          shape_text(a.sizes) + ", but another rank sent " + shape_text(b.sizes) + "."};
}

std::string dtype_value(const Request& request, std::size_t tensor) {
  return tensor < request.tensors.size() ? name_of(request.tensors[tensor].dtype) : "no tensor";
}

std::string shape_value(const Request& request, std::size_t tensor) {
  return tensor < request.tensors.size() ? shape_text(request.tensors[tensor].shape) : "no tensor";
}

std::string device_value(const Request& request, std::size_t tensor) {
  return tensor < request.tensors.size() ? device_text(request.tensors[tensor].device)
                                         : "no tensor";
}

std::string kind_value(const Request& request, std::size_t /*tensor*/) {
  return name_of(request.kind);
}

std::string op_value(const Request& request, std::size_t /*tensor*/) { return name_of(request.op); }

std::string group_value(const Request& request, std::size_t /*tensor*/) {
  return std::to_string(request.tensors.size()) + " tensors";
}

std::string root_value(const Request& request, std::size_t /*tensor*/) {
  return "root " + std::to_string(request.root);
}

std::string sizes_value(const Request& request, std::size_t /*tensor*/) {
  return shape_text(request.sizes);
}

constexpr std::array<Row, 10> kRows{{
    {dtypes, dtype_value},
    {kinds, kind_value},
    {group_sizes, group_value},
    {shapes, shape_value},
    {factors, factors_of},
    {ops, op_value},
    {gathered_shapes, shape_value},
    {roots, root_value},
    {devices, device_value},
    {definitions, sizes_value},
}};

// " (rank 0: float32; ranks 1-3: int32)"
std::string values_by_rank(const Variants& variants, Value value, std::size_t tensor) {
  constexpr std::size_t kMost = 16;
  std::vector<std::pair<std::string, RankSet>> groups;
  for (const Variant& variant : variants) {
    std::string text = value(*variant.request, tensor);
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& known) { return known.first == text; });
    if (group == groups.end()) {
      groups.emplace_back(std::move(text), variant.ranks);
    } else {
      group->second.add(variant.ranks);
    }
  }
  std::string text = " (";
  for (std::size_t i = 0; i < std::min(groups.size(), kMost); ++i) {
    text += (i > 0 ? "; " : "") + ranks_text(groups[i].second.numbers()) + ": " + groups[i].first;
  }
  if (groups.size() > kMost) text += "; " + std::to_string(groups.size() - kMost) + " more";
  return text + ")";
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

Status compare(Variants variants) {
  if (variants.size() < 2) return Status::ok();
  std::sort(variants.begin(), variants.end(),
            [](const Variant& a, const Variant& b) { return a.ranks.first() < b.ranks.first(); });
  const Request& first = *variants.front().request;
  for (const Row& row : kRows) {
    for (std::size_t i = 1; i < variants.size(); ++i) {
      Difference difference = row.check(first, *variants[i].request);
      if (difference.sentence.empty()) continue;
      return Status::make(
          Code::kMismatch,
          difference.sentence + values_by_rank(variants, row.value, difference.tensor),
          "engine/mismatch", variants[i].ranks.first());
    }
  }
  return Status::ok();
}

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
