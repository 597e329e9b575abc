#include "collective/backend/order.h"

#include <algorithm>

namespace hvd {
namespace {

// Elements of a block: the parts of a few hosts stay in the first-level cache.
constexpr std::size_t kBlock = 512;
constexpr std::size_t kWidest = 16;  // bytes of an element

std::size_t index(int number) { return static_cast<std::size_t>(number); }

}  // namespace

Order::Order(const CommunicatorContext& context, bool by_host, int grid_from)
    : grid_(host_grid(context.hosts(), grid_from)), row_(index(context.size())) {
  // If every member has its own host, host by host is member by member.
  const bool alone = context.hosts() == context.size() && grid_.is_line();
  if (!by_host || context.hosts() == 1 || alone) return;
  for (int host = 0; host < context.hosts(); ++host)
    groups_.push_back(context.group_ranks_on(host));
  for (int group_rank = 0; group_rank < context.size(); ++group_rank)
    group_of_.push_back(context.host_of(group_rank));
  shifted_.resize(row_.size());
  parts_.resize(groups_.size());
  scratch_.resize((groups_.size() + index(grid_.rows)) * kBlock * kWidest);
}

void Order::fold(const Reduction& reduction, int slice, void* out, void* const* copies,
                 std::size_t n_copies, const std::byte* const* inputs, std::size_t count) {
  const std::size_t n = row_.size();
  if (groups_.empty() || folds_exactly(reduction)) {
    for (std::size_t i = 0; i < n; ++i) row_[i] = inputs[(index(slice) + 1 + i) % n];
    hvd::fold(reduction, out, copies, n_copies, row_.data(), n, count);
    return;
  }
  const std::size_t width = size_of(reduction.dtype);
  std::vector<void*> targets(copies, copies + n_copies);
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t block = std::min(kBlock, count - at);
    for (std::size_t i = 0; i < n; ++i) shifted_[i] = inputs[i] + at * width;
    for (std::size_t host = 0; host < groups_.size(); ++host) {
      std::byte* const part = scratch_.data() + host * kBlock * kWidest;
      fold_host(reduction, slice, static_cast<int>(host), part, shifted_.data(), block);
      parts_[host] = part;
    }
    for (std::size_t i = 0; i < n_copies; ++i)
      targets[i] = static_cast<std::byte*>(copies[i]) + at * width;
    fold_hosts(reduction, slice, static_cast<std::byte*>(out) + at * width, targets.data(),
               n_copies, parts_.data(), block);
  }
}

void Order::fold_host(const Reduction& reduction, int slice, int host, void* out,
                      const std::byte* const* inputs, std::size_t count) {
  const std::vector<int>& group_ranks = groups_[index(host)];
  const auto first =
      std::upper_bound(group_ranks.begin(), group_ranks.end(), slice) - group_ranks.begin();
  const std::size_t n = group_ranks.size();
  for (std::size_t i = 0; i < n; ++i)
    row_[i] = inputs[group_ranks[(static_cast<std::size_t>(first) + i) % n]];
  hvd::fold({reduction.dtype, reduction.op, {}}, out, nullptr, 0, row_.data(), n, count);
}

void Order::fold_hosts(const Reduction& reduction, int slice, void* out, void* const* copies,
                       std::size_t n_copies, const std::byte* const* parts, std::size_t count) {
  if (!grid_.is_line())
    return fold_grid(reduction, group_of_[index(slice)], out, copies, n_copies, parts, count);
  const std::size_t n = groups_.size();
  const std::size_t first = index(group_of_[index(slice)]) + 1;
  for (std::size_t i = 0; i < n; ++i) row_[i] = parts[(first + i) % n];
  hvd::fold(reduction, out, copies, n_copies, row_.data(), n, count);
}

void Order::fold_grid(const Reduction& reduction, int home, void* out, void* const* copies,
                      std::size_t n_copies, const std::byte* const* parts, std::size_t count) {
  const auto of_row = [this](int row) {
    return scratch_.data() + (groups_.size() + index(row)) * kBlock * kWidest;
  };
  for (int row = 0; row < grid_.rows; ++row) {
    for (int step = 1; step <= grid_.columns; ++step) {
      const int column = (grid_.column_of(home) + step) % grid_.columns;
      row_[index(step - 1)] = parts[grid_.host_at(row, column)];
    }
    hvd::fold({reduction.dtype, reduction.op, {}}, of_row(row), nullptr, 0, row_.data(),
              index(grid_.columns), count);
  }
  for (int step = 1; step <= grid_.rows; ++step)
    row_[index(step - 1)] = of_row((grid_.row_of(home) + step) % grid_.rows);
  hvd::fold(reduction, out, copies, n_copies, row_.data(), index(grid_.rows), count);
}

}  // namespace hvd
