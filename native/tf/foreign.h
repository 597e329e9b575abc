// TensorFlow's C API, declared by hand and found at run time: no header of TensorFlow, one binary
// for all versions.
//
// The types are opaque; the functions are those of
// tensorflow/c/{c_api,kernels,ops,tf_tensor,tf_status}.h without their "TF_". `tf()->GetInput(...)`
// calls TF_GetInput.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_AsyncOpKernelDoneCallback;
struct TF_StringView {
  const char* data;
  std::size_t len;
};

namespace hvd::tf {

using Deallocator = void (*)(void* data, std::size_t bytes, void* argument);
using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Create = void* (*)(TF_OpKernelConstruction*);
using Compute = void (*)(void* kernel, TF_OpKernelContext*);
using ComputeAsync = void (*)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using Delete = void (*)(void* kernel);

// X(return type, name without TF_, arguments)
#define HVD_TF_FUNCTIONS(X)                                                                       \
  X(TF_Status*, NewStatus, ())                                                                    \
  X(void, DeleteStatus, (TF_Status*))                                                             \
  X(void, SetStatus, (TF_Status*, int, const char*))                                              \
  X(int, GetCode, (const TF_Status*))                                                             \
  X(const char*, Message, (const TF_Status*))                                                     \
  X(TF_Tensor*, NewTensor,                                                                        \
    (int, const std::int64_t*, int, void*, std::size_t, Deallocator, void*))                      \
  X(void, DeleteTensor, (TF_Tensor*))                                                             \
  X(void*, TensorData, (const TF_Tensor*))                                                        \
  X(int, NumDims, (const TF_Tensor*))                                                             \
  X(std::int64_t, Dim, (const TF_Tensor*, int))                                                   \
  X(int, TensorType, (const TF_Tensor*))                                                          \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                               \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                     \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                    \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                   \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                      \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, ShapeFunction)) \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                            \
  X(std::int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                    \
  X(TF_ShapeHandle*, NewShapeHandle, ())                                                          \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                   \
  X(void, ShapeInferenceContextGetInput,                                                          \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                \
  X(void, ShapeInferenceContextSetOutput,                                                         \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                    \
  X(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize,                                         \
    (TF_ShapeInferenceContext*, std::size_t))                                                     \
  X(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))            \
  X(std::int64_t, ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))        \
  X(void, ShapeInferenceContextSubshape,                                                          \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t, std::int64_t, TF_ShapeHandle*,     \
     TF_Status*))                                                                                 \
  X(void, ShapeInferenceContextConcatenateShapes,                                                 \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))   \
  X(TF_KernelBuilder*, NewKernelBuilder, (const char*, const char*, Create, Compute, Delete))     \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                     \
    (const char*, const char*, Create, ComputeAsync, Delete))                                     \
  X(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                          \
  X(void, KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                             \
  X(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                    \
  X(int, NumInputs, (TF_OpKernelContext*))                                                        \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                          \
  X(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                    \
  X(TF_Tensor*, AllocateOutput,                                                                   \
    (TF_OpKernelContext*, int, int, const std::int64_t*, int, std::size_t, TF_Status*))           \
  X(TF_Tensor*, ForwardInputOrAllocateOutput,                                                     \
    (TF_OpKernelContext*, const int*, int, int, const std::int64_t*, int, int*, TF_Status*))      \
  X(std::int64_t, GetIterId, (TF_OpKernelContext*))                                               \
  X(std::int64_t, StepId, (TF_OpKernelContext*))                                                  \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                             \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                   \
  X(void, OpKernelConstruction_GetAttrInt64,                                                      \
    (TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*))                           \
  X(void, OpKernelConstruction_GetAttrBool,                                                       \
    (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))                          \
  X(TF_StringView, OpKernelConstruction_GetName, (TF_OpKernelConstruction*))

struct Foreign {
#define HVD_TF_MEMBER(type, name, arguments) \
  type(*name) arguments = nullptr;  // NOLINT(bugprone-macro-parentheses): a declaration
  HVD_TF_FUNCTIONS(HVD_TF_MEMBER)
#undef HVD_TF_MEMBER
};

// Finds the functions in the TensorFlow that this process has loaded; "" or why they cannot be
// used. Once, before anything else here.
std::string find_tensorflow();
const Foreign* tf();

struct Free {
  void operator()(TF_Status* status) const { tf()->DeleteStatus(status); }
  void operator()(TF_Tensor* tensor) const { tf()->DeleteTensor(tensor); }
  void operator()(TF_ShapeHandle* shape) const { tf()->DeleteShapeHandle(shape); }
};
using Tensor = std::unique_ptr<TF_Tensor, Free>;
using Shape = std::unique_ptr<TF_ShapeHandle, Free>;

// The codes of absl::Status that our kernels return.
enum class Code {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10
};

// An error for TensorFlow.
class Status {
 public:
  Status() : status_(tf()->NewStatus()) {}
  Status(Code code, const std::string& text) : Status() {
    tf()->SetStatus(status_.get(), static_cast<int>(code), text.c_str());
  }
  bool is_ok() const { return tf()->GetCode(status_.get()) == 0; }
  explicit operator bool() const { return is_ok(); }
  const char* text() const { return tf()->Message(status_.get()); }
  TF_Status* get() const { return status_.get(); }

 private:
  std::unique_ptr<TF_Status, Free> status_;
};

}  // namespace hvd::tf
