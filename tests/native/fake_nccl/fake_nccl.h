// A fake NCCL: libfake_nccl.so has every function of native/cuda/nccl/nccl.h, for ranks that are
// threads of one process, over the fake driver's streams and memory. An operation blocks the
// stream's thread until all members' streams have come to it, as NCCL's kernels do. Sums are made
// in the order of the ranks, which is not our backends' order; 16-bit numbers are rounded at every
// step. What NCCL forbids, or lets hang, is an error here: two ranks on one device, blocking
// communicators, calls before the last one has gone through, operations that do not match, memory
// that is not the device's, a communicator that is gone.
// Its SONAME is NCCL's: a test that has loaded it is a process that has loaded NCCL.
#pragma once

#include <cstddef>

extern "C" {

// What ncclGetVersion says (default: 22803).
void fake_nccl_set_version(int version);
// While held no communicator is ready: a member that never comes.
void fake_nccl_hold_start(int held);
// While held no operation comes to its stream: NCCL connects to a member that never comes.
void fake_nccl_hold_launch(int held);
// The next ncclCommInitRankConfig of this rank gives `result`.
void fake_nccl_refuse_start(int rank, int result);
// Every communicator's member `rank` has the asynchronous error `result` from now on, and no
// operation comes to its end any more.
void fake_nccl_break(int rank, int result);
// ncclCommAbort does not return while held.
void fake_nccl_hold_abort(int held);
// Communicators that are neither destroyed nor aborted.
std::size_t fake_nccl_communicators();
// How often a function was called since the start.
std::size_t fake_nccl_calls(const char* function);
// Puts all switches back as they were at the start (not the counts).
void fake_nccl_reset();

}  // extern "C"
