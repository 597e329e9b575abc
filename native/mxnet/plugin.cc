// libhvd_mxnet.so: collectives in MXNet's engine. Built without MXNet; see foreign.h.
//
// hvd_kernel/mxnet/library.py loads it and passes it MXNet and the core.
#include "c_api/plugin.h"

#include <string>

#include "mxnet/call.h"
#include "mxnet/foreign.h"

namespace {

// Keep a text until the next call on this thread.
const char* kept(std::string text) {
  thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

}  // namespace

#define HVD_SHOWN __attribute__((visibility("default")))
extern "C" {

// `library`: the path of the libmxnet that is loaded; `table`: what hvd_core_table() returns. "" or
// why nothing works.
HVD_SHOWN const char* hvd_mxnet_begin(const char* library, const void* table) {
  hvd::plugin::table() = static_cast<const hvd_core*>(table);
  return kept(hvd::mxnet::find_mxnet(library));
}

// True if two arrays share memory; Python checks it with known arrays.
HVD_SHOWN int hvd_mxnet_same_memory(void* one, void* other) {
  return hvd::mxnet::memory_of(one) == hvd::mxnet::memory_of(other) ? 1 : 0;
}

// "" or why the operation was not queued.
HVD_SHOWN const char* hvd_mxnet_push(const hvd::mxnet::Request* request) {
  return kept(hvd::mxnet::push(*request));
}

// Calls queued, those that were enqueued in the core or ended before, ended, dropped.
HVD_SHOWN void hvd_mxnet_counters(std::int64_t out[4]) {
  const hvd::mxnet::Counters& now = hvd::mxnet::counters;
  out[0] = now.pushed, out[1] = now.run, out[2] = now.ended, out[3] = now.dropped;
}
}
