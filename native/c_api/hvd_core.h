/* The core's C table, for plugins that bind a framework to it (TensorFlow, JAX, MXNet, anything
 * with ctypes).
 *
 * One function, hvd_core_table(), is exported by libhvd_core.so; all else is a pointer in what it
 * returns. Plain C: no C++ type and no exception crosses it, no function needs Python or its lock,
 * and a plugin is built against this file alone.
 *
 *   engine    a rank between init and shutdown. A plugin asks for the current one at every call and
 * never keeps it: the user may end it and begin another one of another size. request   one
 * operation, on one tensor or on several that are carried out together done      the function that
 * is called when an operation has ended, well or not set       a process set by its id; 0: all
 * ranks
 *
 * Every struct begins with its size as the one who fills it knows it: fields are appended, never
 * moved, and who reads a smaller struct takes what is missing as zero.
 *
 * Memory of a request (name, arrays, splits) may go as soon as enqueue() returns or, where that is
 * earlier, `done` is called; what the tensors point to when `done` has been called. */
#ifndef HVD_CORE_H
#define HVD_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "c_api/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvd_engine hvd_engine; /* a counted reference to one */
typedef struct hvd_buffer hvd_buffer; /* memory of the core that holds a result, counted */
typedef struct hvd_event hvd_event;   /* of a device: what was queued before it has been done */

/* What went wrong, and whose fault it is: the numbers of base/status.h. */
enum {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1, /* this rank's own call is wrong; nothing was sent */
  HVD_MISMATCH = 2,         /* ranks disagree on an operation; every rank is told */
  HVD_ABORTED = 3,          /* a rank raised or was interrupted */
  HVD_RANK_DIED = 4,
  HVD_SHUTDOWN = 5, /* also: there is no engine */
  HVD_TIMEOUT = 6,
  HVD_UNAVAILABLE = 7, /* a resource of the system is missing */
  HVD_INTERNAL = 8,
  HVD_STALLED = 9, /* ranks waited too long for others */
  HVD_NO_MEMORY = 10
};

/* The numbers of engine/message/request.h. */
enum {
  HVD_ALLREDUCE = 0,
  HVD_ALLGATHER = 1,
  HVD_BROADCAST = 2,
  HVD_BARRIER = 3,
  HVD_ALLTOALL = 5,
  HVD_REDUCESCATTER = 6,
  HVD_JOIN = 7
};

/* The numbers of tensor/op.h, which are Horovod's. */
enum { HVD_AVERAGE = 0, HVD_SUM = 1, HVD_ADASUM = 2, HVD_MIN = 3, HVD_MAX = 4, HVD_PRODUCT = 5 };

/* A result whose size only the ranks together know. The memory is 64-byte aligned, and goes after
 * `done` has returned unless keep(owner) was called in it: then by drop(owner), also after the
 * engine has ended; the tensor's shape goes with it. Of an array of them the struct_size of the
 * first is the distance. */
typedef struct hvd_output {
  size_t struct_size;
  DLTensor tensor;
  hvd_buffer* owner;
} hvd_output;

typedef struct hvd_outcome {
  size_t struct_size;
  int32_t code;         /* HVD_OK, or why not */
  int32_t rank;         /* whose fault it is; -1: nobody's alone */
  const char* text;     /* a sentence for the user; "" where it went well */
  size_t outputs_count; /* allgather: one per tensor; alltoall: one */
  const hvd_output* outputs;
  size_t sizes_count; /* alltoall: the rows that came from each rank of the set */
  const int64_t* sizes;
  int64_t number;   /* join: the rank that joined last; else -1 */
  hvd_event* event; /* of tensors on a device: the results are behind it; NULL: they are there */
} hvd_outcome;

/* Called exactly once for every request that was taken: also when the engine ends or is aborted,
 * perhaps before enqueue() returns, on any thread: a small request that is the only one under way
 * is worked at by enqueue() itself, for a tenth of a millisecond at most. It holds no lock and may
 * enqueue, also the same name; it may not wait for another operation nor call shutdown(), and what
 * takes long belongs on another thread. It is never called within itself: what ends meanwhile on
 * its thread is told when it has returned. What `outcome` points to is gone then. */
typedef void (*hvd_done)(void* context, const hvd_outcome* outcome);

typedef struct hvd_request {
  size_t struct_size;
  int32_t kind;
  int32_t set;
  const char* name;        /* NULL or "": by the number of the call, as in Horovod */
  size_t count;            /* tensors */
  const DLTensor* inputs;  /* contiguous; strides may be NULL */
  const DLTensor* outputs; /* allreduce, broadcast: where the results go, as many elements of the
                            * same type as the inputs'; the same memory: in place. reducescatter:
                            * this rank's rows, the first ranks have one more; NULL: they are
                            * told in the outcome, as allgather's are. Else NULL */
  int32_t op;              /* allreduce, reducescatter */
  int32_t root;            /* broadcast: a global rank */
  double prescale, postscale;
  size_t splits_count; /* alltoall: rows for each rank of the set; 0: equal shares */
  const int64_t* splits;
  void* stream; /* of tensors on a device: behind what was queued there they are ready */
  hvd_done done;
  void* context;
} hvd_request;

/* A bootstrap: gives `mine` (bytes) to all ranks and gets theirs. It is called by all ranks alike,
 * one exchange after the other. all[r] and sizes[r] must hold until the next call or the end of
 * start(). Not 0: it failed, `text` says why. */
typedef int32_t (*hvd_exchange)(void* context, const void* mine, size_t size, const void** all,
                                size_t* sizes, char* text, size_t text_size);

/* Functions that can fail return a code and write why into `text` (always ended by a NUL, cut where
 * it is too long). `text` may be NULL. */
typedef struct hvd_core {
  size_t struct_size;
  const char* version; /* of hvd_kernel */

  /* The engine of this process: what hvd.init() made, NULL before it and after shutdown(), and in a
   * forked child. Give it back, on any thread: the last one given back ends the engine. */
  hvd_engine* (*current)(void);
  void (*release)(hvd_engine* engine);

  int32_t (*rank)(const hvd_engine* engine);
  int32_t (*size)(const hvd_engine* engine);
  /* In an elastic job by the slots of the processes, else in the order of ranks. */
  int32_t (*local_rank)(const hvd_engine* engine);
  int32_t (*local_size)(const hvd_engine* engine);
  int32_t (*cross_rank)(const hvd_engine* engine);
  int32_t (*cross_size)(const hvd_engine* engine);
  /* Of a process set: how many ranks it has (0: there is no such set), this rank's number in it
   * (-1: not in it), and its global ranks, of which at most `room` are written. */
  int32_t (*set_size)(const hvd_engine* engine, int32_t set);
  int32_t (*set_rank)(const hvd_engine* engine, int32_t set);
  int32_t (*set_ranks)(const hvd_engine* engine, int32_t set, int32_t* ranks, int32_t room);

  /* HVD_OK: `done` will be called, or has been. Else it is not called. */
  int32_t (*enqueue)(hvd_engine* engine, const hvd_request* request, char* text, size_t text_size);

  void (*keep)(hvd_buffer* buffer); /* within `done` alone */
  void (*drop)(hvd_buffer* buffer);
  /* Of an event, within `done` alone: let a stream wait for it; 1, reached, 0, not yet, below 0, it
   * will never be. */
  int32_t (*stream_wait)(hvd_event* event, void* stream, char* text, size_t text_size);
  int32_t (*event_query)(hvd_event* event);

  /* Programs without Python. Collective; the names and values of `options` are those of the
   * environment, without HOROVOD_ or HVD_ (native/engine/options.cc). make_current: what current()
   * gives from now on; NULL: nothing. */
  hvd_engine* (*start)(int32_t rank, int32_t size, hvd_exchange exchange, void* context,
                       const char* const* names, const char* const* values, size_t options_count,
                       char* text, size_t text_size);
  void (*make_current)(hvd_engine* engine);
  void (*abort)(hvd_engine* engine, const char* why);
  void (*shutdown)(hvd_engine* engine);
} hvd_core;

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const hvd_core* hvd_core_table(void);

#ifdef __cplusplus
}
#endif
#endif
