// Picks the function, and cuts what it is given into launches.
#include "cuda/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <string>

#include "cuda/kernels/functions.h"
#include "cuda/kernels/ring.cuh"
#include "tensor/dtype.h"
#include "tensor/kernels.h"

extern "C" const unsigned char hvd_cuda_fatbin[];

namespace hvd::cuda {
namespace {

static_assert(kMostInputs == kMostFolded);

// More blocks take their turns: a block has several tiles.
constexpr std::uint64_t kMostBlocks = 65536;
constexpr std::uint64_t kMostLanes = std::uint64_t{1} << 30U;  // of a piece; longer ones are cut

enum Function : unsigned {
#define HVD_CUDA_NAMED(name, format, what) k_##name,
  HVD_CUDA_FOLDS(HVD_CUDA_NAMED) HVD_CUDA_MOVES(HVD_CUDA_NAMED)
      HVD_CUDA_FLOAT_SUMS(HVD_CUDA_NAMED, shared) HVD_CUDA_FLOAT_SUMS(HVD_CUDA_NAMED, ring)
#undef HVD_CUDA_NAMED
          k_fill,
  kFunctions,
  kNone = kFunctions
};

struct Named {
  const char* name;
  unsigned lane_bytes;  // what it takes for one lane
};
constexpr std::array<Named, kFunctions> kNames{{
#define HVD_CUDA_NAMED(name, format, what) {"hvd_" #name, sizeof(format::Stored)},
    HVD_CUDA_FOLDS(HVD_CUDA_NAMED) HVD_CUDA_MOVES(HVD_CUDA_NAMED)
        HVD_CUDA_FLOAT_SUMS(HVD_CUDA_NAMED, shared) HVD_CUDA_FLOAT_SUMS(HVD_CUDA_NAMED, ring)
#undef HVD_CUDA_NAMED
            {"hvd_fill", 1},
}};

// The functions of a dtype.
struct Choice {
  std::array<Function, kDistinctOps> folds{kNone, kNone, kNone, kNone};  // by op_index
  Function scale = kNone;
  Function copy = kNone;
  bool scales_in_registers = false;  // the folds do; integers and bool are scaled afterwards
  Function mean = kNone;             // a sum that is folded exactly, and scaled in registers
};

constexpr Choice moved(Function copy) {
  Choice choice;
  choice.copy = copy;
  return choice;
}

constexpr std::array<Choice, kDtypeCount> kChoices{{
    {{k_add_u8, k_least_u8, k_most_u8, k_multiply_u8}, k_scale_u8, k_copy_1, false, k_mean_u8},
    {{k_add_u8, k_least_i8, k_most_i8, k_multiply_u8}, k_scale_i8, k_copy_1, false, k_mean_i8},
    {{k_add_u16, k_least_u16, k_most_u16, k_multiply_u16},
     k_scale_u16,
     k_copy_2,
     false,
     k_mean_u16},
    {{k_add_u16, k_least_i16, k_most_i16, k_multiply_u16},
     k_scale_i16,
     k_copy_2,
     false,
     k_mean_i16},
    {{k_add_u32, k_least_i32, k_most_i32, k_multiply_u32},
     k_scale_i32,
     k_copy_4,
     false,
     k_mean_i32},
    {{k_add_u64, k_least_i64, k_most_i64, k_multiply_u64},
     k_scale_i64,
     k_copy_8,
     false,
     k_mean_i64},
    {{k_add_f16, k_least_f16, k_most_f16, k_multiply_f16}, k_scale_f16, k_copy_2, true},
    {{k_add_f32, k_least_f32, k_most_f32, k_multiply_f32}, k_scale_f32, k_copy_4, true},
    {{k_add_f64, k_least_f64, k_most_f64, k_multiply_f64}, k_scale_f64, k_copy_8, true},
    {{k_or_bool, k_and_bool, k_or_bool, k_and_bool}, k_scale_bool, k_copy_1, false},
    {{k_add_bf16, k_least_bf16, k_most_bf16, k_multiply_bf16}, k_scale_bf16, k_copy_2, true},
    {{k_add_f32, kNone, kNone, k_multiply_c64}, k_scale_f32, k_copy_4, true},
    {{k_add_f64, kNone, kNone, k_multiply_c128}, k_scale_f64, k_copy_8, true},
    moved(k_copy_1),  // float8_e4m3fn
    moved(k_copy_1),  // float8_e5m2
    moved(k_copy_4),  // uint32
    moved(k_copy_8),  // uint64
    moved(k_copy_4),  // complex32
    moved(k_copy_1),  // the other float8
    moved(k_copy_1),
    moved(k_copy_1),
    moved(k_copy_1),
    moved(k_copy_1),
    moved(k_copy_1),
}};

const Choice& choice(Dtype dtype) { return kChoices[static_cast<std::size_t>(dtype)]; }

Status refused(const std::string& why) {
  return Status::make(Code::kInvalidArgument, why, "cuda/kernels");
}
Status not_scaled(Dtype dtype) {
  return refused(std::string(name_of(dtype)) + " is moved and never scaled: leave the factors 1");
}

const char* const kNotForIt =
    ": the core's kernels were compiled for other devices: install hvd-kernel with "
    "-Ccmake.define.HVD_CUDA_TARGETS=ALL (compute capability 7.5 and later), or set "
    "HVD_GPU=staged, with which torch copies the tensors and no kernels are needed";

bool is_of_the_device(CUresult error) {
  return error == CUDA_ERROR_NO_BINARY_FOR_GPU || error == CUDA_ERROR_INVALID_IMAGE ||
         error == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

class Loaded final : public Kernels {
 public:
  explicit Loaded(const Driver& driver) : driver_(driver) {}
  ~Loaded() override {
    if (module_ != nullptr) driver_.cuModuleUnload(module_);  // of a lost device it may fail
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  // Getting a function loads it. All of them now: loading one later could wait for the device,
  // which may be waiting for a peer.
  Status load() {
    const CUresult loaded = driver_.cuModuleLoadData(&module_, hvd_cuda_fatbin);
    if (Status status = driver_.check(loaded, "cuModuleLoadData"); !status) {
      if (is_of_the_device(loaded)) {
        status.code = Code::kInvalidArgument;
        status.message += kNotForIt;
      }
      return status;
    }
    for (unsigned function = 0; function < kFunctions; ++function) {
      const char* const name = kNames[function].name;
      const CUresult result = driver_.cuModuleGetFunction(&functions_[function], module_, name);
      if (result != CUDA_SUCCESS)
        return driver_.check(result, (std::string("cuModuleGetFunction ") + name).c_str());
    }
    return Status::ok();
  }

  Status prescale(CUstream stream, const Reduction& reduction,
                  const std::vector<Piece>& pieces) override {
    return move(stream, reduction.dtype, {reduction.scaling.before, 1.0}, {}, pieces);
  }
  Status scale(CUstream stream, const Reduction& reduction,
               const std::vector<Piece>& pieces) override {
    return move(stream, reduction.dtype, {reduction.scaling.before, 1.0}, after(reduction), pieces);
  }
  Status fold(CUstream stream, const Reduction& reduction, void* out,
              const std::vector<const void*>& inputs, std::size_t count) override;
  Status fold_shared(CUstream stream, const Reduction& reduction,
                     const std::vector<Stretch>& stretches,
                     const std::vector<std::ptrdiff_t>& offsets) override;
  Status fill_identity(CUstream stream, Dtype dtype, ReduceOp op, void* out,
                       std::size_t count) override;
  Status ring_allreduce(CUstream stream, const Reduction& reduction, const RingShape& shape,
                        const RingPart& part) override;

 private:
  static Ratio after(const Reduction& reduction) {
    return {reduction.scaling.after, reduction.scaling.divisor};
  }
  Status move(CUstream stream, Dtype dtype, const Ratio& first, const Ratio& second,
              const std::vector<Piece>& pieces);
  template <typename Call>
  Status flush(CUstream stream, Function function, Call& call);
  // call: one of those of functions.h, which is copied.
  Status launch(CUstream stream, Function function, const void* call, std::uint64_t tiles);

  const Driver& driver_;
  CUmodule module_ = nullptr;
  std::array<CUfunction, kFunctions> functions_{};
};

Status Loaded::launch(CUstream stream, Function function, const void* call, std::uint64_t tiles) {
  const auto blocks = static_cast<unsigned>(std::min(tiles, kMostBlocks));
  void* parameters[] = {const_cast<void*>(call)};  // NOLINT: the driver copies it
  const CUresult result = driver_.cuLaunchKernel(functions_[function], blocks, 1, 1, kThreads, 1, 1,
                                                 0, stream, parameters, nullptr);
  if (result == CUDA_SUCCESS) return Status::ok();
  return driver_.check(result, (std::string("cuLaunchKernel ") + kNames[function].name).c_str());
}

// Launches what has been collected.
template <typename Call>
Status Loaded::flush(CUstream stream, Function function, Call& call) {
  if (call.pieces == 0) return Status::ok();
  Status status = launch(stream, function, &call, call.tiles);
  call.pieces = call.tiles = 0;
  return status;
}

Status Loaded::move(CUstream stream, Dtype dtype, const Ratio& first, const Ratio& second,
                    const std::vector<Piece>& pieces) {
  const bool copies = is_one(first) && is_one(second);
  const Function function = copies ? choice(dtype).copy : choice(dtype).scale;
  if (function == kNone) return not_scaled(dtype);
  const unsigned lane_bytes = kNames[function].lane_bytes;
  MoveCall call{first, second, 0, 0, {}};
  for (const Piece& piece : pieces) {
    const std::uint64_t lanes = piece.count * size_of(dtype) / lane_bytes;
    if (copies && piece.in == piece.out) continue;
    for (std::uint64_t at = 0; at < lanes; at += kMostLanes) {
      const std::uint64_t n = std::min(kMostLanes, lanes - at);
      auto* const out = static_cast<std::byte*>(piece.out) + at * lane_bytes;
      call.piece[call.pieces++] = {static_cast<const std::byte*>(piece.in) + at * lane_bytes, out,
                                   static_cast<std::uint32_t>(n), call.tiles};
      call.tiles += static_cast<std::uint32_t>(tiles_of(out, n, lane_bytes));
      if (call.pieces < kMostMoved) continue;
      if (Status status = flush(stream, function, call); !status) return status;
    }
  }
  return flush(stream, function, call);
}

// Of the four functions for sums of floats, in the order of functions.h. kNone: another function.
Function for_float_sums(const Reduction& reduction, Function first) {
  if (reduction.op != ReduceOp::kSum && reduction.op != ReduceOp::kAverage) return kNone;
  constexpr std::array<Dtype, 4> kOrder{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32,
                                        Dtype::kFloat64};
  const auto* const found = std::find(kOrder.begin(), kOrder.end(), reduction.dtype);
  if (found == kOrder.end()) return kNone;
  return static_cast<Function>(first + static_cast<unsigned>(found - kOrder.begin()));
}

// Everything is equally far from a 16-byte boundary, by whole lanes.
bool are_alike(const FoldCall& call, unsigned lane_bytes) {
  const unsigned beyond = beyond_boundary(call.out);
  bool alike = beyond % lane_bytes == 0;
  for (std::uint32_t k = 0; k < call.inputs; ++k)
    alike = alike && beyond_boundary(call.input[k]) == beyond;
  return alike;
}

Status Loaded::fold(CUstream stream, const Reduction& reduction, void* out,
                    const std::vector<const void*>& inputs, std::size_t count) {
  const Choice& by_dtype = choice(reduction.dtype);
  const bool exact = folds_exactly(reduction);
  const Function function =
      exact ? by_dtype.mean : by_dtype.folds[static_cast<std::size_t>(op_index(reduction.op))];
  const bool in_registers = exact || by_dtype.scales_in_registers;
  if (function == kNone)
    return refused(std::string(name_of(reduction.dtype)) + " knows no " + name_of(reduction.op));
  if (inputs.empty() || inputs.size() > kMostFolded)
    return refused("a fold has 1 to " + std::to_string(kMostFolded) + " inputs, not " +
                   std::to_string(inputs.size()));
  if (count == 0) return Status::ok();
  const unsigned lane_bytes = kNames[function].lane_bytes;
  FoldCall call{};
  call.out = out;
  call.lanes = count * size_of(reduction.dtype) / lane_bytes;
  call.inputs = static_cast<std::uint32_t>(inputs.size());
  std::copy(inputs.begin(), inputs.end(), call.input);
  call.alike = are_alike(call, lane_bytes) ? 1 : 0;
  if (in_registers) call.after = after(reduction);
  Status status = launch(stream, function, &call, tiles_of(out, call.lanes, lane_bytes));
  if (!status || in_registers || is_one(after(reduction))) return status;
  return move(stream, reduction.dtype, after(reduction), {}, {{out, out, count}});
}

Status Loaded::fold_shared(CUstream stream, const Reduction& reduction,
                           const std::vector<Stretch>& stretches,
                           const std::vector<std::ptrdiff_t>& offsets) {
  const Function function = for_float_sums(reduction, k_shared_f16);
  if (function == kNone || offsets.empty() || offsets.size() > kMostFolded)
    return refused("shared device memory is for sums of floats, of " + std::to_string(kMostFolded) +
                   " ranks at most");
  const unsigned lane_bytes = kNames[function].lane_bytes;
  SharedCall call{};
  call.before = {reduction.scaling.before, 1.0};
  call.after = after(reduction);
  call.members = static_cast<std::uint32_t>(offsets.size());
  std::copy(offsets.begin(), offsets.end(), call.offset);
  call.alike =
      std::all_of(offsets.begin(), offsets.end(),
                  [](std::ptrdiff_t offset) { return offset % std::ptrdiff_t{kVectorBytes} == 0; })
          ? 1
          : 0;
  for (const Stretch& stretch : stretches) {
    for (std::uint64_t at = 0; at < stretch.count; at += kMostLanes) {
      const std::uint64_t n = std::min<std::uint64_t>(kMostLanes, stretch.count - at);
      auto* const own = static_cast<std::byte*>(stretch.own) + at * lane_bytes;
      call.piece[call.pieces++] = {own, static_cast<std::uint32_t>(n), call.tiles};
      call.tiles += static_cast<std::uint32_t>(tiles_of(own, n, lane_bytes));
      if (call.pieces < kMostShared) continue;
      if (Status status = flush(stream, function, call); !status) return status;
    }
  }
  return flush(stream, function, call);
}

Status Loaded::fill_identity(CUstream stream, Dtype dtype, ReduceOp op, void* out,
                             std::size_t count) {
  if (count == 0) return Status::ok();
  FillCall call{out, count * size_of(dtype), {}};
  hvd::fill_identity(dtype, op, call.pattern, kVectorBytes / size_of(dtype));
  // As it lies in memory between two boundaries.
  std::rotate(call.pattern, call.pattern + (kVectorBytes - beyond_boundary(out)) % kVectorBytes,
              call.pattern + kVectorBytes);
  return launch(stream, k_fill, &call, tiles_of(out, call.bytes, 1));
}

Status Loaded::ring_allreduce(CUstream stream, const Reduction& reduction, const RingShape& shape,
                              const RingPart& part) {
  const Function function = for_float_sums(reduction, k_ring_f16);
  if (function == kNone)
    return refused(std::string(name_of(reduction.op)) + " of " + name_of(reduction.dtype) +
                   " does not go by the persistent ring");
  const RingCall call{part.in,
                      part.out,
                      part.count,
                      {reduction.scaling.before, 1.0},
                      after(reduction),
                      static_cast<std::byte*>(part.own),
                      static_cast<std::byte*>(part.left),
                      static_cast<std::byte*>(part.right),
                      static_cast<std::uint32_t>(part.group_rank),
                      static_cast<std::uint32_t>(part.size),
                      shape.slots,
                      static_cast<std::uint32_t>(shape.slot_bytes)};
  return launch(stream, function, &call, shape.blocks);
}

}  // namespace

bool Kernels::sums_floats(const Reduction& reduction) {
  return for_float_sums(reduction, k_shared_f16) != kNone;
}

std::size_t RingShape::bytes() const {
  return ring_slots_at(blocks) + std::size_t{blocks} * slots * slot_bytes;
}

Result<std::unique_ptr<Kernels>> Kernels::load(const Driver& driver) {
  auto kernels = std::make_unique<Loaded>(driver);
  if (Status status = kernels->load(); !status) return status;
  return std::unique_ptr<Kernels>(std::move(kernels));
}

}  // namespace hvd::cuda
