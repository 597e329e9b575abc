// Terms.
//   request    the request of one rank: "I have tensor x of this shape, to be summed over set 0".
//   response   rank 0's instruction to every rank of the set, once all of them have requested:
//              execute these names as one operation, or fail them
//   group      a request of several tensors: one operation under one name, so it is all or nothing
//              by construction
//   set        a process set, by its id; 0: all ranks. A name belongs to its set: the same name may
//              be in flight in two sets.
//   pair       a set of two ranks for point-to-point messages. All pairs exist without
//   registration,
//              because the id of a pair follows from its ranks
//   send       a message from one rank of a pair to the other. Both ranks request it: the sender
//              with the data, the receiver with the memory for them
// All ranks execute the same responses in the same order, each those of the sets it belongs to: one
// total order, so overlapping sets cannot deadlock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/visible.h"
#include "collective/backend/plan.h"
#include "tensor/dtype.h"

namespace hvd {

// The numbers are part of the wire format: append, never renumber.
enum class Kind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kLeave = 4,
  kAlltoall = 5,
  kReducescatter = 6,
  kJoin = 7,
  kAddSet = 8,     // of all ranks, also of non-members
  kRemoveSet = 9,  // of all ranks
  kAllocate = 10,  // shared memory, of all ranks: `sizes` = {bytes}; on devices: with a tensor of
                   // that many bytes on this rank's device
  kRelease = 11,   // of all ranks: `sizes` = {region}
  kTune = 12,      // a response only: new parameters from here on
  kPark = 13,      // a request without a response: `sizes` = {1}, this rank waits for the user at
                   // a prompt, {0}: no longer
  kBlocked = 14,  // a request without a response: what this rank waits for, and what it may request
                  // before that has completed (controller/stall.h)
  kSend = 15,     // of a pair; `root` = the sender, `sizes` = {tag}
  kProbe = 16,  // `sizes` = {tag}: which rank has requested a send of that tag to this rank, whose
                // receive has not been requested
};
constexpr int kKindCount = 17;

constexpr int kFirstPair = 1'048'576;  // ids of registered sets are smaller
constexpr int kMostRanksWithPairs = 32'768;

struct Pair {
  int low = 0;
  int high = 0;
};
// The id of the pair; -1: not two different ranks of at most kMostRanksWithPairs.
HVD_VISIBLE int pair_id(int a, int b, int size);
std::optional<Pair> pair_of(int id, int size);  // nullopt: not the id of a pair

const char* name_of(Kind kind);  // "ALLREDUCE", as in Horovod's messages and timeline
HVD_VISIBLE const char* lower_name_of(Kind kind);  // "allreduce", as in names of tensors

// Place of a tensor in shared memory: region * kRegionSpan + offset; kPrivate: not in shared
// memory.
constexpr std::int64_t kPrivate = -1;
constexpr std::int64_t kRegionSpan = 1'099'511'627'776;  // 2^40

struct HVD_VISIBLE TensorMeta {
  Dtype dtype = Dtype::kFloat32;
  int device = kCpu;  // kCpu, or one of the rank's devices, which each rank numbers on its own
  std::vector<std::int64_t> shape;
  std::int64_t place =
      kPrivate;  // if it differs between ranks, the tensor is moved like a private one

  std::int64_t count() const;
  // Extents are not negative, their product fits, and there are at most 255 of them.
  bool countable() const;
  std::int64_t bytes() const { return count() * static_cast<std::int64_t>(size_of(dtype)); }
};

struct Request {
  Kind kind = Kind::kBarrier;
  int set = 0;
  std::string name;
  std::vector<TensorMeta> tensors;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;                     // broadcast, send: a rank of the engine, also in a process set
  std::vector<std::int64_t> sizes;  // alltoall: rows for every rank of the set; addset: the ranks;
                                    // removeset: {the id}; send, probe: {tag}

  std::int64_t bytes() const;
  bool on_device() const { return !tensors.empty() && tensors.front().device != kCpu; }
};

// Parameters that autotune may change.
struct Tunables {
  std::int64_t fusion_threshold = 0;  // bytes
  std::int64_t cycle_ns = 0;
  bool hierarchical_allreduce = true;
  bool hierarchical_allgather = true;
  bool cache = true;
};

struct Response {
  Kind kind = Kind::kBarrier;
  int set = 0;
  Status status;                   // not ok: the named requests fail with it
  std::vector<std::string> names;  // fused into one operation, in this order
  // allgather: rows of tensor t of group rank p at [t * n + p]; alltoall: rows from group rank p to
  // q at [p * n + q]; addset: the new id, then its ranks; removeset: the id; allocate: region,
  // bytes, on devices 1; release: region
  std::vector<std::int64_t> sizes;
  int rank = -1;        // leave: the leaving rank; join: the last rank to join; probe: the sender
  bool shared = false;  // all operands lie at the same place of shared memory on every
                        // rank of the set
  // In the order of names; set only if a rank of the set has joined, because that rank has no
  // request of its own.
  std::vector<Request> absent;
  Tunables tunables;  // tune
  // Not on the wire: the data have arrived already, in slots of the links (eager/eager_rounds.h),
  // or in a half of the fast path's memory (transport/shm/fast_path.h).
  bool eager = false;
  int fast_path_half = -1;
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2, 3]"
std::string shapes_text(const Request& request);  // "[2, 3], [4]"; only the first of many
const char* dtype_text(const Request& request);   // "float32"; "mixed"; "": it has no tensors

// The request of a message; both ranks of the pair make the same one. set: -1: no such pair.
HVD_VISIBLE Request send_request(int source, int destination, std::int64_t tag, int size);
HVD_VISIBLE Request probe_request(std::int64_t tag);

// Horovod's error, plus the rank, which Horovod does not name.
Status shut_down_by(int rank);

// Validation of one rank's own call before anything is sent; errors concern this rank only. Uses
// Horovod's messages where Horovod has them.

// Check a request of any rank. members: size of its set.
Status sensible(const Request& request, std::size_t members, int size);

// One operand for each tensor. members: the ranks of the request's set, ascending; empty: no such
// set.
Status validate(const Request& request, const std::vector<Operand>& operands, int rank, int size,
                const std::vector<int>& members);

// The rows of the first tensor, the same for each member. An error: they are not divisible. Empty
// if validate() reports another error.
HVD_VISIBLE Result<std::vector<std::int64_t>> equal_shares(const Request& request,
                                                           std::size_t members);

}  // namespace hvd
