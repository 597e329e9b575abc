#include "cuda/nccl/nccl.h"

#include <map>
#include <memory>

#include "base/library.h"
#include "base/mutex.h"

namespace hvd::cuda {

namespace {

const char* const kRoom = "cuda/nccl";
const char* const kLibrary = "libnccl.so.2";

Status refuse(const std::string& why) {
  return Status::make(Code::kUnavailable,
                      "NCCL cannot be used: " + why +
                          "; torch built for CUDA brings it (or pip install nvidia-nccl-cu13), and "
                          "HOROVOD_GPU_OPERATIONS=ring or staged does without",
                      kRoom);
}

Library open(const std::string& file) {
  if (!file.empty()) return Library::open(file);
  if (Library there = Library::loaded(kLibrary)) return there;
  // .../site-packages/hvd_kernel/ -> .../site-packages/nvidia/nccl/lib/libnccl.so.2, beside torch
  const std::string here = own_folder();
  const std::string wheels = here + "../nvidia/nccl/lib/" + kLibrary;
  Library wheel = here.empty() ? Library() : Library::open(wheels);
  return wheel ? wheel : Library::open(kLibrary);
}

// The first missing function; "": none.
std::string missing_function(const Library& library, Nccl& nccl) {
#define HVD_NCCL_FIND(name, result, arguments) \
  if (!library.find("nccl" #name, nccl.name)) return "nccl" #name;
  HVD_NCCL_FUNCTIONS(HVD_NCCL_FIND)
#undef HVD_NCCL_FIND
  return "";
}

Result<std::unique_ptr<const Nccl>> load(const std::string& file) {
  const Library library = open(file);
  if (!library) return refuse(library.why_not());
  auto nccl = std::make_unique<Nccl>();
  const std::string missing = missing_function(library, *nccl);
  if (!missing.empty())
    return refuse((file.empty() ? kLibrary : file) + " has no " + missing + ", it is older than " +
                  nccl_version_text(kOldestNccl));
  nccl->file = file_of(reinterpret_cast<const void*>(nccl->GetVersion));
  if (Status status = check(*nccl, nccl->GetVersion(&nccl->version), "ncclGetVersion"); !status)
    return status;
  if (nccl->version < kOldestNccl)
    return refuse(nccl->file + " is version " + nccl_version_text(nccl->version) + ", older than " +
                  nccl_version_text(kOldestNccl));
  return std::unique_ptr<const Nccl>(std::move(nccl));
}

Code code_of(NcclResult result) {
  const bool resource = result == NcclResult::kSystemError || result == NcclResult::kRemoteError;
  return resource ? Code::kUnavailable : Code::kInternal;
}

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status check(const Nccl& nccl, NcclResult result, const std::string& what) {
  if (result == NcclResult::kSuccess) return Status::ok();
  const char* const name = nccl.GetErrorString(result);
  const char* const more = nccl.GetLastError(nullptr);
  std::string message = what + ": " + (name == nullptr ? "error of NCCL" : name);
  if (more != nullptr && *more != '\0') message += std::string(" (") + more + ")";
  return Status::make(code_of(result), message, kRoom);
}

Result<const Nccl*> load_nccl(const std::string& file) {
  static Mutex mutex;
  // Leaked: our threads may call it while the process exits.
  using Libraries = std::map<std::string, std::unique_ptr<const Nccl>>;
  static auto* const loaded = new Libraries;  // NOLINT(cppcoreguidelines-owning-memory)
  const MutexLock lock(mutex);
  const auto known = loaded->find(file);
  if (known != loaded->end()) return known->second.get();
  Result<std::unique_ptr<const Nccl>> nccl = load(file);
  if (!nccl) return nccl.status();
  return loaded->emplace(file, nccl.take()).first->second.get();
}

namespace {

// The divisor of an average is applied after NCCL's sum.
std::optional<NcclOp> op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return NcclOp::kSum;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    case ReduceOp::kMax:
      return NcclOp::kMax;
    case ReduceOp::kProduct:
      return NcclOp::kProduct;
    case ReduceOp::kAdasum:
      break;
  }
  return std::nullopt;
}

std::optional<NcclType> type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
      return NcclType::kUint8;
    case Dtype::kInt8:
      return NcclType::kInt8;
    case Dtype::kInt32:
      return NcclType::kInt32;
    case Dtype::kInt64:
      return NcclType::kInt64;
    case Dtype::kFloat16:
      return NcclType::kFloat16;
    case Dtype::kFloat32:
      return NcclType::kFloat32;
    case Dtype::kFloat64:
      return NcclType::kFloat64;
    case Dtype::kBfloat16:
      return NcclType::kBfloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<NcclKind> nccl_kind(Dtype dtype, ReduceOp op) {
  if (!can_reduce(dtype, op)) return std::nullopt;
  const std::optional<NcclOp> nccl_op = op_of(op);
  if (!nccl_op) return std::nullopt;
  if (dtype == Dtype::kBool) {
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
    return NcclKind{NcclType::kUint8, any ? NcclOp::kMax : NcclOp::kMin, 1};
  }
  if (dtype == Dtype::kComplex64 || dtype == Dtype::kComplex128) {
    if (*nccl_op != NcclOp::kSum) return std::nullopt;
    const bool wide = dtype == Dtype::kComplex128;
    return NcclKind{wide ? NcclType::kFloat64 : NcclType::kFloat32, NcclOp::kSum, 2};
  }
  const std::optional<NcclType> type = type_of(dtype);
  if (!type) return std::nullopt;
  return NcclKind{*type, *nccl_op, 1};
}

}  // namespace hvd::cuda
