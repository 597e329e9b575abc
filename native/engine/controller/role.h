// Role of a rank by its position in the tree: rank 0 decides (coordinator.h), the other ranks send
// the requests of their subtree to their parent (tree_node.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"
#include "engine/controller/news.h"
#include "engine/message/wire.h"

namespace hvd {

class Role {
 public:
  virtual ~Role() = default;

  // Handle a request of a rank of the subtree. The entry may be erased afterwards.
  virtual void on_request(Entry& entry, std::int64_t now_ns) = 0;
  virtual void join(const Request& request, const std::vector<int>& ranks, std::int64_t now_ns) = 0;
  virtual void leave(int rank) = 0;
  // The ranks wait for the user at a prompt, or no longer. Operations that wait for them are not
  // stalled.
  virtual void park(Request request, const std::vector<int>& ranks, std::int64_t now_ns) = 0;
  // The ranks request nothing but what they list before the operations that they wait for have
  // completed (stall.h).
  virtual Status blocked(Request request, const std::vector<int>& ranks, std::int64_t now_ns) = 0;
  // An operation of `bytes` bytes has been executed.
  virtual void carried_out(std::int64_t /*bytes*/) {}
  // Operations in flight on this rank's devices.
  virtual void in_flight(const InFlight& /*in_flight*/) {}
  // Operations are held back because of those in flight on devices.
  virtual bool holds_on_devices() const { return false; }

  virtual void work(std::int64_t now_ns) = 0;  // handles what is due
  virtual std::int64_t due_in(std::int64_t now_ns) const = 0;
  // Nothing is pending besides the requests in the table.
  virtual bool idle() const { return true; }
  virtual std::vector<std::string> take_warnings() { return {}; }

  // The encoded requests for the parent; empty: none.
  virtual bool has_requests() const { return false; }
  virtual std::string take_requests() { return {}; }
  // For an eager round (eager/eager_rounds.h): send with the next requests that this rank has sent
  // its data for the entry, or that it will send none at this position.
  virtual void send_notice(Entry& /*entry*/, std::uint64_t /*position*/) {}
  virtual void send_closed(std::uint64_t /*position*/) {}
  // Rank 0: the operation of this slot was executed in an eager round.
  virtual void used(int /*slot*/) {}
  // The parent no longer knows this slot: request in full.
  virtual void again(int /*slot*/, std::uint64_t /*version*/) {}
  // A response of the parent that is already in this rank's tables.
  virtual void learned(const Response& /*response*/, std::int64_t /*now_ns*/) {}
};

}  // namespace hvd
