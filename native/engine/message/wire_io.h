// Numbers and texts as bytes, and back.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace hvd {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

class Writer {
 public:
  explicit Writer(std::string& bytes) : bytes_(bytes) {}

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
  template <typename T>
  void list(const std::vector<T>& values) {
    length(values.size());
    if (!values.empty()) {
      bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    }
  }

 private:
  std::string& bytes_;
};

// After the first wrong byte everything reads as zero and ok() is false.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && at_ == bytes_.size(); }
  std::size_t at() const { return at_; }
  void refuse() { ok_ = false; }

  template <typename T>
  T get() {
    T value{};
    if (!has(sizeof value)) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  bool flag() {
    const auto value = get<std::uint8_t>();
    if (value > 1) refuse();
    return value == 1;
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
  template <typename T>
  std::vector<T> list() {
    return values<T>(length(sizeof(T)));
  }
  template <typename T>
  std::vector<T> values(std::size_t count) {
    if (count == 0 || !has(count * sizeof(T))) return {};
    std::vector<T> all(count);
    std::memcpy(all.data(), bytes_.data() + at_, count * sizeof(T));
    at_ += count * sizeof(T);
    return all;
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

}  // namespace hvd
