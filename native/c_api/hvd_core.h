/* The core's C table, for plugins that bind a framework to it (TensorFlow, JAX, MXNet, anything
 * with ctypes).
 *
 * libhvd_core.so exports one function, hvd_core_table(); everything else is a pointer in its
 * result. Plain C: no C++ type and no exception crosses it, no function needs Python or the GIL,
 * and a plugin is built against this file alone.
 *
 *   engine    a rank between init and shutdown. A plugin gets the current one for every call and
 *             never keeps it: the user may shut it down and start one of another size
 *   request   one operation, on one tensor or on several that are executed together
 *   done      the callback at the end of an operation, successful or not
 *   set       a process set, by its id; 0: all ranks
 *
 * Every struct begins with its size as known to the code that fills it: fields are appended, never
 * moved, and a reader treats missing fields as zero.
 *
 * The memory of a request (name, arrays, splits) may be freed as soon as enqueue() returns or, if
 * that is earlier, `done` is called; the tensors' memory when `done` has been called. */
#ifndef HVD_CORE_H
#define HVD_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "c_api/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvd_engine hvd_engine; /* a counted reference */
typedef struct hvd_buffer hvd_buffer; /* memory of the core with a result, a counted reference */
typedef struct hvd_event hvd_event;   /* on a device: reached when earlier work is done */

/* Error codes: the numbers of base/status.h. */
enum {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1, /* this rank's own call is wrong; nothing was sent */
  HVD_MISMATCH = 2,         /* ranks disagree on an operation; every rank gets it */
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
  HVD_JOIN = 7,
  HVD_SEND = 15, /* a message; sender and receiver make the same request */
  HVD_PROBE = 16 /* wait until any rank has requested a send to this rank */
};

/* The numbers of tensor/dtype.h, which are Horovod's. */
enum { HVD_AVERAGE = 0, HVD_SUM = 1, HVD_ADASUM = 2, HVD_MIN = 3, HVD_MAX = 4, HVD_PRODUCT = 5 };

/* A result whose size depends on all ranks. The memory is 64-byte aligned and freed, with the
 * tensor's shape, after `done` has returned, unless keep(owner) was called in it: then by
 * drop(owner), even after the engine has ended. In an array of them the struct_size of the first is
 * the stride. */
typedef struct hvd_output {
  size_t struct_size;
  DLTensor tensor;
  hvd_buffer* owner;
} hvd_output;

typedef struct hvd_outcome {
  size_t struct_size;
  int32_t code;         /* HVD_OK or an error */
  int32_t rank;         /* the rank at fault; -1: not a single rank */
  const char* text;     /* a message for the user; "": no error */
  size_t outputs_count; /* allgather: one per tensor; alltoall: one */
  const hvd_output* outputs;
  size_t sizes_count; /* alltoall: rows received from each rank of the set */
  const int64_t* sizes;
  int64_t number;   /* join: the rank that joined last; probe: the sender; else -1 */
  hvd_event* event; /* tensors on a device: reached when the results are ready; NULL: ready */
} hvd_outcome;

/* Called exactly once for every accepted request, also if the engine ends or is aborted, on any
 * thread, perhaps before enqueue() returns: enqueue() itself executes a small request that is the
 * only one in flight, for a tenth of a millisecond at most. It runs without locks and may enqueue,
 * also the same name. It may not wait for another operation nor call shutdown(), and long work
 * belongs on another thread. It is never called recursively: operations that end meanwhile on its
 * thread are reported when it has returned. `outcome` is invalid after the return. */
typedef void (*hvd_done)(void* context, const hvd_outcome* outcome);

typedef struct hvd_request {
  size_t struct_size;
  int32_t kind;
  int32_t set;
  const char* name;        /* NULL or "": by the number of the call, as in Horovod */
  size_t count;            /* tensors */
  const DLTensor* inputs;  /* contiguous; strides may be NULL */
  const DLTensor* outputs; /* allreduce, broadcast, send: where the results go, as many elements of
                            * the same type as the inputs'; the same memory: in place.
                            * reducescatter: this rank's rows, the first ranks have one more; NULL:
                            * returned in the outcome, as for allgather. Else NULL */
  int32_t op;              /* allreduce, reducescatter */
  int32_t root;            /* broadcast, send: a global rank, the sender */
  double prescale, postscale;
  size_t splits_count; /* alltoall: rows for each rank of the set; 0: equal shares */
  const int64_t* splits;
  void* stream; /* of tensors on a device: they are ready after the work queued there */
  hvd_done done;
  void* context;
  int32_t destination; /* send: a global rank, the receiver */
  int64_t tag;         /* send, probe: the n-th send of a tag meets the n-th receive of it */
} hvd_request;

/* A bootstrap: sends `mine` (bytes) to all ranks and receives theirs. All ranks make the same
 * calls, one exchange after another. all[r] and sizes[r] must stay valid until the next call or the
 * end of start(). Not 0: it failed, `text` is the error. */
typedef int32_t (*hvd_exchange)(void* context, const void* mine, size_t size, const void** all,
                                size_t* sizes, char* text, size_t text_size);

/* Functions that can fail return a code and write the error into `text` (always terminated by a
 * NUL, truncated if too long). `text` may be NULL. */
typedef struct hvd_core {
  size_t struct_size;
  const char* version; /* of hvd_kernel */

  /* The engine of this process, made by hvd.init(); NULL before it, after shutdown(), and in a
   * forked child. Release it on any thread: the last release ends the engine. */
  hvd_engine* (*current)(void);
  void (*release)(hvd_engine* engine);

  int32_t (*rank)(const hvd_engine* engine);
  int32_t (*size)(const hvd_engine* engine);
  /* In an elastic job by the process slots, else in the order of ranks. */
  int32_t (*local_rank)(const hvd_engine* engine);
  int32_t (*local_size)(const hvd_engine* engine);
  int32_t (*cross_rank)(const hvd_engine* engine);
  int32_t (*cross_size)(const hvd_engine* engine);
  /* Of a process set: its size (0: no such set), this rank's number in it (-1: not a member), and
   * its global ranks, of which at most `room` are written. */
  int32_t (*set_size)(const hvd_engine* engine, int32_t set);
  int32_t (*set_rank)(const hvd_engine* engine, int32_t set);
  int32_t (*set_ranks)(const hvd_engine* engine, int32_t set, int32_t* ranks, int32_t room);

  /* HVD_OK: `done` will be called, or was called. Else it is not called. */
  int32_t (*enqueue)(hvd_engine* engine, const hvd_request* request, char* text, size_t text_size);

  void (*keep)(hvd_buffer* buffer); /* only within `done` */
  void (*drop)(hvd_buffer* buffer);
  /* Only within `done`. stream_wait() makes a stream wait for the event. event_query() returns 1 if
   * it is reached, 0 if not yet, and a negative number if it never will be. */
  int32_t (*stream_wait)(hvd_event* event, void* stream, char* text, size_t text_size);
  int32_t (*event_query)(hvd_event* event);

  /* Programs without Python. Collective; the names and values of `options` are those of the
   * environment, without HOROVOD_ or HVD_ (native/engine/options.cc). make_current(): sets the
   * engine that current() returns from now on; NULL: none. */
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
