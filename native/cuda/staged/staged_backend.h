// Staged backend over host memory, always possible: device -> pinned host memory -> the backend for
// host memory, which executes the operation between the ranks -> device. The host waits for the
// copies of the inputs, not for those of the results. The result has the same bytes as the host
// backend's.
//
// Large operations are cut into chunks, so that the copies of one overlap the reduction of another,
// in two alternating pinned buffers. A chunk plan splits them without changing the order of any
// sum.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

constexpr std::size_t kStagedChunk = std::size_t{4} << 20U;

// See bootstrap_group.h; exchanges nothing. chunk_bytes: the same on all members.
Result<std::unique_ptr<DeviceBackend>> make_staged_backend(const BootstrapGroup& bootstrap,
                                                           std::size_t chunk_bytes = kStagedChunk);

// Warning about operations that are staged through host memory because the group's device backend
// cannot do them.

// Any thread. Only the first member of a group warns, once per process and message. backend: its
// name, as in "the ring".
void warn_staged(const Group& group, const std::string& backend, const Reduction& reduction);

// Chunk plan of an operation over host memory.
//
// Terms.
//   row      the data of one member: for a reduction its slice or share of a tensor, for a gather
//            its block, for an exchange the data sent to it or received from it
//   column   element c of every row that is long enough
//   strip    some columns of all rows of one tensor; in a buffer its rows are consecutive
//   chunk    the strips that are in a buffer together
// slice_begin (collective/backend/plan.h) splits such a strip of a tensor's slices exactly between
// its rows: the owner of an element of the tensor also owns it in the strip. So chunks do not
// change the order of any sum. All ranks split alike, because they know the same lengths.

struct RowLengths {
  std::vector<std::size_t> lengths;  // elements
  std::size_t columns = 0;           // at least the longest row

  RowLengths() = default;
  explicit RowLengths(std::vector<std::size_t> all);
};

// The slices of a tensor.
RowLengths slices_of(std::size_t count, std::size_t group_ranks);

struct ChunkPart {
  std::size_t tensor = 0;
  std::size_t begin = 0, end = 0;  // columns
  std::size_t at = 0;              // bytes from the beginning of the buffer, a multiple of 64
};

using Chunk = std::vector<ChunkPart>;

struct ChunkPlan {
  std::vector<Chunk> chunks;
  std::size_t bytes = 0;  // of the largest one
};

// room: bytes of a chunk, unless a single column needs more.
ChunkPlan plan_chunks(const std::vector<RowLengths>& tensors, std::size_t element_bytes,
                      std::size_t room);

// Elements of a row that lie in the strip.
std::size_t part_of(std::size_t length, const ChunkPart& strip);

// visit(row, elements of it in the strip, bytes from the beginning of the buffer to them), row by
// row.
template <typename Visit>
void each_part(const RowLengths& rows, const ChunkPart& strip, std::size_t element_bytes,
               const Visit& visit) {
  std::size_t at = strip.at;
  for (std::size_t row = 0; row < rows.lengths.size(); ++row) {
    const std::size_t part = part_of(rows.lengths[row], strip);
    visit(row, part, at);
    at += part * element_bytes;
  }
}

}  // namespace hvd::cuda
