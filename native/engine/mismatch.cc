#include "engine/mismatch.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

namespace hvd {
namespace {

// A check says what differs between two requests, or nothing. `a` is rank 0's.
using Check = std::string (*)(const Request& a, const Request& b);

// The first difference between corresponding tensors.
template <typename F>
std::string each(const Request& a, const Request& b, const F& difference) {
  const std::size_t tensors = std::min(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < tensors; ++i) {
    std::string text = difference(a.tensors[i], b.tensors[i]);
    if (!text.empty()) return text;
  }
  return "";
}

std::string shapes_of(const Request& request) {
  return std::string("Mismatched ") + name_of(request.kind) +
         " tensor shapes: One rank sent a tensor ";
}

std::string dtypes(const Request& a, const Request& b) {
  return each(a, b, [](const TensorMeta& x, const TensorMeta& y) -> std::string {
    if (x.dtype == y.dtype) return "";
    return std::string("Mismatched data types: One rank had type ") + name_of(x.dtype) +
           ", but another rank had type " + name_of(y.dtype) + ".";
  });
}

std::string kinds(const Request& a, const Request& b) {
  if (a.kind == b.kind) return "";
  return std::string("Mismatched operations: One rank did an ") + name_of(a.kind) +
         ", but another rank did an " + name_of(b.kind) + ".";
}

std::string group_sizes(const Request& a, const Request& b) {
  if (a.tensors.size() == b.tensors.size()) return "";
  return std::string("Mismatched ") + name_of(a.kind) + " group sizes: One rank sent " +
         std::to_string(a.tensors.size()) + " tensors, but another rank sent " +
         std::to_string(b.tensors.size()) + " tensors.";
}

std::string shapes(const Request& a, const Request& b) {
  if (a.kind == Kind::kAllgather) return "";
  return each(a, b, [&](const TensorMeta& x, const TensorMeta& y) -> std::string {
    if (x.shape == y.shape) return "";
    return shapes_of(a) + "of shape " + shape_text(x.shape) +
           ", but another rank sent a tensor of shape " + shape_text(y.shape) + ".";
  });
}

// Not a string stream: its locale machinery crashes where a process holds two copies of the C++
// library, as torch's may.
std::string factors_of(const Request& request) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "(%g, %g)", request.prescale, request.postscale);
  return text.data();
}

std::string factors(const Request& a, const Request& b) {
  if (a.prescale == b.prescale && a.postscale == b.postscale) return "";
  return "Mismatched prescale and/or postscale factors: One rank sent factors " + factors_of(a) +
         ", but another rank sent factors " + factors_of(b) + ".";
}

std::string ops(const Request& a, const Request& b) {
  if (a.op == b.op) return "";
  return "Mismatched reduction operation: One rank sent reduction op " +
         std::to_string(static_cast<int>(a.op)) + ", but another rank sent reduction op " +
         std::to_string(static_cast<int>(b.op)) + ".";
}

std::string gathered_shapes(const Request& a, const Request& b) {
  if (a.kind != Kind::kAllgather) return "";
  return each(a, b, [&](const TensorMeta& x, const TensorMeta& y) -> std::string {
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

std::string roots(const Request& a, const Request& b) {
  if (a.root == b.root) return "";
  return "Mismatched BROADCAST root ranks: One rank specified root rank " + std::to_string(a.root) +
         ", but another rank specified root rank " + std::to_string(b.root) + ".";
}

std::string devices(const Request& a, const Request& b) {
  return each(a, b, [&](const TensorMeta& x, const TensorMeta& y) -> std::string {
    if ((x.device == kCpu) == (y.device == kCpu)) return "";
    const auto text = [](int device) { return device == kCpu ? "CPU" : "GPU"; };
    return std::string("Mismatched ") + name_of(a.kind) +
           " CPU/GPU device selection: One rank specified device " + text(x.device) +
           ", but another rank specified device " + text(y.device) + ".";
  });
}

constexpr std::array<Check, 9> kChecks{dtypes, kinds,           group_sizes, shapes, factors,
                                       ops,    gathered_shapes, roots,       devices};

}  // namespace

Status compare(const std::vector<Request>& by_rank) {
  const Request& first = by_rank.front();
  for (const Check check : kChecks) {
    for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
      std::string text = check(first, by_rank[rank]);
      if (text.empty()) continue;
      return Status::make(Code::kMismatch, std::move(text), "engine/mismatch",
                          static_cast<int>(rank));
    }
  }
  return Status::ok();
}

}  // namespace hvd
