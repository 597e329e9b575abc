#include "collective/algorithm/torus.h"

#include "collective/algorithm/ring.h"

namespace hvd {
namespace {

using Chunks = std::vector<std::vector<Operand>>;  // by number in the ring
using MakeSchedule = Schedule (*)(int group_rank, int size);

std::size_t index(int number) { return static_cast<std::size_t>(number); }

// Of these hosts, in their order.
template <typename T>
std::vector<T> chosen(const std::vector<T>& by_host, const std::vector<int>& hosts) {
  std::vector<T> found;
  found.reserve(hosts.size());
  for (const int host : hosts) found.push_back(by_host[index(host)]);
  return found;
}

class Torus {
 public:
  Torus(Mesh& mesh, const CommunicatorContext& context, const HostParts& parts,
        const HostGrid& grid, std::size_t segment_bytes)
      : mesh_(mesh),
        context_(context),
        parts_(parts),
        grid_(grid),
        segment_bytes_(segment_bytes),
        row_(grid.row_of(context.host_of(context.group_rank()))),
        column_(grid.column_of(context.host_of(context.group_rank()))) {}

  Status run(const Reduction& reduction) const {
    if (grid_.is_line()) return ring(parts_.workers, parts_.chunks, allreduce_schedule, reduction);
    const Reduction unscaled{reduction.dtype, reduction.op, {}};
    const std::size_t width = size_of(reduction.dtype);
    const std::vector<int> row = chosen(parts_.workers, grid_.row(row_));
    const std::vector<int> column = grid_.column(column_);
    Status status = ring(row, row_chunks(1), reduce_scatter_schedule, unscaled);
    if (status)
      status = ring(chosen(parts_.workers, column), chosen(parts_.chunks, column),
                    allreduce_schedule, reduction);
    if (status) status = ring(row, row_chunks(width), allgather_schedule, plain_bytes());
    return status;
  }

 private:
  Status ring(const std::vector<int>& workers, const Chunks& chunks, MakeSchedule schedule,
              const Reduction& reduction) const {
    CommunicatorContext members(mesh_, context_.part(workers));
    const Plan plan = Plan::listed(chunks, size_of(reduction.dtype),
                                   segment_bytes_ / size_of(wire_dtype(reduction.dtype)));
    return execute(members, schedule(members.group_rank(), members.size()), plan, reduction);
  }

  // Per column, the operands whose home is in it, in elements of 1 / `parts` of their size.
  Chunks row_chunks(std::size_t parts) const {
    Chunks chunks(index(grid_.columns));
    for (int column = 0; column < grid_.columns; ++column) {
      for (const int host : grid_.column(column)) {
        for (Operand slice : parts_.chunks[index(host)]) {
          slice.count *= parts;
          chunks[index(column)].push_back(slice);
        }
      }
    }
    return chunks;
  }

  Mesh& mesh_;
  const CommunicatorContext& context_;
  const HostParts& parts_;
  const HostGrid grid_;
  const std::size_t segment_bytes_;
  const int row_, column_;
};

}  // namespace

Status torus(Mesh& mesh, const CommunicatorContext& context, const HostParts& parts,
             const HostGrid& grid, Reduction reduction, std::size_t segment_bytes) {
  reduction.scaling.before = 1.0;  // applied already
  return Torus(mesh, context, parts, grid, segment_bytes).run(reduction);
}

}  // namespace hvd
