#include "engine/coordinator.h"

#include <exception>
#include <utility>

#include "base/deadline.h"
#include "base/thread.h"
#include "engine/wire.h"

namespace hvd {
namespace {

Response departure(int rank) {
  Response response;
  response.kind = Kind::kLeave;
  response.rank = rank;
  return response;
}

}  // namespace

Coordinator::Coordinator(Mesh& mesh, const EngineOptions& options, Handles& handles,
                         Counters& counters, Trace& trace)
    : mesh_(mesh),
      rank_(mesh.topology().rank),
      size_(mesh.topology().size),
      handles_(handles),
      counters_(counters),
      executor_(mesh, handles, counters, trace),
      negotiator_(size_),
      fuser_(options.fusion_threshold, options.cycle_time_ns),
      gone_(static_cast<std::size_t>(size_), false) {}

void Coordinator::run() {
  name_thread("hvd-coordinator");
  block_signals();
  try {
    while (!ended_) {
      counters_.cycles.fetch_add(1, std::memory_order_relaxed);
      if (mesh_.abort().raised()) return end(mesh_.abort().cause());
      forward(queue_.take());
      if (rank_ == 0) decide();
      if (agenda_.empty()) {
        listen();
      } else {
        work();
      }
    }
  } catch (const std::exception& error) {  // no memory
    fail_everywhere(Status::make(Code::kInternal, error.what(), "engine/coordinator", rank_));
  }
}

void Coordinator::submit(Request request) {
  if (queue_.push(std::move(request))) mesh_.wake();
}

std::vector<Waiting> Coordinator::waiting() const {
  const std::lock_guard<std::mutex> lock(table_mutex_);
  return negotiator_.waiting();
}

void Coordinator::forward(std::vector<Request> requests) {
  if (requests.empty()) return;
  if (rank_ != 0) return send(0, encode(requests));
  for (Request& request : requests) ask(0, std::move(request));
}

// Rank 0: what all ranks have agreed on goes to all of them, itself included.
void Coordinator::decide() {
  const std::int64_t now = now_ns();
  {
    const std::lock_guard<std::mutex> lock(table_mutex_);
    fuser_.add(negotiator_.take(), now);
  }
  std::vector<Response> responses = departures_.empty() ? fuser_.take(now) : fuser_.take_all();
  for (const int rank : std::exchange(departures_, {})) responses.push_back(departure(rank));
  if (responses.empty()) return;
  if (size_ > 1) {
    const std::string bytes = encode(responses);
    for (int peer = 1; peer < size_; ++peer) {
      if (!gone_[static_cast<std::size_t>(peer)]) send(peer, bytes);
    }
  }
  for (Response& response : responses) {
    if (response.kind == Kind::kLeave) gone_[static_cast<std::size_t>(response.rank)] = true;
    agenda_.push_back(std::move(response));
  }
}

void Coordinator::work() {
  const Response response = std::move(agenda_.front());
  agenda_.pop_front();
  if (response.kind == Kind::kLeave) return depart(response.rank);
  const Status status = executor_.perform(response);
  if (!status) fail_everywhere(status);
}

void Coordinator::listen() {
  if (!queue_.may_sleep()) return;
  ControlMessage message = mesh_.wait_control(longest_sleep());
  if (message.from < 0) return notice_departures();
  receive(message);
  // Requests that are already here may join this one; look once more as long as somebody is
  // missing.
  while (rank_ == 0 && !negotiator_.idle() && !ended_) {
    message = mesh_.wait_control(std::chrono::nanoseconds(0));
    if (message.from < 0) return;
    receive(message);
  }
}

void Coordinator::receive(const ControlMessage& message) {
  if (rank_ == 0) {
    Result<std::vector<Request>> requests = decode_requests(message.bytes);
    if (!requests) return fail_everywhere(requests.status());
    for (Request& request : requests.value()) ask(message.from, std::move(request));
  } else {
    Result<std::vector<Response>> responses = decode_responses(message.bytes);
    if (!responses) return fail_everywhere(responses.status());
    for (Response& response : responses.value()) agenda_.push_back(std::move(response));
  }
}

void Coordinator::ask(int rank, Request request) {
  const std::lock_guard<std::mutex> lock(table_mutex_);
  if (request.kind == Kind::kLeave) {
    negotiator_.leave(rank);
    departures_.push_back(rank);
  } else {
    negotiator_.add(rank, std::move(request), now_ns());
  }
}

// A goodbye without a request to leave: that rank could not wait for its turn.
void Coordinator::notice_departures() {
  if (rank_ != 0) {
    if (mesh_.has_left(0)) depart(0);
    return;
  }
  for (int peer = 1; peer < size_; ++peer) {
    if (gone_[static_cast<std::size_t>(peer)] || !mesh_.has_left(peer)) continue;
    gone_[static_cast<std::size_t>(peer)] = true;
    Request leave;
    leave.kind = Kind::kLeave;
    ask(peer, std::move(leave));
  }
}

void Coordinator::send(int peer, const std::string& bytes) {
  const Status status = mesh_.send_control(peer, bytes);
  // A peer that has said goodbye, or an abort: the next round of the loop learns of it, with its
  // cause.
  if (status || status.code == Code::kShutdown || mesh_.abort().raised()) return;
  fail_everywhere(status);
}

// Without rank 0 nobody agrees on anything any more.
void Coordinator::depart(int rank) {
  if (first_departure_ < 0) first_departure_ = rank;
  if (rank == rank_) {
    end(shut_down_by(rank));
  } else if (rank == 0) {
    end(shut_down_by(first_departure_));
  }
}

void Coordinator::end(const Status& status) {
  handles_.close(status);
  ended_ = true;
}

void Coordinator::fail_everywhere(const Status& status) {
  mesh_.raise_everywhere(status);
  end(mesh_.abort().cause());
}

std::chrono::nanoseconds Coordinator::longest_sleep() const {
  const std::int64_t due = fuser_.due_in(now_ns());
  return due < 0 ? std::chrono::nanoseconds::max() : std::chrono::nanoseconds(due);
}

}  // namespace hvd
