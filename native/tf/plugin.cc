// libhvd_tf.so: registers our ops and kernels with the TensorFlow of this process when it is
// loaded.
//
// tf.load_op_library loads it, and makes the Python functions out of the ops that it registers.
// Python then passes it the core (hvd_tf_set_core). Built without TensorFlow; see
// foreign.h.
#include "c_api/plugin.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "tf/call.h"
#include "tf/registration.h"

namespace hvd::tf {
namespace {

// Errors of the registration. Never destroyed: Python may read it at exit.
std::string& trouble() {
  static auto* const text = new std::string;  // NOLINT(cppcoreguidelines-owning-memory)
  return *text;
}

const struct Registration {
  Registration() noexcept { trouble() = register_all(); }
} registration;

}  // namespace
}  // namespace hvd::tf

extern "C" {

// "" if everything is registered, else the error.
__attribute__((visibility("default"))) const char* hvd_tf_trouble() {
  return hvd::tf::trouble().c_str();
}

// table: the result of hvd_core_table().
__attribute__((visibility("default"))) void hvd_tf_set_core(const void* table) {
  hvd::plugin::table() = static_cast<const hvd_core*>(table);
}

// 1 while operations are in flight, else 0.
__attribute__((visibility("default"))) std::int32_t hvd_tf_under_way() {
  return hvd::tf::any_under_way() ? 1 : 0;
}

// The names of begun() (call.h): writes as many bytes as fit, and returns their number.
__attribute__((visibility("default"))) std::int64_t hvd_tf_begun(char* text, std::int64_t room) {
  const std::string names = hvd::tf::begun();
  const auto size = static_cast<std::int64_t>(names.size());
  std::memcpy(text, names.data(), static_cast<std::size_t>(std::min(size, room)));
  return size;
}

// Calls, inputs whose memory became the output's, results passed on without a copy, and released;
// steps of training, and their samples.
__attribute__((visibility("default"))) void hvd_tf_counters(std::int64_t out[6]) {
  const hvd::tf::Counters& now = hvd::tf::counters;
  out[0] = now.calls, out[1] = now.forwarded, out[2] = now.given, out[3] = now.returned;
  out[4] = now.steps, out[5] = now.samples;
}
}
