#include "tf/core.h"

#include <array>
#include <atomic>

namespace hvd::tf {
namespace {

std::atomic<const hvd_core*> table{nullptr};

struct Type {
  int number;  // TensorFlow's
  DLDataType type;
};
constexpr std::array<Type, 13> kTypes{{{1, {kDLFloat, 32, 1}},
                                       {2, {kDLFloat, 64, 1}},
                                       {3, {kDLInt, 32, 1}},
                                       {4, {kDLUInt, 8, 1}},
                                       {5, {kDLInt, 16, 1}},
                                       {6, {kDLInt, 8, 1}},
                                       {8, {kDLComplex, 64, 1}},
                                       {9, {kDLInt, 64, 1}},
                                       {10, {kDLBool, 8, 1}},
                                       {14, {kDLBfloat, 16, 1}},
                                       {17, {kDLUInt, 16, 1}},
                                       {18, {kDLComplex, 128, 1}},
                                       {19, {kDLFloat, 16, 1}}}};

struct Meaning {
  Code code;
  const char* error;  // of hvd_kernel.errors; "": the caller's own, Python's ValueError
};
// By the core's code.
constexpr std::array<Meaning, 11> kMeanings{{{Code::kOk, ""},
                                             {Code::kInvalidArgument, ""},
                                             {Code::kFailedPrecondition, "Mismatch"},
                                             {Code::kAborted, "RankFailed"},
                                             {Code::kAborted, "RankDied"},
                                             {Code::kAborted, "HorovodInternalError"},
                                             {Code::kUnknown, "HvdTimeout"},
                                             {Code::kUnknown, "HorovodInternalError"},
                                             {Code::kUnknown, "HorovodInternalError"},
                                             {Code::kUnknown, "RankStalled"},
                                             {Code::kUnknown, "OutOfMemory"}}};

const Meaning& meaning(std::int32_t code) {
  const bool known = code >= 0 && static_cast<std::size_t>(code) < kMeanings.size();
  return kMeanings.at(
      static_cast<std::size_t>(known ? code : static_cast<std::int32_t>(HVD_INTERNAL)));
}

Status tagged(Code code, const std::string& text, const std::string& error, std::int32_t rank) {
  const std::string whose = rank < 0 ? "" : ", rank " + std::to_string(rank);
  return {code, text + " [hvd_kernel.errors." + error + whose + "]"};
}

}  // namespace

void set_core(const hvd_core* given) { table = given; }
const hvd_core* core() { return table; }

Engine::Engine() : engine_(core() == nullptr ? nullptr : core()->current()) {}
Engine::~Engine() {
  if (engine_ != nullptr) core()->release(engine_);
}

bool dlpack_type(int tensorflow_type, DLDataType* type) {
  for (const Type& row : kTypes) {
    if (row.number != tensorflow_type) continue;
    *type = row.type;
    return true;
  }
  return false;
}

std::size_t bytes_of(const DLDataType& type) { return type.bits / 8U; }

Status failure(std::int32_t code, const std::string& text, std::int32_t rank) {
  const Meaning& means = meaning(code);
  if (*means.error == '\0') return {means.code, text};
  return tagged(means.code, text, means.error, rank);
}

Status not_initialized() {
  return tagged(Code::kFailedPrecondition, "Horovod has not been initialized; use hvd.init().",
                "HorovodInternalError", -1);
}

DLTensor view(void* data, const DLDataType& type, std::vector<std::int64_t>* shape) {
  return {data, {kDLCPU, 0}, static_cast<std::int32_t>(shape->size()), type, shape->data(), nullptr,
          0};
}

}  // namespace hvd::tf
