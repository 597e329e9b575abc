// Serialising proxy between the engine and the backend of the current operation: one
// call at a time, and none after the proxy is closed.
#pragma once

#include <vector>

#include "base/mutex.h"
#include "collective/backend/backend.h"

namespace hvd::cuda {

class SerialisingProxy final : public Backend {
 public:
  // Progress-lock owner: the target of the following calls.
  void open_to(Backend* backend) { backend_ = backend; }
  // Any thread. After it returns, no call is active, and later ones are refused.
  void close();
  // Held during a call.
  Mutex& mutex() RETURN_CAPABILITY(mutex_) { return mutex_; }

  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override;
  Status allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                          const std::vector<std::ptrdiff_t>& offsets,
                          const Reduction& reduction) override;
  Status broadcast(const Group& group, const std::vector<Operand>& operands,
                   int group_root) override;
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override;
  Status alltoall(const Group& group, const Exchange& exchange) override;
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override;
  const char* last_algorithm() const override { return backend_->last_algorithm(); }

 private:
  template <typename Call>
  Status pass(const Call& call);

  Mutex mutex_;
  bool closed_ GUARDED_BY(mutex_) = false;
  Backend* backend_ = nullptr;  // used by the progress-lock owner
};

}  // namespace hvd::cuda
