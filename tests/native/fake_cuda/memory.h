// Device memory: memfds that other processes can map, or (in stream order) memory of this process.
// No address is ever used twice: what is gone is out of reach for the host and known for the fake.
#pragma once

#include "fake_cuda/world.h"

namespace fake {

// The world's mutex is held in all of these.
enum class Kind { kShared, kPooled };
CUresult allocate(CUcontext context, std::size_t bytes, Kind kind, CUdeviceptr& address);
void discard(std::map<CUdeviceptr, Memory>::iterator of);
// Where the memory that has this address begins, or end().
std::map<CUdeviceptr, Memory>::iterator memory_of(CUdeviceptr address);

// An address given to a copy.
enum class Range { kDevice, kHost, kGone, kTooLong };
Range range_of(CUdeviceptr address, std::size_t bytes);

}  // namespace fake
