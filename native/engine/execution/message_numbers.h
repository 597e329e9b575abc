// Names of messages between two ranks: the n-th send from one rank to another with a tag and the
// n-th receive of that tag have the same name. So messages of one sender and tag arrive in order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "base/mutex.h"
#include "engine/message/request.h"

namespace hvd {

class MessageNumbers {
 public:
  // The name of this rank's next message from `source` to `destination`: "send.1to0.tag7.0".
  std::string next(int source, int destination, std::int64_t tag) {
    const MutexLock lock(mutex_);
    const std::uint64_t number = counts_[{source, destination, tag}]++;
    return std::string(lower_name_of(Kind::kSend)) + "." + std::to_string(source) + "to" +
           std::to_string(destination) + ".tag" + std::to_string(tag) + "." +
           std::to_string(number);
  }

 private:
  Mutex mutex_;
  std::map<std::tuple<int, int, std::int64_t>, std::uint64_t> counts_ GUARDED_BY(mutex_);
};

}  // namespace hvd
