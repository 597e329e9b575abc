// Wire format of the control channel. Little-endian, no padding:
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
// Every length is checked against the remaining bytes before anything is allocated, every enum
// against its range. The reader of a message checks its ranks, sets and slots.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/message/request.h"

namespace hvd {

constexpr int kMostSlots = 1'048'576;  // of the cache; more than any real job needs

struct RequestMessage {
  Request request;
  std::vector<int>
      ranks;  // requesting ranks; empty: every member of the set in the sender's subtree
};

struct RequestList {
  std::uint64_t assignments = 0;  // of cache slots, known to the sender
  std::uint64_t changes = 0;      // of the process sets, likewise
  std::vector<std::uint64_t>
      slots;  // bits; requests of all members of the set in the sender's subtree
  std::vector<RequestMessage> full;
  // The sender has sent its data for the one slot at this position; without a slot: it will send
  // none there.
  std::optional<std::uint64_t> position;

  bool empty() const { return slots.empty() && full.empty() && !position; }
};

// A response with its recipients.
struct ResponseMessage {
  Response response;
  std::vector<int> only;      // receiving ranks; empty: all of the set
  std::vector<int> slots;     // by name: its new slot, -1: unchanged; empty: all unchanged
  std::uint64_t version = 0;  // of the first assignment among them; the others follow
};

struct Item {
  enum class Sort : std::uint8_t { kCached = 0, kAgain = 1, kResponse = 2, kVoid = 3 };
  static constexpr int kSorts = 4;

  Sort sort = Sort::kCached;
  std::vector<int> slots;     // cached: these slots are executed as one operation
  int slot = 0;               // again: this slot was out of date, request in full
  std::uint64_t version = 0;  // again: version known to the requester; void: position of an eager
                              // round for which no further data may be sent
  ResponseMessage message;
  std::size_t begin = 0, end = 0;  // its bytes in the received message
};

void append_request(std::string& bytes, const Request& request);
std::string encode(const RequestList& requests);
Result<RequestList> decode_requests(const std::string& bytes);

// Items are appended to each other, and copied into messages unchanged.
void append_cached(std::string& items, const std::vector<int>& slots);
void append_again(std::string& items, int slot, std::uint64_t version);
void append_response(std::string& items, const ResponseMessage& message);
void append_void(std::string& items, std::uint64_t position);
// rounds: number of eager rounds before it.
std::string response_list_of(const std::string& items, std::size_t count, std::uint64_t rounds = 0);
std::uint64_t rounds_before(const std::string& bytes);
Result<std::vector<Item>> decode_responses(const std::string& bytes);

}  // namespace hvd
