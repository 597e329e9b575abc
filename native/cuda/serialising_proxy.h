// Serialising proxy between the engine and the backend of the current operation: one
// call at a time, and none after the proxy is closed.
#pragma once

#include <vector>

#include "base/mutex.h"
#include "collective/backend/backend.h"

namespace hvd::cuda {

class SerialisingProxy final : public Backend {
 public:
  // Progress-lock owner: where the following calls go.
  void open_to(Backend* backend) { backend_ = backend; }
  // Any thread. When it returns, no call is inside, and none gets in any more.
  void close();
  // Held while somebody is inside.
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
  Backend* backend_ = nullptr;  // the progress-lock owner's
};

}  // namespace hvd::cuda
