#include "engine/message/wire.h"

#include <utility>

#include "engine/message/wire_io.h"

namespace hvd {
namespace {

constexpr std::uint8_t kVersion = 2;
constexpr std::size_t kSmallestTensor = 14;
constexpr std::size_t kSmallestRequest = 38;

// The names of ranks and slots are int in memory and i32 on the wire.
static_assert(sizeof(int) == 4, "int is written as i32");

void write(Writer& writer, const TensorMeta& tensor) {
  writer.put(tensor.dtype);
  writer.put(static_cast<std::int32_t>(tensor.device));
  writer.put(tensor.place);
  writer.put(static_cast<std::uint8_t>(tensor.shape.size()));
  for (const std::int64_t extent : tensor.shape) writer.put(extent);
}

// Extents are not negative and their product fits, with room for sums over ranks.

TensorMeta read_tensor(Reader& reader) {
  TensorMeta tensor;
  tensor.dtype = reader.one_of<Dtype>(kDtypeCount);
  tensor.device = reader.get<std::int32_t>();
  tensor.place = reader.get<std::int64_t>();
  tensor.shape = reader.values<std::int64_t>(reader.get<std::uint8_t>());
  if (tensor.place < kPrivate || !tensor.countable()) reader.refuse();
  return tensor;
}

void write(Writer& writer, const Request& request) {
  writer.put(request.kind);
  writer.put(request.op);
  writer.put(static_cast<std::int32_t>(request.set));
  writer.put(static_cast<std::int32_t>(request.root));
  writer.put(request.prescale);
  writer.put(request.postscale);
  writer.text(request.name);
  writer.length(request.tensors.size());
  for (const TensorMeta& tensor : request.tensors) write(writer, tensor);
  writer.list(request.sizes);
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

// What the rest of the engine relies on without looking.
bool well_formed(const Request& request) {
  const bool named = request.kind != Kind::kLeave && request.kind != Kind::kPark;
  if (request.set < 0 || (named && request.name.empty())) return false;
  switch (request.kind) {
    case Kind::kLeave:
    case Kind::kBarrier:
    case Kind::kJoin:
      return true;
    case Kind::kAllreduce:
    case Kind::kBroadcast:
      return !request.tensors.empty();
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
      return request.set == 0 && request.sizes.size() == 1;
    case Kind::kTune:
      return false;
  }
  return false;
}

Request read_request(Reader& reader) {
  Request request;
  request.kind = reader.one_of<Kind>(kKindCount);
  request.op = reader.one_of<ReduceOp>(kReduceOpCount);
  request.set = reader.get<std::int32_t>();
  request.root = reader.get<std::int32_t>();
  request.prescale = reader.get<double>();
  request.postscale = reader.get<double>();
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

void write(Writer& writer, const Tunables& tunables) {
  writer.put(tunables.fusion_threshold);
  writer.put(tunables.cycle_ns);
  writer.put(static_cast<std::uint8_t>(tunables.hierarchical_allreduce));
  writer.put(static_cast<std::uint8_t>(tunables.hierarchical_allgather));
  writer.put(static_cast<std::uint8_t>(tunables.cache));
}

Tunables read_tunables(Reader& reader) {
  Tunables tunables;
  tunables.fusion_threshold = reader.get<std::int64_t>();
  tunables.cycle_ns = reader.get<std::int64_t>();
  tunables.hierarchical_allreduce = reader.flag();
  tunables.hierarchical_allgather = reader.flag();
  tunables.cache = reader.flag();
  return tunables;
}

void write(Writer& writer, const Response& response) {
  writer.put(response.kind);
  writer.put(static_cast<std::int32_t>(response.set));
  writer.put(static_cast<std::uint8_t>(response.status.code));
  writer.put(static_cast<std::int32_t>(response.status.rank));
  writer.text(response.status.message);
  writer.text(response.status.where);
  writer.put(static_cast<std::int32_t>(response.rank));
  writer.put(static_cast<std::uint8_t>(response.shared));
  writer.length(response.names.size());
  for (const std::string& name : response.names) writer.text(name);
  writer.list(response.sizes);
  writer.length(response.absent.size());
  for (const Request& request : response.absent) write(writer, request);
}

Response read_response(Reader& reader) {
  Response response;
  response.kind = reader.one_of<Kind>(kKindCount);
  response.set = reader.get<std::int32_t>();
  response.status.code = reader.one_of<Code>(kCodeCount);
  response.status.rank = reader.get<std::int32_t>();
  response.status.message = reader.text();
  response.status.where = reader.text();
  response.rank = reader.get<std::int32_t>();
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

// Slots from `least` on.
std::vector<int> read_slots(Reader& reader, int least) {
  std::vector<int> slots = reader.list<int>();
  for (const int slot : slots) {
    if (slot < least || slot >= kMostSlots) reader.refuse();
  }
  return slots;
}

ResponseMessage read_response_message(Reader& reader) {
  ResponseMessage message;
  message.response = read_response(reader);
  message.only = reader.list<int>();
  message.slots = read_slots(reader, -1);
  message.version = reader.get<std::uint64_t>();
  if (message.response.kind == Kind::kTune) message.response.tunables = read_tunables(reader);
  if (!message.slots.empty() && message.slots.size() != message.response.names.size()) {
    reader.refuse();
  }
  return message;
}

Item read_item(Reader& reader) {
  Item item;
  item.begin = reader.at();
  item.sort = reader.one_of<Item::Sort>(Item::kSorts);
  switch (item.sort) {
    case Item::Sort::kCached:
      item.slots = read_slots(reader, 0);
      if (item.slots.empty()) reader.refuse();
      break;
    case Item::Sort::kAgain:
      item.slot = reader.get<int>();
      item.version = reader.get<std::uint64_t>();
      break;
    case Item::Sort::kResponse:
      item.message = read_response_message(reader);
      break;
  }
  item.end = reader.at();
  return item;
}

void open(Writer& writer, char tag) {
  writer.put(kVersion);
  writer.put(tag);
}

void expect(Reader& reader, char tag) {
  if (reader.get<std::uint8_t>() != kVersion || reader.get<char>() != tag) reader.refuse();
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
  Writer writer(bytes);
  write(writer, request);
}

std::string encode(const RequestList& requests) {
  std::string bytes;
  bytes.reserve(64 + requests.slots.size() * 8 + requests.full.size() * 128);
  Writer writer(bytes);
  open(writer, 'Q');
  writer.put(requests.assignments);
  writer.put(requests.changes);
  std::size_t first = 0;
  while (first < requests.slots.size() && requests.slots[first] == 0) ++first;
  writer.length(first);
  writer.length(requests.slots.size() - first);
  for (std::size_t i = first; i < requests.slots.size(); ++i) writer.put(requests.slots[i]);
  writer.length(requests.full.size());
  for (const RequestMessage& ask : requests.full) {
    write(writer, ask.request);
    writer.list(ask.ranks);
  }
  return bytes;
}

Result<RequestList> decode_requests(const std::string& bytes) {
  constexpr std::size_t kMostWords = kMostSlots / 64;
  Reader reader(bytes);
  expect(reader, 'Q');
  RequestList requests;
  requests.assignments = reader.get<std::uint64_t>();
  requests.changes = reader.get<std::uint64_t>();
  const std::size_t first = reader.get<std::uint32_t>();
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
  if (!reader.at_end()) return refused(bytes, "requests");
  return requests;
}

void append_cached(std::string& items, const std::vector<int>& slots) {
  Writer writer(items);
  writer.put(Item::Sort::kCached);
  writer.list(slots);
}

void append_again(std::string& items, int slot, std::uint64_t version) {
  Writer writer(items);
  writer.put(Item::Sort::kAgain);
  writer.put(slot);
  writer.put(version);
}

void append_response(std::string& items, const ResponseMessage& message) {
  Writer writer(items);
  writer.put(Item::Sort::kResponse);
  write(writer, message.response);
  writer.list(message.only);
  writer.list(message.slots);
  writer.put(message.version);
  if (message.response.kind == Kind::kTune) write(writer, message.response.tunables);
}

std::string response_list_of(const std::string& items, std::size_t count) {
  std::string bytes;
  bytes.reserve(items.size() + 6);
  Writer writer(bytes);
  open(writer, 'R');
  writer.length(count);
  bytes += items;
  return bytes;
}

Result<std::vector<Item>> decode_responses(const std::string& bytes) {
  Reader reader(bytes);
  expect(reader, 'R');
  const std::size_t count = reader.length(5);
  std::vector<Item> items;
  for (std::size_t i = 0; i < count && reader.ok(); ++i) items.push_back(read_item(reader));
  if (!reader.at_end()) return refused(bytes, "responses");
  return items;
}

}  // namespace hvd
