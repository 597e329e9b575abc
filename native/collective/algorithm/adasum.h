// Adasum: a sum of two vectors that does not count their common part twice,
//   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
// which is a + b when they are orthogonal and their mean when they are the same. More than two are
// combined pair by pair: group ranks p and p xor 1, then the results of p and p xor 2, and so
// on. Of a group whose size is no power of two the last members first join the first ones, pair by
// pair. Dot products are summed in float64. A vector whose square is below the root of the smallest
// double is used unchanged. Partial results are kept in the wire dtype and rounded once, at the
// end.
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/backend/group.h"
#include "collective/backend/plan.h"
#include "tensor/reduce.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// Every operand is a separate vector. dtype: one that can_reduce with Adasum. All ranks get the
// same bytes. Needs memory for one copy of the operands in the wire dtype, and for one more in
// their own dtype if it differs.
Status adasum(Mesh& mesh, const Group& group, const std::vector<Operand>& operands, Dtype dtype,
              const Scaling& scaling);

}  // namespace hvd
