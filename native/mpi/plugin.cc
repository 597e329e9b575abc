// hvd_mpi.so: the verbs of transport/mpi/mpi_plugin.h over MPI. Nothing blocks here, and nothing is
// called after MPI_Finalize.
#include <mpi.h>

#include <cstring>

#include "transport/mpi/mpi_plugin.h"

namespace {

using hvd::MpiRequest;

static_assert(sizeof(MPI_Request) <= sizeof(void*), "a request is a pointer or a number");

// One duplicate of the world for the life of the process: freeing it would be collective, and so
// might wait for a dead rank. Tags separate the starts.
struct Own {
  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm coming = MPI_COMM_NULL;
  MPI_Request duplication = MPI_REQUEST_NULL;
};
Own own;

MPI_Request unpacked(const MpiRequest& request) {
  MPI_Request value{};
  std::memcpy(&value, &request.bits, sizeof value);
  return value;
}

void pack(MPI_Request value, MpiRequest* request) {
  request->bits = nullptr;
  std::memcpy(&request->bits, &value, sizeof value);
}

bool running() {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

const char* trouble(void* /*self*/) {
  if (!running())
    return "MPI is not initialised in this process by the MPI that the plugin was built for; start "
           "the ranks with its mpiexec and import mpi4py.MPI before init";
  int threads = 0;
  MPI_Query_thread(&threads);
  if (threads < MPI_THREAD_MULTIPLE)
    return "MPI was initialised without MPI_THREAD_MULTIPLE; leave mpi4py.rc.thread_level at "
           "\"multiple\" (several threads of a rank use MPI)";
  return nullptr;
}

int rank_of(void* /*self*/) {
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int size_of(void* /*self*/) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int prepare(void* /*self*/) {
  if (own.world != MPI_COMM_NULL) return 1;
  if (own.duplication == MPI_REQUEST_NULL &&
      MPI_Comm_idup(MPI_COMM_WORLD, &own.coming, &own.duplication) != MPI_SUCCESS)
    return -1;
  int done = 0;
  if (MPI_Test(&own.duplication, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return -1;
  if (done == 0) return 0;
  if (MPI_Comm_set_errhandler(own.coming, MPI_ERRORS_RETURN) != MPI_SUCCESS) return -1;
  own.world = own.coming;
  return 1;
}

int send(void* /*self*/, const void* data, int bytes, int peer, int tag, MpiRequest* request) {
  MPI_Request begun = MPI_REQUEST_NULL;
  if (!running() || MPI_Isend(data, bytes, MPI_BYTE, peer, tag, own.world, &begun) != MPI_SUCCESS)
    return -1;
  pack(begun, request);
  return 0;
}

int receive(void* /*self*/, void* data, int bytes, int peer, int tag, MpiRequest* request) {
  MPI_Request begun = MPI_REQUEST_NULL;
  if (!running() || MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, own.world, &begun) != MPI_SUCCESS)
    return -1;
  pack(begun, request);
  return 0;
}

int test(void* /*self*/, MpiRequest* request, int* bytes) {
  if (!running()) return -1;
  MPI_Request value = unpacked(*request);
  int done = 0;
  MPI_Status status;
  const int error = MPI_Test(&value, &done, &status);
  pack(value, request);
  if (error != MPI_SUCCESS) return -1;
  if (done == 0) return 0;
  int cancelled = 0;
  MPI_Test_cancelled(&status, &cancelled);
  if (cancelled != 0) return -1;
  return MPI_Get_count(&status, MPI_BYTE, bytes) == MPI_SUCCESS ? 1 : -1;
}

void cancel(void* /*self*/, MpiRequest* request) {
  if (!running()) return;
  MPI_Request value = unpacked(*request);
  MPI_Cancel(&value);
  pack(value, request);
}

const hvd::MpiVerbs kVerbs{hvd::kMpiVersion, nullptr, trouble, rank_of, size_of,
                           prepare,          send,    receive, test,    cancel};

}  // namespace

extern "C" __attribute__((visibility("default"))) const hvd::MpiVerbs* hvd_mpi_verbs() {
  return &kVerbs;
}
