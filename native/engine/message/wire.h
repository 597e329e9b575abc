// Wire format: what ranks say to each other on the control channel, and its bytes. Little-endian,
// no padding:
//   message         u8 version, u8 tag ('Q' a request list, up the tree | 'E' of an eager round
//                   (eager/eager_rounds.h): u64 position, request list | 'R' a response list, down
//                   the tree | 'S' u64 rounds, response list), then that list
//   request list    u64 assignments, u64 changes, u32 first word, u32 n, n x u64 bits, u32 n, n
//                   request messages request message a request, u32 n, n x i32 rank
//   request         u8 kind, u8 op, i32 set, i32 root, f64 prescale, f64 postscale, text name, u32
//                   n, n tensors, u32 n, n x i64 size
//   tensor          u8 dtype, i32 device, i64 place, u8 n, n x i64 extent
//   response list   u32 n, n items, each a u8 sort and
//     cached        u32 n, n x u32 slot
//     again         u32 slot, u64 version
//     void          u64 position
//     response      u8 kind, i32 set, u8 code, i32 status rank, text message, text where, i32 rank,
//                   u8 shared, u32 n, n x text name, u32 n, n x i64 size, u32 n, n requests, u32 n,
//                   n x i32 rank, u32 n, n x i32 slot, u64 version, and of a TUNE: i64 threshold,
//                   i64 cycle, 3 x u8
//   text            u32 n, n bytes
// Every length is checked against what is left before anything is allocated; every enum against its
// range. What a message says about ranks, sets and slots is for its reader to check.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/message/request.h"

namespace hvd {

constexpr int kMostSlots = 1'048'576;  // of the cache; more than any real job asks for

struct RequestMessage {
  Request request;
  std::vector<int> ranks;  // who asks; empty: every member of the set in the sender's subtree
};

struct RequestList {
  std::uint64_t assignments = 0;     // of cache slots, as far as the sender knew them
  std::uint64_t changes = 0;         // of the process sets, likewise
  std::vector<std::uint64_t> slots;  // bits; every member of the set in the sender's subtree asks
  std::vector<RequestMessage> full;
  // The sender's data for the one slot have been sent at this position; without a slot: there it
  // will send none.
  std::optional<std::uint64_t> position;

  bool empty() const { return slots.empty() && full.empty() && !position; }
};

// A response on its way.
struct ResponseMessage {
  Response response;
  std::vector<int> only;      // ranks it is for; empty: all of the set
  std::vector<int> slots;     // by name: its slot from now on, -1: as before; empty: all as before
  std::uint64_t version = 0;  // of the first assignment among them; the others follow
};

struct Item {
  enum class Sort : std::uint8_t { kCached = 0, kAgain = 1, kResponse = 2, kVoid = 3 };
  static constexpr int kSorts = 4;

  Sort sort = Sort::kCached;
  std::vector<int> slots;     // cached: what was agreed on under these numbers, as one operation
  int slot = 0;               // again: this number was out of date, ask in full
  std::uint64_t version = 0;  // again: what the asker knew; void: the position of an eager round
                              // for which who has not sent its data is to send none
  ResponseMessage message;
  std::size_t begin = 0, end = 0;  // its bytes in the message it came in
};

void append_request(std::string& bytes, const Request& request);
std::string encode(const RequestList& requests);
Result<RequestList> decode_requests(const std::string& bytes);

// Items are written one behind the other, and put into messages as they are.
void append_cached(std::string& items, const std::vector<int>& slots);
void append_again(std::string& items, int slot, std::uint64_t version);
void append_response(std::string& items, const ResponseMessage& message);
void append_void(std::string& items, std::uint64_t position);
// rounds: so many eager ones come before.
std::string response_list_of(const std::string& items, std::size_t count, std::uint64_t rounds = 0);
std::uint64_t rounds_before(const std::string& bytes);
Result<std::vector<Item>> decode_responses(const std::string& bytes);

}  // namespace hvd
