// Operations on host memory: the ring over the links of a mesh.
#pragma once

#include "collective/backend.h"
#include "transport/mesh.h"

namespace hvd {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(Mesh& mesh);
  Status allreduce(const std::vector<Operand>& operands, Dtype dtype,
                   const Scaling& scaling) override;
  Status broadcast(const std::vector<Operand>& operands, int root) override;
  Status allgather(const std::vector<Operand>& blocks) override;

 private:
  Mesh& mesh_;
  const int rank_;
  const int size_;
};

}  // namespace hvd
