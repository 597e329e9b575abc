#include "engine/persistent_request.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "collective/cpu_backend.h"
#include "engine/execution/eager.h"
#include "engine/fast_path_negotiation.h"

namespace hvd {
namespace {

// The fast path's memory holds no more, and for more a single rank should release the GIL.
constexpr std::int64_t kMostBytes = 65536;

bool may_persist(const Request& request) {
  if (request.kind != Kind::kAllreduce || request.name.empty() || request.on_device()) return false;
  if (request.op == ReduceOp::kAdasum || request.bytes() > kMostBytes) return false;
  const Dtype dtype = request.tensors.front().dtype;
  return std::all_of(request.tensors.begin(), request.tensors.end(),
                     [&](const TensorMeta& tensor) { return tensor.dtype == dtype; });
}

void record(const Parts& parts, const PersistentRequest& request, std::int64_t since_ns,
            std::int64_t begin_ns, std::int64_t end_ns) {
  Counters& counters = parts.counters;
  counters.bytes.fetch_add(request.bytes, std::memory_order_relaxed);
  counters.ops.fetch_add(1, std::memory_order_relaxed);
  counters.busy_ns.fetch_add(end_ns - begin_ns, std::memory_order_relaxed);
  counters.caller_runs.fetch_add(1, std::memory_order_relaxed);
  TraceCourse course("NEGOTIATE_ALLREDUCE", name_of(Kind::kAllreduce), begin_ns);
  course.step(parts.backends.host().last_algorithm(), end_ns);
  course.end(end_ns);
  TraceTensor tensor;
  tensor.name = request.request.name;
  tensor.since_ns = since_ns;
  tensor.bytes = request.bytes;
  tensor.together = 1;
  parts.trace.add(course, tensor);
}

}  // namespace

std::shared_ptr<PersistentRequest> make_persistent(const Request& request,
                                                   std::shared_ptr<const Group> all_ranks) {
  if (!may_persist(request)) return nullptr;
  auto made = std::make_shared<PersistentRequest>();
  made->request = request;
  made->text = FastPathNegotiation::text_with_data(request);
  made->reduction = reduction_of(request, *all_ranks);
  made->reduction.dtype = request.tensors.front().dtype;
  made->bytes = request.bytes();
  made->group = std::move(all_ranks);
  return made;
}

bool fits(const Parts& parts, PersistentRequest& request) {
  if (!request.fits) {
    request.fits = parts.mesh.topology().size == 1 ||
                   (!request.text.empty() && may_be_put_beside(parts, request.request));
  }
  return *request.fits;
}

Result<std::int64_t> perform(const Parts& parts, const PersistentRequest& request,
                             const std::vector<Operand>& operands, int half,
                             std::int64_t since_ns) {
  failpoint("engine.before_operation");
  const std::int64_t begin = now_ns();
  Status status = half < 0
                      ? parts.backends.host().allreduce(*request.group, operands, request.reduction)
                      : allreduce_beside(parts, *request.group, operands, request.reduction, half);
  if (!status) return status;
  failpoint("engine.after_operation");
  const std::int64_t end = now_ns();
  record(parts, request, since_ns, begin, end);
  return end;
}

}  // namespace hvd
