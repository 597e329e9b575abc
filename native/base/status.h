// Status: errors below the bindings are values, with a code, a message for the user, the place of
// origin and the rank at fault. Exceptions exist only in native/python (module.cc), which maps
// each code to one Python class.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace hvd {

enum class Code {
  kOk,
  kInvalidArgument,  // this rank's own call is wrong; nothing was sent           -> ValueError
  kMismatch,         // ranks disagree on an operation; raised on every rank      -> errors.Mismatch
  kAborted,   // a rank raised or was interrupted; its text is carried     -> errors.RankFailed
  kRankDied,  // a rank's process is gone                                  -> errors.RankDied
  kShutdown,  // the engine was shut down (here or on a peer)              -> HorovodInternalError
  kTimeout,   // a deadline passed                                         -> errors.HvdTimeout
  kUnavailable,  // a resource of the system is missing (memory, fd, port)    ->
                 // HorovodInternalError
  kInternal,  // our own bug                                               -> HorovodInternalError
  kStalled,   // ranks waited too long for others, which are named         -> errors.RankStalled
  kNoMemory,  // a rank has no memory for a result; raised on every rank   -> errors.OutOfMemory
};
constexpr int kCodeCount = 11;

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;
  std::string where;  // "transport/tcp_bootstrap: connect"
  int rank = -1;      // the rank that caused it, or -1

  static Status ok() { return {}; }
  static Status make(Code code, std::string message, std::string where, int rank = -1) {
    return {code, std::move(message), std::move(where), rank};
  }
  bool is_ok() const { return code == Code::kOk; }
  explicit operator bool() const { return is_ok(); }
};

// A value or an error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by intent
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by intent

  bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  // Only after is_ok(), like a pointer's target.
  T& value() { return *value_; }              // NOLINT(bugprone-unchecked-optional-access)
  const T& value() const { return *value_; }  // NOLINT(bugprone-unchecked-optional-access)
  T take() { return std::move(*value_); }     // NOLINT(bugprone-unchecked-optional-access)
  const Status& status() const { return status_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace hvd
