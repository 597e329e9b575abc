#include "cuda/ring/ring.h"

#include <algorithm>
#include <utility>

namespace hvd::cuda {
namespace {

constexpr std::size_t kMostWords = 128;  // per call; the driver accepts less than 256

CUstreamBatchMemOpParams written(CUdeviceptr word, cuuint32_t value) {
  CUstreamBatchMemOpParams params{};
  params.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  params.writeValue.address = word;
  params.writeValue.value = value;
  params.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // behind a fence
  return params;
}

CUstreamBatchMemOpParams awaited(CUdeviceptr word) {
  CUstreamBatchMemOpParams params{};
  params.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  params.waitValue.address = word;
  params.waitValue.value = 1;
  params.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return params;
}

}  // namespace

Ring::Ring(std::shared_ptr<Device> device, const Abort& abort, const Group& group,
           const ArenaShape& shape, std::vector<std::byte*> bases)
    : device_(std::move(device)),
      abort_(abort),
      group_rank_(static_cast<std::size_t>(group.group_rank)),
      shape_(shape),
      bases_(std::move(bases)) {}

std::byte* Ring::half(std::size_t group_rank, std::size_t round) const {
  return bases_[group_rank] + shape_.half(half_of(round));
}

CUdeviceptr Ring::word(std::size_t of, Phase phase, std::size_t half, std::size_t from) const {
  return reinterpret_cast<CUdeviceptr>(bases_[of] + shape_.word(phase, half, from));
}

void Ring::signal(Phase phase, std::size_t round, std::size_t to) {
  due_.push_back(written(word(to, phase, half_of(round), group_rank_), 1));
}

void Ring::wait(Phase phase, std::size_t round, std::size_t from) {
  see(phase, round, from);
  due_.push_back(written(word(group_rank_, phase, half_of(round), from), 0));
}

void Ring::see(Phase phase, std::size_t round, std::size_t from) {
  due_.push_back(awaited(word(group_rank_, phase, half_of(round), from)));
}

void Ring::signal_all(Phase phase, std::size_t round) {
  for (std::size_t step = 1; step < size(); ++step) signal(phase, round, group_rank_at(step));
}

void Ring::wait_all(Phase phase, std::size_t round) {
  for (std::size_t step = 1; step < size(); ++step) wait(phase, round, group_rank_at(step));
}

Status Ring::flush() {
  if (due_.empty()) return Status::ok();
  if (Status status = device_->in_flight_limiter().step(*device_, abort_); !status) return status;
  return enqueue(device_->stream(), due_);
}

// Enqueue the signals and waits before the next kernel.
Status Ring::step() {
  if (Status status = flush(); !status) return status;
  return device_->in_flight_limiter().step(*device_, abort_);
}

Status Ring::enqueue(CUstream stream, std::vector<CUstreamBatchMemOpParams>& words) {
  const Driver& driver = device_->driver();
  Status status = Status::ok();
  for (std::size_t at = 0; at < words.size() && status; at += kMostWords) {
    const std::size_t count = std::min(kMostWords, words.size() - at);
    status = driver.check(
        driver.cuStreamBatchMemOp(stream, static_cast<unsigned>(count), words.data() + at, 0),
        "cuStreamBatchMemOp");
  }
  words.clear();
  return status;
}

Status Ring::prescale(const Reduction& reduction, const std::vector<Piece>& pieces) {
  if (pieces.empty()) return Status::ok();
  if (Status status = step(); !status) return status;
  return device_->kernels().prescale(device_->stream(), reduction, pieces);
}

Status Ring::copy(Dtype dtype, const std::vector<Piece>& pieces) {
  Reduction plain;
  plain.dtype = dtype;
  return prescale(plain, pieces);
}

Status Ring::fold(const Reduction& reduction, void* out, const std::vector<const void*>& inputs,
                  std::size_t count) {
  if (count == 0) return Status::ok();
  if (Status status = step(); !status) return status;
  return device_->kernels().fold(device_->stream(), reduction, out, inputs, count);
}

Status Ring::fold_shared(const Reduction& reduction, const std::vector<Stretch>& stretches,
                         const std::vector<std::ptrdiff_t>& offsets) {
  if (stretches.empty()) return Status::ok();
  if (Status status = step(); !status) return status;
  return device_->kernels().fold_shared(device_->stream(), reduction, stretches, offsets);
}

Status Ring::abort_waits(CUstream aside) {
  // The last batch is not done yet.
  if (device_->driver().cuStreamQuery(aside) == CUDA_ERROR_NOT_READY) return Status::ok();
  std::vector<CUstreamBatchMemOpParams> words;
  for (const Phase phase : {Phase::kPacked, Phase::kFolded, Phase::kFreed}) {
    for (std::size_t half = 0; half < kHalves; ++half) {
      for (std::size_t step = 1; step < size(); ++step)
        words.push_back(written(word(group_rank_, phase, half, group_rank_at(step)), 1));
    }
  }
  return enqueue(aside, words);
}

Status Ring::finalize() {
  for (std::size_t half = 0; half < kHalves; ++half) {
    for (std::size_t step = 1; step < size(); ++step) see(Phase::kFreed, half, group_rank_at(step));
  }
  return flush();
}

}  // namespace hvd::cuda
