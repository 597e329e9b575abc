#include "cuda/staged/staged_backend.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "collective/backend/plan.h"
#include "cuda/device/device.h"
#include "cuda/device/pinned.h"
#include "tensor/dtype.h"

namespace hvd::cuda {

namespace {

bool is_new(const std::string& sentence) {
  static Mutex mutex;
  static std::set<std::string> told;
  const MutexLock lock(mutex);
  return told.insert(sentence).second;
}

}  // namespace

void warn_staged(const Group& group, const std::string& backend, const Reduction& reduction) {
  if (group.group_rank != 0) return;
  const std::string sentence = std::string(name_of(reduction.op)) + " of " +
                               name_of(reduction.dtype) +
                               " on devices goes through host memory: " + backend + " cannot do it";
  if (is_new(sentence)) log(Level::kWarning, "cuda/staged_notice", sentence);
}

namespace {

constexpr std::size_t kLine = 64;

std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

class Cutter {
 public:
  Cutter(std::size_t element_bytes, std::size_t room)
      : element_bytes_(element_bytes), room_(room) {}

  void add(std::size_t tensor, const RowLengths& rows) {
    const std::size_t column_bytes = rows.lengths.size() * element_bytes_;
    for (std::size_t begin = 0; begin < rows.columns;) {
      std::size_t fitting = used_ < room_ ? (room_ - used_) / column_bytes : 0;
      if (fitting == 0 && used_ > 0) {
        end_chunk();
        continue;
      }
      fitting = std::max<std::size_t>(fitting, 1);
      const std::size_t end = fitting < rows.columns - begin ? begin + fitting : rows.columns;
      strips_.push_back({tensor, begin, end, used_});
      used_ += whole_lines((end - begin) * column_bytes);
      begin = end;
    }
  }

  ChunkPlan take() {
    if (used_ > 0) end_chunk();
    return std::move(cut_);
  }

 private:
  void end_chunk() {
    cut_.bytes = std::max(cut_.bytes, used_);
    cut_.chunks.push_back(std::exchange(strips_, {}));
    used_ = 0;
  }

  std::size_t element_bytes_, room_;
  std::size_t used_ = 0;  // of the chunk that is being filled
  Chunk strips_;
  ChunkPlan cut_;
};

}  // namespace

RowLengths::RowLengths(std::vector<std::size_t> all) : lengths(std::move(all)) {
  for (const std::size_t length : lengths) columns = std::max(columns, length);
}

RowLengths slices_of(std::size_t count, std::size_t group_ranks) {
  std::vector<std::size_t> lengths;
  lengths.reserve(group_ranks);
  for (std::size_t group_rank = 0; group_rank < group_ranks; ++group_rank) {
    lengths.push_back(slice_begin(count, group_rank + 1, group_ranks) -
                      slice_begin(count, group_rank, group_ranks));
  }
  return RowLengths(std::move(lengths));
}

std::size_t part_of(std::size_t length, const ChunkPart& strip) {
  return std::min(length, strip.end) - std::min(length, strip.begin);
}

ChunkPlan plan_chunks(const std::vector<RowLengths>& tensors, std::size_t element_bytes,
                      std::size_t room) {
  Cutter cutter(element_bytes, room);
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor)
    cutter.add(tensor, tensors[tensor]);
  return cutter.take();
}

namespace {

constexpr std::size_t kUncut = std::numeric_limits<std::size_t>::max();

// One tensor: its rows and their addresses on the device, for loading and for storing (nullptr:
// neither).
struct Staging {
  RowLengths rows;
  std::vector<const std::byte*> load;
  std::vector<std::byte*> store;

  explicit Staging(RowLengths all) : rows(std::move(all)) {
    load.resize(rows.lengths.size());
    store.resize(rows.lengths.size());
  }
};

// A part of a chunk in its buffer, by row.
struct StagedPart {
  std::size_t tensor = 0;
  std::vector<std::byte*> at;
  std::vector<std::size_t> counts;

  std::size_t count() const {
    std::size_t all = 0;
    for (const std::size_t part : counts) all += part;
    return all;
  }
};

// The operation between ranks on a chunk in host memory.
using Work = std::function<Status(const std::vector<StagedPart>& strips)>;

class StagedBackend : public DeviceBackend {
 public:
  StagedBackend(const BootstrapGroup& bootstrap, std::size_t chunk_bytes)
      : device_(bootstrap.device),
        mesh_(*bootstrap.mesh),
        cpu_(*bootstrap.cpu),
        chunk_bytes_(chunk_bytes),
        pinned_(device_, mesh_.abort()) {}

  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override;
  Status broadcast(const Group& group, const std::vector<Operand>& operands,
                   int group_root) override;
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override;
  Status alltoall(const Group& group, const Exchange& exchange) override;
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override;
  const char* last_algorithm() const override { return last_; }
  Status abort_waits() override { return Status::ok(); }  // no work waits in the device's queue

 private:
  // An operation whose chunks alternate between the pinned halves.
  struct Passage {
    const std::vector<Staging>& tensors;
    std::size_t width;
    ChunkPlan plan_chunks;
  };

  Status run(const std::vector<Staging>& tensors, std::size_t width, std::size_t room,
             const Work& work);
  Status refuse_capture();
  Status pass(const Passage& passage, const Work& work);
  Status load(const Passage& passage, std::size_t number, Device::Event& loaded);
  Status store(const Passage& passage, std::size_t number);
  std::vector<StagedPart> stage(const Passage& passage, std::size_t number) const;

  std::shared_ptr<Device> device_;
  Mesh& mesh_;
  Backend& cpu_;
  std::size_t chunk_bytes_;
  Pinned pinned_;
  const char* last_ = "LOCAL";
};

Status StagedBackend::refuse_capture() {
  const Driver& driver = device_->driver();
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(device_->stream(), &capturing);
  if (Status status = driver.check(result, "asking whether a step is captured"); !status)
    return status;
  if (capturing == CU_STREAM_CAPTURE_STATUS_NONE) return Status::ok();
  return Status::make(Code::kInvalidArgument,
                      device_->site().name +
                          ": a step that is captured (CUDA graph) cannot go over host memory, as "
                          "the staged way does; leave the operation out of the graph",
                      "cuda/staged_backend", device_->site().rank);
}

Status StagedBackend::run(const std::vector<Staging>& tensors, std::size_t width, std::size_t room,
                          const Work& work) {
  last_ = "STAGED";
  std::vector<RowLengths> rows;
  rows.reserve(tensors.size());
  for (const Staging& tensor : tensors) rows.push_back(tensor.rows);
  const Passage passage{tensors, width, plan_chunks(rows, width, room)};
  if (passage.plan_chunks.chunks.empty()) return Status::ok();
  const Current current(*device_);
  if (!current) return current.status();
  if (Status status = refuse_capture(); !status) return status;
  if (Status status = pinned_.grow(passage.plan_chunks.bytes); !status) return status;
  return pass(passage, work);
}

// On the stream: load 0, load 1, store 0, load 2, store 1, ... A chunk is loaded after the store
// of the previous one in its half, and processed after its load, even if nothing is loaded.
Status StagedBackend::pass(const Passage& passage, const Work& work) {
  const std::size_t chunks = passage.plan_chunks.chunks.size();
  Device::Event next;
  if (Status status = load(passage, 0, next); !status) return status;
  for (std::size_t number = 0; number < chunks; ++number) {
    const Device::Event loaded = std::move(next);
    if (number + 1 < chunks) {
      if (Status status = load(passage, number + 1, next); !status) return status;
    }
    if (Status status = wait_for(*device_, loaded.get(), mesh_.abort()); !status) return status;
    if (Status status = work(stage(passage, number)); !status) return status;
    if (Status status = store(passage, number); !status) return status;
  }
  return Status::ok();
}

std::vector<StagedPart> StagedBackend::stage(const Passage& passage, std::size_t number) const {
  std::byte* const half = pinned_.half(number);
  std::vector<StagedPart> strips;
  for (const ChunkPart& strip : passage.plan_chunks.chunks[number]) {
    StagedPart staged;
    staged.tensor = strip.tensor;
    each_part(passage.tensors[strip.tensor].rows, strip, passage.width,
              [&](std::size_t /*row*/, std::size_t part, std::size_t offset) {
                staged.at.push_back(half + offset);
                staged.counts.push_back(part);
              });
    strips.push_back(std::move(staged));
  }
  return strips;
}

Status StagedBackend::load(const Passage& passage, std::size_t number, Device::Event& loaded) {
  std::byte* const half = pinned_.half(number);
  Copies copies(*device_);
  for (const ChunkPart& strip : passage.plan_chunks.chunks[number]) {
    const Staging& tensor = passage.tensors[strip.tensor];
    each_part(tensor.rows, strip, passage.width,
              [&](std::size_t row, std::size_t part, std::size_t offset) {
                if (tensor.load[row] == nullptr) return;
                copies.add(half + offset, tensor.load[row] + strip.begin * passage.width,
                           part * passage.width);
              });
  }
  if (Status status = copies.finish(); !status) return status;
  Result<Device::Event> event = device_->recorded(device_->stream());
  if (!event) return event.status();
  loaded = event.take();
  return Status::ok();
}

Status StagedBackend::store(const Passage& passage, std::size_t number) {
  const std::byte* const half = pinned_.half(number);
  Copies copies(*device_);
  for (const ChunkPart& strip : passage.plan_chunks.chunks[number]) {
    const Staging& tensor = passage.tensors[strip.tensor];
    each_part(tensor.rows, strip, passage.width,
              [&](std::size_t row, std::size_t part, std::size_t offset) {
                if (tensor.store[row] == nullptr) return;
                copies.add(tensor.store[row] + strip.begin * passage.width, half + offset,
                           part * passage.width);
              });
  }
  return copies.finish();
}

Status StagedBackend::allreduce(const Group& group, const std::vector<Operand>& operands,
                                const Reduction& reduction) {
  last_ = "LOCAL";
  if (group.size() == 1) return scale_on(*device_, operands, reduction);
  const std::size_t width = size_of(reduction.dtype);
  const bool whole = reduction.op == ReduceOp::kAdasum;  // which needs whole tensors
  const std::size_t n = whole ? 1 : static_cast<std::size_t>(group.size());
  std::vector<Staging> tensors;
  for (const Operand& operand : operands) {
    Staging tensor(slices_of(operand.count, n));
    for (std::size_t slice = 0; slice < n; ++slice) {
      const std::size_t begin = slice_begin(operand.count, slice, n) * width;
      tensor.load[slice] = static_cast<const std::byte*>(operand.in) + begin;
      tensor.store[slice] = static_cast<std::byte*>(operand.out) + begin;
    }
    tensors.push_back(std::move(tensor));
  }
  return run(tensors, width, whole ? kUncut : chunk_bytes_,
             [&](const std::vector<StagedPart>& strips) {
               std::vector<Operand> in_place;
               in_place.reserve(strips.size());
               for (const StagedPart& strip : strips)
                 in_place.push_back({strip.at.front(), strip.at.front(), strip.count()});
               return cpu_.allreduce(group, in_place, reduction);
             });
}

Status StagedBackend::broadcast(const Group& group, const std::vector<Operand>& operands,
                                int group_root) {
  last_ = "LOCAL";
  const bool root = group.group_rank == group_root;
  std::vector<Staging> tensors;
  for (const Operand& operand : operands) {
    Staging tensor(RowLengths({operand.count}));
    if (root) {
      tensor.load[0] = static_cast<const std::byte*>(operand.in);
      Status status = copy_on(*device_, operand.out, operand.in, operand.count);
      if (!status) return status;
    } else {
      tensor.store[0] = static_cast<std::byte*>(operand.out);
    }
    tensors.push_back(std::move(tensor));
  }
  if (group.size() == 1) return Status::ok();
  return run(tensors, 1, chunk_bytes_, [&](const std::vector<StagedPart>& strips) {
    std::vector<Operand> in_place;
    in_place.reserve(strips.size());
    for (const StagedPart& strip : strips)
      in_place.push_back({strip.at[0], strip.at[0], strip.counts[0]});
    return cpu_.broadcast(group, in_place, group_root);
  });
}

Status StagedBackend::allgather(const Group& group, const std::vector<Gather>& tensors) {
  last_ = "LOCAL";
  const auto own = static_cast<std::size_t>(group.group_rank);
  std::vector<Staging> stagings;
  for (const Gather& tensor : tensors) {
    Status status = copy_on(*device_, tensor.out[own], tensor.in, tensor.bytes[own]);
    if (!status) return status;
    Staging staging(RowLengths(tensor.bytes));
    staging.store = tensor.out;
    staging.store[own] = nullptr;
    staging.load[own] = tensor.in;
    stagings.push_back(std::move(staging));
  }
  if (group.size() == 1) return Status::ok();
  return run(stagings, 1, chunk_bytes_, [&](const std::vector<StagedPart>& strips) {
    std::vector<Gather> gathers;
    gathers.reserve(strips.size());
    for (const StagedPart& strip : strips)
      gathers.push_back({strip.at[own], strip.at, strip.counts});
    return cpu_.allgather(group, gathers);
  });
}

// Rows: data sent to every member, then data received from every member; none for this rank. The
// longest row, and so the number of chunks, depends on all ranks.
Status StagedBackend::alltoall(const Group& group, const Exchange& exchange) {
  last_ = "LOCAL";
  const auto own = static_cast<std::size_t>(group.group_rank);
  const auto n = static_cast<std::size_t>(group.size());
  Status status = copy_on(*device_, exchange.out[own], exchange.in[own], exchange.in_bytes[own]);
  if (!status || n == 1) return status;
  std::vector<std::size_t> lengths = exchange.in_bytes;
  lengths.insert(lengths.end(), exchange.out_bytes.begin(), exchange.out_bytes.end());
  lengths[own] = lengths[n + own] = 0;
  Staging staging((RowLengths(std::move(lengths))));
  std::copy(exchange.in.begin(), exchange.in.end(), staging.load.begin());
  std::copy(exchange.out.begin(), exchange.out.end(),
            staging.store.begin() + static_cast<std::ptrdiff_t>(n));
  std::vector<std::size_t> longest(n);
  status =
      bootstrap_allgather(cpu_, group, &staging.rows.columns, longest.data(), sizeof(std::size_t));
  if (!status) return status;
  staging.rows.columns = *std::max_element(longest.begin(), longest.end());
  return run({staging}, 1, chunk_bytes_, [&](const std::vector<StagedPart>& strips) {
    const StagedPart& strip = strips.front();
    const auto middle = static_cast<std::ptrdiff_t>(n);
    Exchange part;
    part.in.assign(strip.at.begin(), strip.at.begin() + middle);
    part.in_bytes.assign(strip.counts.begin(), strip.counts.begin() + middle);
    part.out.assign(strip.at.begin() + middle, strip.at.end());
    part.out_bytes.assign(strip.counts.begin() + middle, strip.counts.end());
    return cpu_.alltoall(group, part);
  });
}

// Rows: every member's share, then the result of the own one. The split depends only on the
// longest share and the number of rows, which are the same on all ranks.
Status StagedBackend::reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                                    const Reduction& reduction) {
  last_ = "LOCAL";
  const auto own = static_cast<std::size_t>(group.group_rank);
  const auto n = static_cast<std::size_t>(group.size());
  const std::size_t width = size_of(reduction.dtype);
  std::vector<Staging> stagings;
  std::vector<Operand> alone;
  for (const Scatter& tensor : tensors) {
    std::vector<std::size_t> lengths;
    lengths.reserve(n + 1);
    for (std::size_t group_rank = 0; group_rank < n; ++group_rank)
      lengths.push_back(tensor.begins[group_rank + 1] - tensor.begins[group_rank]);
    alone.push_back({tensor.in, tensor.out, lengths[own]});
    lengths.push_back(lengths[own]);
    Staging staging((RowLengths(std::move(lengths))));
    for (std::size_t group_rank = 0; group_rank < n; ++group_rank)
      staging.load[group_rank] =
          static_cast<const std::byte*>(tensor.in) + tensor.begins[group_rank] * width;
    staging.store[n] = static_cast<std::byte*>(tensor.out);
    stagings.push_back(std::move(staging));
  }
  if (n == 1) return scale_on(*device_, alone, reduction);
  return run(stagings, width, chunk_bytes_, [&](const std::vector<StagedPart>& strips) {
    std::vector<Scatter> scatters;
    for (const StagedPart& strip : strips) {
      std::vector<std::size_t> begins{0};
      for (std::size_t group_rank = 0; group_rank < n; ++group_rank)
        begins.push_back(begins.back() + strip.counts[group_rank]);
      scatters.push_back({strip.at.front(), strip.at[n], std::move(begins)});
    }
    return cpu_.reducescatter(group, scatters, reduction);
  });
}

}  // namespace

Result<std::unique_ptr<DeviceBackend>> make_staged_backend(const BootstrapGroup& bootstrap,
                                                           std::size_t chunk_bytes) {
  return std::unique_ptr<DeviceBackend>(std::make_unique<StagedBackend>(bootstrap, chunk_bytes));
}

}  // namespace hvd::cuda
