// The collectives as TensorFlow's kernels: one object per node (in eager mode per type and
// attributes).
//
// A kernel reads its tensors from TensorFlow (`gather` into a Call), enqueues them in the core, and
// returns the results. No thread waits: TensorFlow is called back when the operation has ended.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "c_api/hvd_core.h"
#include "tf/call.h"
#include "tf/foreign.h"

namespace hvd::tf {

// Attributes of a TensorFlow node, with defaults for those that the op does not have, and the
// operation's name on the wire.
struct Attributes {
  explicit Attributes(TF_OpKernelConstruction* construction);
  std::string name;
  std::int32_t op = HVD_SUM, root = 0, set = 0;
  double prescale = 1.0, postscale = 1.0;
};

// The operation's name for a node's name: see call.h.
std::string wire_name(const std::string& node, bool last_part_only);

class Collective {
 public:
  Collective(std::int32_t kind, Attributes attributes)
      : attributes_(std::move(attributes)), node_(&attributes_.name), kind_(kind) {
    if (kind == HVD_BARRIER) attributes_.name = "barrier.noname";  // a barrier meets a barrier,
    if (kind == HVD_JOIN) attributes_.name = "join.noname";        // as outside of TensorFlow
  }
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  void compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const;
  void describe(hvd_request* request) const;
  // Store the core's results in the kernel's outputs.
  virtual Status take(Call& call, const hvd_outcome& outcome) const;

 protected:
  // Fill in the tensors of the call; inputs are counted without the ticket.
  virtual Status gather(Call& call, int inputs) const = 0;
  const Attributes& attributes() const { return attributes_; }

 private:
  Attributes attributes_;
  Node node_;
  std::int32_t kind_;
};

// allreduce, broadcast: results of the inputs' shapes, in the inputs' memory if it has no other
// reader.
class Elementwise : public Collective {
  using Collective::Collective;
  Status gather(Call& call, int inputs) const override;
};

// reducescatter: this rank's rows.
class Scattered : public Collective {
  using Collective::Collective;
  Status gather(Call& call, int inputs) const override;
};

// allgather: results in memory of the core.
class Gathered : public Collective {
  using Collective::Collective;
  Status gather(Call& call, int inputs) const override;
  Status take(Call& call, const hvd_outcome& outcome) const override;
};

// alltoall: so too, and how many rows came from each rank.
class Exchanged : public Collective {
  using Collective::Collective;
  Status gather(Call& call, int inputs) const override;
  Status take(Call& call, const hvd_outcome& outcome) const override;
};

// barrier
class Met : public Collective {
  using Collective::Collective;
  Status gather(Call& call, int inputs) const override;
};

// join: the rank that joined last.
class Joined : public Collective {
  using Collective::Collective;
  Status gather(Call& call, int inputs) const override;
  Status take(Call& call, const hvd_outcome& outcome) const override;
};

}  // namespace hvd::tf
