// Many controllers and the channels between them: in order from one rank to another, in any order
// between different pairs.
#pragma once

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/controller/controller.h"

namespace hvd::test {

inline Request sum_of(const std::string& name, std::vector<std::int64_t> shape = {4},
                      Dtype dtype = Dtype::kFloat32) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.name = name;
  TensorMeta tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  request.tensors = {tensor};
  return request;
}

inline Request of_kind(Kind kind, const std::string& name, std::vector<std::int64_t> shape) {
  Request request = sum_of(name, std::move(shape));
  request.kind = kind;
  return request;
}

inline Request about(Kind kind, const std::string& name, std::vector<std::int64_t> sizes = {}) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.sizes = std::move(sizes);
  return request;
}

inline Request in_set(Request request, int set) {
  request.set = set;
  return request;
}

class World {
 public:
  World(int size, const ControllerOptions& options = {}) {
    for (int rank = 0; rank < size; ++rank) {
      controllers_.push_back(std::make_unique<Controller>(rank, size, options));
    }
    agendas_.resize(controllers_.size());
  }

  int size() const { return static_cast<int>(controllers_.size()); }
  Controller& at(int rank) { return *controllers_[static_cast<std::size_t>(rank)]; }
  std::int64_t now = 0;

  void submit(int rank, Request request) {
    at(rank).submit(std::move(request), now);
    collect(rank);
  }
  void submit_all(const Request& request) {
    for (int rank = 0; rank < size(); ++rank) submit(rank, request);
  }
  // Collect what is due at this rank.
  void collect(int rank) {
    News news = at(rank).poll(now);
    for (OutgoingMessage& outgoing : news.outgoing) {
      bytes_ += outgoing.bytes.size();
      ++messages_;
      channels_[{rank, outgoing.to}].push_back(std::move(outgoing.bytes));
    }
    auto& agenda = agendas_[static_cast<std::size_t>(rank)];
    for (Response& response : news.agenda) agenda.push_back(std::move(response));
    for (std::string& warning : news.warnings) warnings.push_back(std::move(warning));
    for (Ready& request : news.ready) ready.push_back(std::move(request));
  }
  // Deliver one message; false: none is in flight.
  bool deliver(std::mt19937* random = nullptr) {
    if (channels_.empty()) return false;
    auto channel = channels_.begin();
    if (random != nullptr) std::advance(channel, (*random)() % channels_.size());
    const auto [from, to] = channel->first;
    const std::string bytes = std::move(channel->second.front());
    channel->second.pop_front();
    if (channel->second.empty()) channels_.erase(channel);
    const Status status = at(to).receive(from, bytes, now);
    CHECK_MESSAGE(status.is_ok(), status.message);
    collect(to);
    return true;
  }
  void deliver_all(std::mt19937* random = nullptr) {
    while (deliver(random)) continue;
  }
  void pass(std::int64_t ns) {
    now += ns;
    for (int rank = 0; rank < size(); ++rank) collect(rank);
    deliver_all();
  }
  // The responses of a rank since the last call.
  std::vector<Response> responses(int rank) {
    return std::exchange(agendas_[static_cast<std::size_t>(rank)], {});
  }
  std::size_t outgoing() { return std::exchange(messages_, 0); }
  std::size_t bytes() { return std::exchange(bytes_, 0); }

  std::vector<std::string> warnings;
  std::vector<Ready> ready;

 private:
  std::vector<std::unique_ptr<Controller>> controllers_;
  std::vector<std::vector<Response>> agendas_;
  std::map<std::pair<int, int>, std::deque<std::string>> channels_;
  std::size_t messages_ = 0, bytes_ = 0;
};

// The only response that this rank received.
inline Response only_response(World& world, int rank) {
  const std::vector<Response> responses = world.responses(rank);
  REQUIRE(responses.size() == 1);
  return responses.front();
}

}  // namespace hvd::test
