// NCCL, found at run time like the driver: nothing links it, and its header is not needed to build.
// The declarations are those of its public C interface (nccl.h), which is only ever extended.
//
// Terms.
//   communicator   NCCL's group: one rank per device, with a number (here: the group rank)
//   id             created by group rank 0, needed by all members to build a communicator
#pragma once

#include <cuda.h>

#include <climits>
#include <cstddef>
#include <optional>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace hvd::cuda {

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclOp : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3 };

enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

using NcclHandle = struct ncclComm*;

struct NcclId {
  char bytes[128] = {};
};

constexpr int kNcclUnset = INT_MIN;  // NCCL decides

// The beginning of ncclConfig_t as in NCCL 2.17; later versions read the fields given by `size` and
// `version` and use defaults for the rest.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeefU;
  unsigned version = 21700;
  int blocking = 0;
  int cga_cluster_size = kNcclUnset;
  int min_ctas = kNcclUnset;
  int max_ctas = kNcclUnset;
  const char* net_name = nullptr;
};
static_assert(sizeof(NcclConfig) == 40, "as NCCL lays it out");

// Name (ncclX is called as nccl.X), result, arguments.
#define HVD_NCCL_FUNCTIONS(X)                                                                     \
  X(GetVersion, NcclResult, (int* version))                                                       \
  X(GetUniqueId, NcclResult, (NcclId * id))                                                       \
  X(GetErrorString, const char*, (NcclResult result))                                             \
  X(GetLastError, const char*, (NcclHandle comm))                                                 \
  X(CommInitRankConfig, NcclResult,                                                               \
    (NcclHandle * comm, int ranks, NcclId id, int rank, NcclConfig* config))                      \
  X(CommFinalize, NcclResult, (NcclHandle comm))                                                  \
  X(CommDestroy, NcclResult, (NcclHandle comm))                                                   \
  X(CommGetAsyncError, NcclResult, (NcclHandle comm, NcclResult * error))                         \
  X(CommAbort, NcclResult, (NcclHandle comm))                                                     \
  X(GroupStart, NcclResult, ())                                                                   \
  X(GroupEnd, NcclResult, ())                                                                     \
  X(AllReduce, NcclResult,                                                                        \
    (const void* in, void* out, std::size_t count, NcclType type, NcclOp op, NcclHandle comm,     \
     CUstream stream))                                                                            \
  X(Reduce, NcclResult,                                                                           \
    (const void* in, void* out, std::size_t count, NcclType type, NcclOp op, int root,            \
     NcclHandle comm, CUstream stream))                                                           \
  X(ReduceScatter, NcclResult,                                                                    \
    (const void* in, void* out, std::size_t out_count, NcclType type, NcclOp op, NcclHandle comm, \
     CUstream stream))                                                                            \
  X(Broadcast, NcclResult,                                                                        \
    (const void* in, void* out, std::size_t count, NcclType type, int root, NcclHandle comm,      \
     CUstream stream))                                                                            \
  X(AllGather, NcclResult,                                                                        \
    (const void* in, void* out, std::size_t in_count, NcclType type, NcclHandle comm,             \
     CUstream stream))                                                                            \
  X(Send, NcclResult,                                                                             \
    (const void* in, std::size_t count, NcclType type, int peer, NcclHandle comm,                 \
     CUstream stream))                                                                            \
  X(Recv, NcclResult,                                                                             \
    (void* out, std::size_t count, NcclType type, int peer, NcclHandle comm, CUstream stream))

struct Nccl {
#define HVD_NCCL_MEMBER(name, result, arguments) \
  result(*name) arguments = nullptr;  // NOLINT(bugprone-macro-parentheses): a declaration
  HVD_NCCL_FUNCTIONS(HVD_NCCL_MEMBER)
#undef HVD_NCCL_MEMBER
  std::string file;  // its path
  int version = 0;   // 22605 is 2.26.5
};

// In older versions an abort from a thread other than the waiting one may hang.
constexpr int kOldestNccl = 21901;

// "2.26.5"
std::string nccl_version_text(int version);

// Ok, or a status with NCCL's description. kInProgress is an error here.
Status check(const Nccl& nccl, NcclResult result, const std::string& what);

// The file ("": the one that the process has loaded already, as torch does; else that of the
// nvidia-nccl wheel beside this package; else the loader's). Never unloaded; the same file returns
// the same table. kUnavailable: missing or too old; the message names the cause and the remedy.
Result<const Nccl*> load_nccl(const std::string& file);

// NCCL's types and reductions for ours.

struct NcclKind {
  NcclType type;
  NcclOp op;
  std::size_t parts;  // NCCL's elements in one of ours
};

// nullopt: not supported. bool is bytes of 0 and 1, for which "or" is the maximum and "and" the
// minimum; complex numbers are added component by component.
std::optional<NcclKind> nccl_kind(Dtype dtype, ReduceOp op);

}  // namespace hvd::cuda
