// XLA's FFI of API version 0.1, declared by hand: no header of XLA. Plain C structs, each of which
// begins with its size; newer versions append fields.
//
//   frame     one call of a handler: its buffers and attributes
//   future    what a handler returns that ends later: XLA goes on when it is set
//   metadata  queried once, when the handler is registered
//   stream    of a GPU: its work runs in order
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd::jax {

struct Extension {
  std::size_t size;
  std::int32_t type;
  Extension* next;
};
constexpr std::int32_t kMetadata = 1;

struct Version {
  std::size_t size;
  Extension* extension;
  std::int32_t major, minor;
};
struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  std::size_t size;
  Extension* extension;
  std::int32_t type;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};
struct Buffers {
  std::size_t size;
  Extension* extension;
  std::int64_t count;
  std::int32_t* kinds;  // all are buffers
  Buffer** all;
};

// Attributes: names in order, values by kind.
struct Text {
  const char* data;
  std::size_t length;
};
struct Scalar {
  std::int32_t type;
  void* value;
};
struct Attributes {
  std::size_t size;
  Extension* extension;
  std::int64_t count;
  std::int32_t* kinds;
  Text** names;
  void** values;
};
constexpr std::int32_t kScalarAttribute = 3, kTextAttribute = 4;

struct Future;
struct Error;
struct Api;
struct Frame {
  std::size_t size;
  Extension* extension;
  const Api* api;
  void* context;
  std::int32_t stage;
  Buffers inputs, outputs;
  Attributes attributes;
  Future* future;  // set by the handler
};
constexpr std::int32_t kExecute = 3;

struct ErrorCreate {
  std::size_t size;
  Extension* extension;
  const char* text;
  std::int32_t code;
};
struct ErrorDestroy {
  std::size_t size;
  Extension* extension;
  Error* error;
};
struct FutureCreate {
  std::size_t size;
  Extension* extension;
  Future* future;
};
struct FutureSet {
  std::size_t size;
  Extension* extension;
  Future* future;
  Error* error;
};
struct StreamGet {
  std::size_t size;
  Extension* extension;
  void* context;  // the frame's
  void* stream;   // set by XLA
};
constexpr std::size_t kFutureCreateSize = 16;  // XLA's count: up to the last field that it reads
constexpr std::size_t kFutureSetSize = 24;
constexpr std::size_t kFutureFailSize = 32;
constexpr std::size_t kErrorCreateSize = 28;

using Function = Error* (*)(void* arguments);
struct Api {
  std::size_t size;
  Extension* extension;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void* error_text;
  void (*error_destroy)(ErrorDestroy*);
  void* handler_register;
  Error* (*stream_get)(StreamGet*);
  void *type_register, *context_get, *state_set, *state_get, *memory_allocate, *memory_free,
      *pool_schedule;
  // Version 0.1 has two layouts: since jaxlib 0.4.38 the size of the thread pool comes first, which
  // moves the three functions of futures by one.
  Function after_schedule[4];
};

// The codes of absl::Status that our calls return.
enum class Code : std::int32_t {
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12
};

// Handle a call that only queries a handler's metadata, or prepares a program; true: it was one.
bool is_query(Frame* frame);

Error* error(const Api* api, Code code, const std::string& text);

// The stream of a call on a GPU. Returns an error, which is already released in XLA, or "".
std::string stream_of(const Frame& frame, void** stream);

// The functions of futures in this process's XLA, found by trial: a function refuses the arguments
// of another one by their size. nullptr: none.
struct Futures {
  Function create, set, fail;
};
const Futures* futures(const Api* api);

Future* new_future(const Futures& functions);  // nullptr: XLA failed
void set(const Futures& functions, Future* future);
void fail(const Futures& functions, Future* future, Error* why);

}  // namespace hvd::jax
