#include "engine/wire.h"

#include <cstring>

namespace hvd {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

constexpr std::uint8_t kVersion = 1;

class Writer {
 public:
  Writer(char tag, std::size_t items) {
    put(kVersion);
    put(tag);
    length(items);
  }
  template <typename T>
  void put(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof value);
  }
  void length(std::size_t items) { put(static_cast<std::uint32_t>(items)); }
  void text(const std::string& value) {
    length(value.size());
    bytes_ += value;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first wrong byte everything reads as zero and ok() is false.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && at_ == bytes_.size(); }
  void refuse() { ok_ = false; }

  template <typename T>
  T get() {
    T value{};
    if (!has(sizeof value)) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  template <typename E>
  E one_of(int choices) {
    const auto value = get<std::uint8_t>();
    if (value >= choices) ok_ = false;
    return ok_ ? static_cast<E>(value) : E{};
  }
  // How many items follow, each of at least `smallest` bytes.
  std::size_t length(std::size_t smallest) {
    const std::size_t items = get<std::uint32_t>();
    return has(items * smallest) ? items : 0;
  }
  std::string text() {
    const std::size_t count = length(1);
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::size_t open(char tag, std::size_t smallest) {
    if (get<std::uint8_t>() != kVersion || get<char>() != tag) ok_ = false;
    return length(smallest);
  }

 private:
  bool has(std::size_t count) {
    if (bytes_.size() - at_ < count) ok_ = false;
    return ok_;
  }

  const std::string& bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

void write(Writer& writer, const TensorMeta& tensor) {
  writer.put(tensor.dtype);
  writer.put(static_cast<std::int32_t>(tensor.device));
  writer.put(static_cast<std::uint8_t>(tensor.shape.size()));
  for (const std::int64_t extent : tensor.shape) writer.put(extent);
}

TensorMeta read_tensor(Reader& reader) {
  TensorMeta tensor;
  tensor.dtype = reader.one_of<Dtype>(kDtypeCount);
  tensor.device = reader.get<std::int32_t>();
  tensor.shape.resize(reader.get<std::uint8_t>());
  for (std::int64_t& extent : tensor.shape) extent = reader.get<std::int64_t>();
  return tensor;
}

void write(Writer& writer, const Request& request) {
  writer.put(request.kind);
  writer.put(request.op);
  writer.put(static_cast<std::int32_t>(request.root));
  writer.put(request.prescale);
  writer.put(request.postscale);
  writer.text(request.name);
  writer.length(request.tensors.size());
  for (const TensorMeta& tensor : request.tensors) write(writer, tensor);
}

// What the rest of the engine relies on without looking.
bool well_formed(const Request& request) {
  if (request.kind == Kind::kLeave) return true;
  if (request.name.empty()) return false;
  if (request.kind == Kind::kBarrier) return true;
  if (request.tensors.empty()) return false;
  return request.kind != Kind::kAllgather || !request.tensors.front().shape.empty();
}

Request read_request(Reader& reader) {
  Request request;
  request.kind = reader.one_of<Kind>(kKindCount);
  request.op = reader.one_of<ReduceOp>(kReduceOpCount);
  request.root = reader.get<std::int32_t>();
  request.prescale = reader.get<double>();
  request.postscale = reader.get<double>();
  request.name = reader.text();
  const std::size_t tensors = reader.length(6);
  for (std::size_t i = 0; i < tensors && reader.ok(); ++i) {
    request.tensors.push_back(read_tensor(reader));
  }
  if (!well_formed(request)) reader.refuse();
  return request;
}

void write(Writer& writer, const Response& response) {
  writer.put(response.kind);
  writer.put(static_cast<std::uint8_t>(response.status.code));
  writer.put(static_cast<std::int32_t>(response.status.rank));
  writer.put(static_cast<std::int32_t>(response.rank));
  writer.text(response.status.message);
  writer.text(response.status.where);
  writer.length(response.names.size());
  for (const std::string& name : response.names) writer.text(name);
  writer.length(response.rows.size());
  for (const std::int64_t rows : response.rows) writer.put(rows);
}

Response read_response(Reader& reader) {
  Response response;
  response.kind = reader.one_of<Kind>(kKindCount);
  response.status.code = reader.one_of<Code>(static_cast<int>(Code::kInternal) + 1);
  response.status.rank = reader.get<std::int32_t>();
  response.rank = reader.get<std::int32_t>();
  response.status.message = reader.text();
  response.status.where = reader.text();
  const std::size_t names = reader.length(4);
  for (std::size_t i = 0; i < names && reader.ok(); ++i) response.names.push_back(reader.text());
  response.rows.resize(reader.length(8));
  for (std::int64_t& rows : response.rows) rows = reader.get<std::int64_t>();
  return response;
}

template <typename Item>
std::string encode_all(char tag, const std::vector<Item>& items) {
  Writer writer(tag, items.size());
  for (const Item& item : items) write(writer, item);
  return writer.take();
}

template <typename Item, typename Read>
Result<std::vector<Item>> decode_all(const std::string& bytes, char tag, const char* what,
                                     const Read& read) {
  Reader reader(bytes);
  std::vector<Item> items;
  const std::size_t count = reader.open(tag, 8);
  for (std::size_t i = 0; i < count && reader.ok(); ++i) items.push_back(read(reader));
  if (reader.at_end()) return items;
  return Status::make(Code::kInternal,
                      "a control message of " + std::to_string(bytes.size()) +
                          " bytes is not a list of " + what +
                          "; do all ranks run the same version?",
                      "engine/wire");
}

}  // namespace

std::string encode(const std::vector<Request>& requests) { return encode_all('Q', requests); }
std::string encode(const std::vector<Response>& responses) { return encode_all('R', responses); }

Result<std::vector<Request>> decode_requests(const std::string& bytes) {
  return decode_all<Request>(bytes, 'Q', "requests", read_request);
}
Result<std::vector<Response>> decode_responses(const std::string& bytes) {
  return decode_all<Response>(bytes, 'R', "responses", read_response);
}

}  // namespace hvd
