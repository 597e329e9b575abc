// Controllers, the channels between them, and the data of eager rounds on channels of their own:
// in order from one rank to another, in any order between different pairs and between data and
// messages. Every rank follows a script of calls, and each piece of data says which call it is of.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/controller/controller.h"
#include "engine/controller/world.h"

namespace hvd::test {

// One call of a rank's user.
struct Call {
  enum class How { kWaits, kGoesOn, kLeaves };
  How how = How::kWaits;
  std::string name;
  int peer = -1;  // of a message: the other rank

  Request request(int rank, int size) const {
    if (peer < 0) return sum_of(name);
    Request request = of_kind(Kind::kSend, name, {4});
    const Request send = send_request(std::min(rank, peer), std::max(rank, peer), 0, size);
    request.set = send.set;
    request.root = send.root;
    request.sizes = send.sizes;
    return request;
  }
};

inline Call waits(const std::string& name) { return {Call::How::kWaits, name}; }
inline Call goes_on(const std::string& name) { return {Call::How::kGoesOn, name}; }
// A message between the caller and the peer, from the lower rank; its name has both ranks.
inline Call message_with(int peer, const std::string& name, Call::How how = Call::How::kGoesOn) {
  return {how, name, peer};
}
inline Call leaves() { return {Call::How::kLeaves, ""}; }

using Script = std::vector<Call>;

class EagerWorld {
 public:
  // One thing that can happen next.
  struct Event {
    enum class What { kCall, kMessage, kData };
    What what = What::kCall;
    int from = 0, to = 0;
    std::string text() const {
      return std::string(what == What::kCall      ? "c"
                         : what == What::kMessage ? "m"
                                                  : "d") +
             std::to_string(from);
    }
  };

  explicit EagerWorld(std::vector<Script> scripts, const ControllerOptions& options = {})
      : scripts_(std::move(scripts)) {
    const int size = static_cast<int>(scripts_.size());
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, size, options));
    }
    for (const std::string name : {"x", "y"}) {  // what has been agreed on once is cached
      for (int rank = 0; rank < size; ++rank) submit(rank, name);
      while (deliver_one()) continue;
    }
    for (auto& rank : ranks_) rank->done.clear();
    letters = 0;
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Controller& at(int rank) { return ranks_[at_(rank)]->controller; }
  // What a rank has carried out: "x" in an eager round, "(x)" otherwise, "x!" failed.
  const std::vector<std::string>& done(int rank) const { return ranks_[at_(rank)]->done; }
  bool waits_for(int rank, const std::string& name) const {
    return ranks_[at_(rank)]->waiting.count(name) > 0;
  }
  std::int64_t now = 0;
  std::size_t letters = 0;
  std::string wrong;  // what must not be

  std::vector<Event> events() const {
    std::vector<Event> all;
    for (int rank = 0; rank < size(); ++rank) {
      if (may_call(rank)) all.push_back({Event::What::kCall, rank, rank});
    }
    for (const auto& [pair, messages] : messages_) {
      if (!messages.empty()) all.push_back({Event::What::kMessage, pair.first, pair.second});
    }
    for (const auto& [pair, data] : data_) {
      if (!data.empty()) all.push_back({Event::What::kData, pair.first, pair.second});
    }
    return all;
  }
  void happen(const Event& event) {
    switch (event.what) {
      case Event::What::kCall:
        return call(event.to);
      case Event::What::kMessage:
        return message(event.from, event.to);
      case Event::What::kData:
        return data(event.from, event.to);
    }
  }
  void call(int rank) {
    const Call call = scripts_[at_(rank)][ranks_[at_(rank)]->next++];
    Rank& one = *ranks_[at_(rank)];
    if (call.how == Call::How::kLeaves) {
      one.controller.submit(about(Kind::kLeave, ""), now);
      one.leaves = true;
      return collect(rank);
    }
    ++one.calls[call.name];
    one.waiting[call.name] = call.how == Call::How::kWaits;
    // As the engine: only who waits, and has nothing to do.
    if (call.how == Call::How::kWaits && one.waiting.size() == 1) {
      const auto tag = one.controller.submit_eagerly(call.request(rank, size()), now);
      if (tag) {
        for (int peer = 0; peer < size(); ++peer) {
          if (peer != rank) data_[{rank, peer}].push_back({*tag, one.calls[call.name]});
        }
        return collect(rank);
      }
    }
    one.controller.submit(call.request(rank, size()), now);
    collect(rank);
  }
  void submit(int rank, const std::string& name) {
    Rank& one = *ranks_[at_(rank)];
    one.waiting[name] = false;
    one.controller.submit(sum_of(name), now);
    collect(rank);
  }
  void message(int from, int to) {
    auto& channel = messages_[{from, to}];
    const std::string bytes = std::move(channel.front());
    channel.pop_front();
    const Status status = at(to).receive(from, bytes, now);
    if (!status) wrong = status.message;
    collect(to);
  }
  void data(int from, int to) {
    auto& channel = data_[{from, to}];
    ranks_[at_(to)]->links[from].push_back(channel.front());
    channel.pop_front();
    collect(to);
  }
  bool deliver_one() {
    for (const Event& event : events()) {
      if (event.what == Event::What::kCall) continue;
      happen(event);
      return true;
    }
    return false;
  }
  // All there is to deliver, then all calls that can be made.
  void settle() {
    while (!events().empty()) happen(events().back());
  }
  void deliver_all() {
    while (deliver_one()) continue;
  }
  void pass(std::int64_t ns) {
    now += ns;
    for (int rank = 0; rank < size(); ++rank) collect(rank);
  }
  bool over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
      return rank->waiting.empty() &&
             (rank->next == scripts_[at_(rank->number)].size() || rank->ended);
    });
  }

 private:
  struct Data {
    EagerTag tag;
    int call = 0;
  };
  struct Rank {
    Rank(int rank, int size, const ControllerOptions& options)
        : number(rank), controller(rank, size, options) {}
    int number;
    Controller controller;
    std::size_t next = 0;                 // of its script
    std::map<std::string, int> calls;     // by name, so many
    std::map<std::string, bool> waiting;  // by name: its user waits for it
    std::map<int, std::deque<Data>> links;
    std::vector<std::string> done;
    bool leaves = false;
    bool ended = false;
  };

  static std::size_t at_(int rank) { return static_cast<std::size_t>(rank); }

  bool may_call(int rank) const {
    const Rank& one = *ranks_[at_(rank)];
    if (one.leaves || one.ended || one.next == scripts_[at_(rank)].size()) return false;
    const std::string& name = scripts_[at_(rank)][one.next].name;
    return one.waiting.count(name) == 0 &&
           std::none_of(one.waiting.begin(), one.waiting.end(),
                        [](const auto& waiting) { return waiting.second; });
  }

  // What the engine does between two events (EagerExchange in progress_engine.h).
  void collect(int rank) {
    Rank& one = *ranks_[at_(rank)];
    for (int peer = 0; peer < size(); ++peer) {
      const EagerRounds& rounds = one.controller.eager();
      if (peer == rank || !rounds.open() || rounds.has_received(peer)) continue;
      auto& link = one.links[peer];
      while (!link.empty() && link.front().tag.position < rounds.position()) link.pop_front();
      if (link.empty() || link.front().tag.position != rounds.position()) continue;
      const Status status = one.controller.eager_received(peer, link.front().tag.slot, now);
      if (!status) wrong = status.message;
    }
    News news = one.controller.poll(now);
    for (OutgoingMessage& outgoing : news.outgoing) {
      ++letters;
      messages_[{rank, outgoing.to}].push_back(std::move(outgoing.bytes));
    }
    for (const Response& response : news.agenda) carry_out(one, response);
  }

  void carry_out(Rank& one, const Response& response) {
    if (response.kind == Kind::kLeave) {
      if (!response.status) one.ended = true;
      if (one.ended) one.waiting.clear();
      return;
    }
    if (one.ended) return;
    for (const std::string& name : response.names) {
      if (one.waiting.erase(name) == 0) wrong = "told of " + name + ", which was not asked for";
      one.done.push_back(!response.status ? name + "!" : response.eager ? name : "(" + name + ")");
      if (response.eager) take_data(one, name);
    }
  }

  void take_data(Rank& one, const std::string& name) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == one.number) continue;
      auto& link = one.links[peer];
      if (link.empty() || link.front().call != one.calls[name]) {
        wrong = "rank " + std::to_string(one.number) + " took other data for " + name;
        return;
      }
      link.pop_front();
    }
  }

  std::vector<Script> scripts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::pair<int, int>, std::deque<std::string>> messages_;
  std::map<std::pair<int, int>, std::deque<Data>> data_;
};

}  // namespace hvd::test
