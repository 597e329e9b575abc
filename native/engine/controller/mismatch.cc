#include "engine/controller/mismatch.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>

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

}  // namespace hvd
