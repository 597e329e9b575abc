#include "tf/core.h"

#include <array>

namespace hvd::tf {
namespace {

constexpr std::array<plugin::Type, 15> kTypes{{{1, {kDLFloat, 32, 1}},
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
                                               {19, {kDLFloat, 16, 1}},
                                               {22, {kDLUInt, 32, 1}},
                                               {23, {kDLUInt, 64, 1}}}};

// The code of a failure, by the core's.
constexpr std::array<Code, 11> kCodes{
    Code::kOk,      Code::kInvalidArgument, Code::kFailedPrecondition,
    Code::kAborted, Code::kAborted,         Code::kAborted,
    Code::kUnknown, Code::kUnknown,         Code::kUnknown,
    Code::kUnknown, Code::kUnknown};

Code meaning(std::int32_t code) {
  const bool known = code >= 0 && static_cast<std::size_t>(code) < kCodes.size();
  return known ? kCodes.at(static_cast<std::size_t>(code)) : Code::kUnknown;
}

Status tagged(Code code, const std::string& text, const std::string& error, std::int32_t rank) {
  const std::string whose = rank < 0 ? "" : ", rank " + std::to_string(rank);
  return {code, text + " [hvd_kernel.errors." + error + whose + "]"};
}

}  // namespace

bool dlpack_type(int tensorflow_type, DLDataType* type) {
  return plugin::dlpack_type(kTypes, tensorflow_type, type);
}

std::size_t bytes_of(const DLDataType& type) { return type.bits / 8U; }

Status failure(std::int32_t code, const std::string& text, std::int32_t rank) {
  const char* const error = plugin::error_class(code);
  if (*error == '\0') return {meaning(code), text};
  return tagged(meaning(code), text, error, rank);
}

Status not_initialized() {
  return tagged(Code::kFailedPrecondition, plugin::kNotInitialized, "HorovodInternalError", -1);
}

}  // namespace hvd::tf
