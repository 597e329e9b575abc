// MPI as a plugin: the core links no MPI and includes no mpi.h. hvd_mpi.so does, and provides the
// few verbs that mpi_links.h needs. They are plain C and nonblocking, and use the MPI that the
// process has initialised already (mpi4py) with MPI_THREAD_MULTIPLE.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace hvd {

constexpr std::uint32_t kMpiVersion = 1;

// A message in flight: an MPI_Request in the form of this MPI.
struct MpiRequest {
  void* bits = nullptr;
};

struct MpiVerbs {
  std::uint32_t version;
  void* self;                     // first argument of the functions below
  const char* (*trouble)(void*);  // why MPI cannot be used; nullptr: it can
  int (*rank)(void*);             // in MPI_COMM_WORLD
  int (*size)(void*);
  int (*prepare)(void*);  // a private communicator: 1 ready, 0 in progress, -1 failed
  // 0: started. The memory must stay valid until test() reports completion.
  int (*send)(void*, const void* data, int bytes, int peer, int tag, MpiRequest* request);
  int (*receive)(void*, void* data, int bytes, int peer, int tag, MpiRequest* request);
  // 1: complete, 0: in progress, -1: failed (complete). bytes: number received.
  int (*test)(void*, MpiRequest* request, int* bytes);
  void (*cancel)(void*, MpiRequest* request);  // a receive; complete when test() reports it
};

constexpr const char* kMpiPlugin = "hvd_mpi.so";
constexpr const char* kMpiSymbol = "hvd_mpi_verbs";

// Loads the plugin from the folder of this library. Never unloaded.
Result<const MpiVerbs*> load_mpi();

}  // namespace hvd
