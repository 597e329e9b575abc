#include "simulator/cluster.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace hvd::sim {
namespace {

ControllerOptions options_of(const Setting& setting) {
  ControllerOptions options;
  options.fanout = setting.fanout;
  options.record_ready = false;
  return options;
}

Request gradient(int tensor, std::int64_t bytes) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.op = ReduceOp::kAverage;
  request.name = "g" + std::to_string(tensor);
  request.tensors.resize(1);
  request.tensors[0].shape = {bytes / 4};
  return request;
}

std::int64_t ns(double time) { return static_cast<std::int64_t>(time); }

void require(const Status& status, int rank) {
  if (status) return;
  std::fprintf(stderr, "simulator: rank %d: %s\n", rank, status.message.c_str());
  std::abort();
}

}  // namespace

Cluster::Cluster(const Setting& setting)
    : setting_(setting),
      random_(setting.seed),
      ranks_(static_cast<std::size_t>(setting.ranks)),
      begun_(static_cast<std::size_t>(setting.ranks), 0) {
  const ControllerOptions options = options_of(setting);
  for (int rank = 0; rank < setting.ranks; ++rank) {
    ranks_[static_cast<std::size_t>(rank)].controller =
        std::make_unique<Controller>(rank, setting.ranks, options);
    if (setting.eager())
      ranks_[static_cast<std::size_t>(rank)].data.resize(static_cast<std::size_t>(setting.ranks));
  }
}

Step Cluster::step(bool last) {
  step_ = Step();
  const double begin = now_;
  const double spread = std::max(setting_.backward * setting_.jitter, 1000 * setting_.jitter);
  for (int rank = 0; rank < setting_.ranks; ++rank) {
    ranks_[static_cast<std::size_t>(rank)].messages = 0;
    const double delay = spread * static_cast<double>(random_() % 1000) / 1000;
    const int tensors = setting_.calls > 0 ? 1 : static_cast<int>(setting_.tensors.size());
    ranks_[static_cast<std::size_t>(rank)].calls = setting_.calls - 1;
    for (int tensor = 0; tensor < tensors; ++tensor) {
      const double time = begin + delay + setting_.backward * (tensor + 1) / tensors;
      if (last && rank == setting_.leaves && tensor == tensors / 2) {
        at(time, rank, {-1, -1, true, {}, {}});
        break;
      }
      at(time, rank, {-1, tensor, false, {}, {}});
      last_ask_ = time;
    }
  }
  last_ask_ = begin + spread + setting_.backward;
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    if (event.input < 0) {
      look(event.rank, event.at);
      continue;
    }
    Rank& rank = ranks_[static_cast<std::size_t>(event.rank)];
    rank.inbox.push_back(event.input);
    wake(rank, event.rank, event.at);
  }
  step_.time = now_ - begin;
  step_.negotiation = last_heard_ - last_ask_;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].messages <= step_.most_messages) continue;
    step_.most_messages = ranks_[rank].messages;
    step_.most_rank = static_cast<int>(rank);
  }
  return step_;
}

int Cluster::waiting() const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.busy || !(rank.ends || rank.controller->idle());
  }));
}

void Cluster::at(double time, int rank, Input input) {
  int slot = static_cast<int>(inputs_.size());
  if (spare_.empty()) {
    inputs_.push_back(std::move(input));
  } else {
    slot = spare_.back();
    spare_.pop_back();
    inputs_[static_cast<std::size_t>(slot)] = std::move(input);
  }
  events_.push({time, events_made_++, rank, slot});
}

void Cluster::wake(Rank& rank, int number, double time) {
  if (rank.awake || rank.busy || (rank.ends && rank.agenda.empty())) return;
  rank.awake = true;
  events_.push({std::max(time, rank.free_at), events_made_++, number, -1});
}

void Cluster::look(int number, double time) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  rank.awake = false;
  rank.free_at = std::max(rank.free_at, time);
  for (const int slot : std::exchange(rank.inbox, {})) {
    if (!rank.ends) digest(number, inputs_[static_cast<std::size_t>(slot)]);
    spare_.push_back(slot);
  }
  deliver(number);
  begin_next(number);
}

void Cluster::digest(int number, Input& input) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  if (input.leaves || input.tensor >= 0) {
    rank.free_at += setting_.costs.ask;
    Request request;
    request.kind = Kind::kLeave;
    if (!input.leaves)
      request = gradient(input.tensor, setting_.tensors[static_cast<std::size_t>(input.tensor)]);
    ask(number, std::move(request));
    return look_at_data(number);
  }
  ++rank.messages;
  if (input.data) {
    rank.free_at += setting_.costs.o;
    rank.data[static_cast<std::size_t>(input.from)].push_back(*input.data);
    return look_at_data(number);
  }
  rank.free_at +=
      setting_.costs.o + setting_.costs.o_byte * static_cast<double>(input.bytes.size());
  const Status status = rank.controller->receive(input.from, input.bytes, ns(rank.free_at));
  input.bytes = std::string();
  require(status, number);
  look_at_data(number);
}

void Cluster::ask(int number, Request request) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  if (setting_.eager()) {
    if (const auto tag = rank.controller->submit_eagerly(request, ns(rank.free_at)); tag)
      return send_data(number, *tag, setting_.tensors.front());
  }
  rank.controller->submit(std::move(request), ns(rank.free_at));
}

void Cluster::send_data(int number, const EagerTag& tag, std::int64_t bytes) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  for (int step = 1; step < setting_.ranks; ++step) {
    rank.free_at += setting_.costs.o;
    rank.sent_at =
        std::max(rank.sent_at, rank.free_at) + setting_.costs.beta * static_cast<double>(bytes);
    ++rank.messages;
    const int peer = (number + step) % setting_.ranks;
    at(rank.sent_at + setting_.costs.alpha, peer, {number, -1, false, {}, tag});
  }
}

// As EagerExchange (engine/progress_engine.cc).
void Cluster::look_at_data(int number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  const EagerRounds& rounds = rank.controller->eager();
  for (std::size_t peer = 0; peer < rank.data.size(); ++peer) {
    std::deque<EagerTag>& tags = rank.data[peer];
    const std::uint64_t position = rounds.position();
    while (!tags.empty() && tags.front().position < position) tags.pop_front();
    if (tags.empty() || !rounds.open() || tags.front().position != position) continue;
    if (rounds.has_received(static_cast<int>(peer))) continue;
    require(rank.controller->eager_received(static_cast<int>(peer), tags.front().slot,
                                            ns(rank.free_at)),
            number);
  }
}

// The actions of a rank on its received messages.
void Cluster::deliver(int number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  News news = rank.controller->poll(ns(rank.free_at));
  for (OutgoingMessage& outgoing : news.outgoing) {
    const auto bytes = static_cast<double>(outgoing.bytes.size());
    rank.free_at += setting_.costs.o + setting_.costs.o_byte * bytes;
    ++rank.messages;
    ++step_.messages;
    step_.bytes += static_cast<std::int64_t>(outgoing.bytes.size());
    const double arrives = rank.free_at + setting_.costs.alpha + setting_.costs.beta * bytes;
    at(arrives, outgoing.to, {number, -1, false, std::move(outgoing.bytes), {}});
  }
  for (const Response& response : news.agenda) heard(number, response);
}

void Cluster::heard(int number, const Response& response) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  last_heard_ = rank.free_at;
  if (response.kind == Kind::kLeave) {
    if (response.status) return;
    rank.ends = true;
    ++step_.ended;
    return;
  }
  if (!response.status) {
    step_.failed += static_cast<int>(response.names.size());
    return;
  }
  if (response.eager) {  // its data are there
    ++step_.eager;
    return call_again(rank, number);
  }
  const int operation = rank.operations++;
  rank.agenda.push_back(operation);
  if (operation < static_cast<int>(operations_.size())) return;
  Operation fresh;
  for (const std::string& name : response.names) {
    fresh.bytes += setting_.tensors[static_cast<std::size_t>(std::atoi(name.c_str() + 1))];
  }
  operations_.push_back(fresh);
  ++step_.operations;
}

void Cluster::begin_next(int number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  if (rank.busy || rank.agenda.empty()) return;
  const int next = rank.agenda.front();
  rank.agenda.pop_front();
  rank.busy = true;
  begun_[static_cast<std::size_t>(number)] = rank.free_at;
  Operation& operation = operations_[static_cast<std::size_t>(next)];
  if (++operation.in_it == setting_.ranks) carry_out(next);
}

void Cluster::carry_out(int operation) {
  const std::vector<double> done = finish(setting_.algorithm, setting_.costs, begun_,
                                          operations_[static_cast<std::size_t>(operation)].bytes);
  for (int number = 0; number < setting_.ranks; ++number) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    rank.busy = false;
    rank.free_at = done[static_cast<std::size_t>(number)];
    wake(rank, number, rank.free_at);
    call_again(rank, number);
  }
}

void Cluster::call_again(Rank& rank, int number) {
  if (rank.calls <= 0) return;
  --rank.calls;
  at(rank.free_at, number, {-1, 0, false, {}, {}});
}

}  // namespace hvd::sim
