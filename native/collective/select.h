// Which backend carries an operation out: by device today; by device, size and host layout once
// there is more than one to choose from.
#pragma once

#include <memory>

#include "base/status.h"
#include "collective/backend.h"
#include "tensor/view.h"
#include "transport/mesh.h"

namespace hvd {

class Backends {
 public:
  explicit Backends(Mesh& mesh);
  Result<Backend*> select(int device) const;

 private:
  std::unique_ptr<Backend> cpu_;
};

}  // namespace hvd
