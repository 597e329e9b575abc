#include "engine/message/wire.h"

#include <utility>

#include "transport/socket/pack.h"

namespace hvd {
namespace {

constexpr std::uint8_t kVersion = 2;
constexpr std::size_t kSmallestTensor = 14;
constexpr std::size_t kSmallestRequest = 38;

// The names of ranks and slots are int in memory and i32 on the wire.
static_assert(sizeof(int) == 4, "int is written as i32");

void write(Packer& packer, const TensorMeta& tensor) {
  packer.number(tensor.dtype);
  packer.number(static_cast<std::int32_t>(tensor.device));
  packer.number(tensor.place);
  packer.number(static_cast<std::uint8_t>(tensor.shape.size()));
  for (const std::int64_t extent : tensor.shape) packer.number(extent);
}

// Extents are not negative and their product fits, with room for sums over ranks.
TensorMeta read_tensor(Unpacker& reader) {
  TensorMeta tensor;
  tensor.dtype = reader.one_of<Dtype>(kDtypeCount);
  tensor.device = reader.number<std::int32_t>();
  tensor.place = reader.number<std::int64_t>();
  tensor.shape = reader.values<std::int64_t>(reader.number<std::uint8_t>());
  if (tensor.place < kPrivate || !tensor.countable()) reader.refuse();
  return tensor;
}

void write(Packer& packer, const Request& request) {
  packer.number(request.kind);
  packer.number(request.op);
  packer.number(static_cast<std::int32_t>(request.set));
  packer.number(static_cast<std::int32_t>(request.root));
  packer.number(request.prescale);
  packer.number(request.postscale);
  packer.text(request.name);
  packer.length(request.tensors.size());
  for (const TensorMeta& tensor : request.tensors) write(packer, tensor);
  packer.list(request.sizes);
}

bool has_rows(const Request& request) {
  for (const TensorMeta& tensor : request.tensors) {
    if (tensor.shape.empty()) return false;
  }
  return true;
}

bool no_negative(const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t size : sizes) {
    if (size < 0) return false;
  }
  return true;
}

// Invariants that the rest of the engine relies on without checks.
bool well_formed(const Request& request) {
  const bool named =
      request.kind != Kind::kLeave && request.kind != Kind::kPark && request.kind != Kind::kBlocked;
  if (request.set < 0 || (named && request.name.empty())) return false;
  switch (request.kind) {
    case Kind::kLeave:
    case Kind::kBarrier:
    case Kind::kJoin:
      return true;
    case Kind::kAllreduce:
    case Kind::kBroadcast:
      return !request.tensors.empty();
    case Kind::kSend:
      return !request.tensors.empty() && request.sizes.size() == 1;
    case Kind::kAllgather:
    case Kind::kReducescatter:
      return !request.tensors.empty() && has_rows(request);
    case Kind::kAlltoall:
      return request.tensors.size() == 1 && has_rows(request) && no_negative(request.sizes);
    case Kind::kAddSet:
      return request.set == 0 && !request.sizes.empty();
    case Kind::kRemoveSet:
    case Kind::kAllocate:
    case Kind::kRelease:
    case Kind::kPark:
    case Kind::kProbe:
      return request.set == 0 && request.sizes.size() == 1;
    case Kind::kBlocked:  // checked further by its reader
      return request.set == 0 && request.sizes.size() >= 2;
    case Kind::kTune:
      return false;
  }
  return false;
}

Request read_request(Unpacker& reader) {
  Request request;
  request.kind = reader.one_of<Kind>(kKindCount);
  request.op = reader.one_of<ReduceOp>(kReduceOpCount);
  request.set = reader.number<std::int32_t>();
  request.root = reader.number<std::int32_t>();
  request.prescale = reader.number<double>();
  request.postscale = reader.number<double>();
  request.name = reader.text();
  const std::size_t tensors = reader.length(kSmallestTensor);
  request.tensors.reserve(tensors);
  for (std::size_t i = 0; i < tensors && reader.ok(); ++i) {
    request.tensors.push_back(read_tensor(reader));
  }
  request.sizes = reader.list<std::int64_t>();
  if (!well_formed(request)) reader.refuse();
  return request;
}

void write(Packer& packer, const Tunables& tunables) {
  packer.number(tunables.fusion_threshold);
  packer.number(tunables.cycle_ns);
  packer.flag(tunables.hierarchical_allreduce);
  packer.flag(tunables.hierarchical_allgather);
  packer.flag(tunables.cache);
}

Tunables read_tunables(Unpacker& reader) {
  Tunables tunables;
  tunables.fusion_threshold = reader.number<std::int64_t>();
  tunables.cycle_ns = reader.number<std::int64_t>();
  tunables.hierarchical_allreduce = reader.flag();
  tunables.hierarchical_allgather = reader.flag();
  tunables.cache = reader.flag();
  return tunables;
}

void write(Packer& packer, const Response& response) {
  packer.number(response.kind);
  packer.number(static_cast<std::int32_t>(response.set));
  packer.number(static_cast<std::uint8_t>(response.status.code));
  packer.number(static_cast<std::int32_t>(response.status.rank));
  packer.text(response.status.message);
  packer.text(response.status.where);
  packer.number(static_cast<std::int32_t>(response.rank));
  packer.flag(response.shared);
  packer.length(response.names.size());
  for (const std::string& name : response.names) packer.text(name);
  packer.list(response.sizes);
  packer.length(response.absent.size());
  for (const Request& request : response.absent) write(packer, request);
}

Response read_response(Unpacker& reader) {
  Response response;
  response.kind = reader.one_of<Kind>(kKindCount);
  response.set = reader.number<std::int32_t>();
  response.status.code = reader.one_of<Code>(kCodeCount);
  response.status.rank = reader.number<std::int32_t>();
  response.status.message = reader.text();
  response.status.where = reader.text();
  response.rank = reader.number<std::int32_t>();
  response.shared = reader.flag();
  const std::size_t names = reader.length(4);
  response.names.reserve(names);
  for (std::size_t i = 0; i < names && reader.ok(); ++i) response.names.push_back(reader.text());
  response.sizes = reader.list<std::int64_t>();
  const std::size_t absent = reader.length(kSmallestRequest);
  for (std::size_t i = 0; i < absent && reader.ok(); ++i) {
    response.absent.push_back(read_request(reader));
  }
  if (!response.absent.empty() && response.absent.size() != names) reader.refuse();
  return response;
}

// Slots, each at least `least`.
std::vector<int> read_slots(Unpacker& reader, int least) {
  std::vector<int> slots = reader.list<int>();
  for (const int slot : slots) {
    if (slot < least || slot >= kMostSlots) reader.refuse();
  }
  return slots;
}

ResponseMessage read_response_message(Unpacker& reader) {
  ResponseMessage message;
  message.response = read_response(reader);
  message.only = reader.list<int>();
  message.slots = read_slots(reader, -1);
  message.version = reader.number<std::uint64_t>();
  if (message.response.kind == Kind::kTune) message.response.tunables = read_tunables(reader);
  if (!message.slots.empty() && message.slots.size() != message.response.names.size()) {
    reader.refuse();
  }
  return message;
}

Item read_item(Unpacker& reader) {
  Item item;
  item.begin = reader.at();
  item.sort = reader.one_of<Item::Sort>(Item::kSorts);
  switch (item.sort) {
    case Item::Sort::kCached:
      item.slots = read_slots(reader, 0);
      if (item.slots.empty()) reader.refuse();
      break;
    case Item::Sort::kAgain:
      item.slot = reader.number<int>();
      item.version = reader.number<std::uint64_t>();
      break;
    case Item::Sort::kVoid:
      item.version = reader.number<std::uint64_t>();
      break;
    case Item::Sort::kResponse:
      item.message = read_response_message(reader);
      break;
  }
  item.end = reader.at();
  return item;
}

void open(Packer& packer, char tag) {
  packer.number(kVersion);
  packer.number(tag);
}

// The tag `plain`, or `numbered` followed by a number of eager rounds.
std::optional<std::uint64_t> expect(Unpacker& reader, char plain, char numbered) {
  const bool known = reader.number<std::uint8_t>() == kVersion;
  const char tag = reader.number<char>();
  if (!known || (tag != plain && tag != numbered)) reader.refuse();
  if (!reader.ok() || tag == plain) return std::nullopt;
  return reader.number<std::uint64_t>();
}

Status refused(const std::string& bytes, const char* what) {
  return Status::make(Code::kInternal,
                      "a control message of " + std::to_string(bytes.size()) +
                          " bytes is not a list of " + what +
                          "; do all ranks run the same version?",
                      "engine/wire");
}

}  // namespace

void append_request(std::string& bytes, const Request& request) {
  Packer packer(bytes);
  write(packer, request);
}

std::string encode(const RequestList& requests) {
  std::string bytes;
  bytes.reserve(64 + requests.slots.size() * 8 + requests.full.size() * 128);
  Packer packer(bytes);
  open(packer, requests.position ? 'E' : 'Q');
  if (requests.position) packer.number(*requests.position);
  packer.number(requests.assignments);
  packer.number(requests.changes);
  std::size_t first = 0;
  while (first < requests.slots.size() && requests.slots[first] == 0) ++first;
  packer.length(first);
  packer.length(requests.slots.size() - first);
  for (std::size_t i = first; i < requests.slots.size(); ++i) packer.number(requests.slots[i]);
  packer.length(requests.full.size());
  for (const RequestMessage& message : requests.full) {
    write(packer, message.request);
    packer.list(message.ranks);
  }
  return bytes;
}

Result<RequestList> decode_requests(const std::string& bytes) {
  constexpr std::size_t kMostWords = kMostSlots / 64;
  Unpacker reader(bytes);
  RequestList requests;
  requests.position = expect(reader, 'Q', 'E');
  requests.assignments = reader.number<std::uint64_t>();
  requests.changes = reader.number<std::uint64_t>();
  const std::size_t first = reader.number<std::uint32_t>();
  const auto words = reader.list<std::uint64_t>();
  if (first + words.size() > kMostWords) reader.refuse();
  if (reader.ok() && !words.empty()) {
    requests.slots.resize(first);
    requests.slots.insert(requests.slots.end(), words.begin(), words.end());
  }
  const std::size_t count = reader.length(kSmallestRequest + 4);
  requests.full.reserve(count);
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    Request request = read_request(reader);
    requests.full.push_back({std::move(request), reader.list<int>()});
  }
  if (!reader.complete()) return refused(bytes, "requests");
  return requests;
}

void append_cached(std::string& items, const std::vector<int>& slots) {
  Packer packer(items);
  packer.number(Item::Sort::kCached);
  packer.list(slots);
}

void append_again(std::string& items, int slot, std::uint64_t version) {
  Packer packer(items);
  packer.number(Item::Sort::kAgain);
  packer.number(slot);
  packer.number(version);
}

void append_response(std::string& items, const ResponseMessage& message) {
  Packer packer(items);
  packer.number(Item::Sort::kResponse);
  write(packer, message.response);
  packer.list(message.only);
  packer.list(message.slots);
  packer.number(message.version);
  if (message.response.kind == Kind::kTune) write(packer, message.response.tunables);
}

void append_void(std::string& items, std::uint64_t position) {
  Packer packer(items);
  packer.number(Item::Sort::kVoid);
  packer.number(position);
}

std::string response_list_of(const std::string& items, std::size_t count, std::uint64_t rounds) {
  std::string bytes;
  bytes.reserve(items.size() + 14);
  Packer packer(bytes);
  open(packer, rounds > 0 ? 'S' : 'R');
  if (rounds > 0) packer.number(rounds);
  packer.length(count);
  bytes += items;
  return bytes;
}

Result<std::vector<Item>> decode_responses(const std::string& bytes) {
  Unpacker reader(bytes);
  expect(reader, 'R', 'S');
  const std::size_t count = reader.length(5);
  std::vector<Item> items;
  for (std::size_t i = 0; i < count && reader.ok(); ++i) items.push_back(read_item(reader));
  if (!reader.complete()) return refused(bytes, "responses");
  return items;
}

std::uint64_t rounds_before(const std::string& bytes) {
  Unpacker reader(bytes);
  return expect(reader, 'R', 'S').value_or(0);
}

}  // namespace hvd
