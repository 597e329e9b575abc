// Fixed-layout, little-endian messages between ranks. The reader checks every bound and never
// trusts a length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace hvd {

class Packer {
 public:
  template <typename T>
  Packer& number(T value) {
    static_assert(std::is_integral_v<T>);
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(bits & 0xFFU));
      bits = static_cast<std::make_unsigned_t<T>>(static_cast<std::uint64_t>(bits) >> 8U);
    }
    return *this;
  }
  Packer& text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    return raw(value);
  }
  Packer& raw(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first field that does not fit everything reads as zero or empty, and ok() is false.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_integral_v<T>);
    const std::string_view field = raw(sizeof(T));
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < field.size(); ++i)
      bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(field[i])) << (8 * i);
    return static_cast<T>(bits);
  }
  std::string text() { return std::string(raw(number<std::uint32_t>())); }
  std::string_view raw(std::size_t bytes) {
    if (!ok_ || bytes > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view field = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return field;
  }
  bool ok() const { return ok_; }
  bool complete() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace hvd
