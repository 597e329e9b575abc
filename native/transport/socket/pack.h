// Serialisation of all messages between ranks: numbers, texts and lists as bytes. Little-endian, no
// padding; texts and lists begin with a u32 length. The reader checks every bound and never trusts
// a length.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hvd {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

// Numbers include enums, but not bool, whose representation is not portable.
template <typename T>
constexpr bool kPackable =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || std::is_enum_v<T>;

class Packer {
 public:
  Packer() : bytes_(own_) {}
  // Appends to `bytes`.
  explicit Packer(std::string& bytes) : bytes_(bytes) {}
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  template <typename T>
  Packer& number(T value) {
    static_assert(kPackable<T>);
    char field[sizeof value];
    std::memcpy(field, &value, sizeof value);
    bytes_.append(field, sizeof value);
    return *this;
  }
  Packer& flag(bool value) { return number(static_cast<std::uint8_t>(value)); }
  Packer& length(std::size_t items) { return number(static_cast<std::uint32_t>(items)); }
  Packer& text(std::string_view value) { return length(value.size()).raw(value); }
  template <typename T>
  Packer& list(const std::vector<T>& values) {
    static_assert(kPackable<T>);
    length(values.size());
    return raw({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
  }
  Packer& raw(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string own_;
  std::string& bytes_;
};

// After the first invalid field everything reads as zero or empty, and ok() is false. The bytes
// must outlive it.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool complete() const { return ok_ && at_ == bytes_.size(); }
  std::size_t at() const { return at_; }
  // Called by readers for values that are invalid to them.
  void refuse() { ok_ = false; }

  template <typename T>
  T number() {
    static_assert(kPackable<T>);
    T value{};
    raw(sizeof value).copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  bool flag() { return one_of<std::uint8_t>(2) == 1; }
  // A u8 below `choices`.
  template <typename E>
  E one_of(int choices) {
    const auto value = number<std::uint8_t>();
    if (value >= choices) refuse();
    return ok_ ? static_cast<E>(value) : E{};
  }
  // The number of following items, each of at least `smallest` bytes.
  std::size_t length(std::size_t smallest) {
    const std::size_t items = number<std::uint32_t>();
    return has(items * smallest) ? items : 0;
  }
  std::string text() { return std::string(raw(number<std::uint32_t>())); }
  template <typename T>
  std::vector<T> list() {
    return values<T>(length(sizeof(T)));
  }
  template <typename T>
  std::vector<T> values(std::size_t count) {
    static_assert(kPackable<T>);
    const std::string_view field = raw(count * sizeof(T));
    std::vector<T> all(field.size() / sizeof(T));
    if (!all.empty()) std::memcpy(all.data(), field.data(), field.size());
    return all;
  }
  std::string_view raw(std::size_t bytes) {
    if (!has(bytes)) return {};
    at_ += bytes;
    return bytes_.substr(at_ - bytes, bytes);
  }

 private:
  bool has(std::size_t bytes) {
    if (bytes_.size() - at_ < bytes) ok_ = false;
    return ok_;
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace hvd
