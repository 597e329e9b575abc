// MPI as a plugin: the core links no MPI and includes no mpi.h. hvd_mpi.so beside it does, and
// gives the few verbs that mpi_links.h needs. They are plain C, none of them waits, and MPI is what
// the process has initialised already (mpi4py), with MPI_THREAD_MULTIPLE.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace hvd {

constexpr std::uint32_t kMpiVersion = 1;

// A message under way: an MPI_Request, in whatever form this MPI has it.
struct MpiRequest {
  void* bits = nullptr;
};

struct MpiVerbs {
  std::uint32_t version;
  void* self;                     // the first argument of all that follow
  const char* (*trouble)(void*);  // why MPI cannot be used; null: it can
  int (*rank)(void*);             // in MPI_COMM_WORLD
  int (*size)(void*);
  int (*prepare)(void*);  // a communicator of our own: 1 there, 0 under way, -1 failed
  // 0: begun. The memory must stay until test() says that it is over.
  int (*send)(void*, const void* data, int bytes, int peer, int tag, MpiRequest* request);
  int (*receive)(void*, void* data, int bytes, int peer, int tag, MpiRequest* request);
  // 1: over, 0: under way, -1: failed, and over. bytes: of what was received.
  int (*test)(void*, MpiRequest* request, int* bytes);
  void (*cancel)(void*, MpiRequest* request);  // a receive; it is over when test() says so
};

constexpr const char* kMpiPlugin = "hvd_mpi.so";
constexpr const char* kMpiSymbol = "hvd_mpi_verbs";

// Loads the plugin from the folder of this library. Never unloaded.
Result<const MpiVerbs*> load_mpi();

}  // namespace hvd
