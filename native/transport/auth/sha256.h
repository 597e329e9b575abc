// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, so that the core links no library for them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

constexpr std::size_t kHashBytes = 32;

std::string sha256(std::string_view bytes);  // 32 bytes, not hexadecimal
std::string hmac_sha256(std::string_view key, std::string_view message);

// Constant time.
bool same_bytes(std::string_view a, std::string_view b);

}  // namespace hvd
