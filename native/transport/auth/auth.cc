#include "transport/auth/auth.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "transport/socket/pack.h"
#include "transport/socket/socket.h"

namespace hvd {

namespace {

constexpr std::size_t kBlock = 64;

constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;
constexpr State kStart{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t turned(std::uint32_t x, unsigned by) { return (x >> by) | (x << (32U - by)); }

std::uint32_t big_endian(std::string_view bytes) {
  std::uint32_t word = 0;
  for (const char c : bytes.substr(0, 4)) word = word << 8U | static_cast<unsigned char>(c);
  return word;
}

std::string big_endian(std::uint64_t value, unsigned bytes) {
  std::string text;
  for (unsigned i = bytes; i-- > 0;) text += static_cast<char>(value >> (8 * i) & 0xFFU);
  return text;
}

void absorb(State& state, std::string_view block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(block.substr(4 * i));
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ (w[i - 15] >> 3U);
    const std::uint32_t s1 = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ (w[i - 2] >> 10U);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25);
    const std::uint32_t one = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = turned(a, 2) ^ turned(a, 13) ^ turned(a, 22);
    const std::uint32_t two = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const State sum{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += sum[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  State state = kStart;
  for (; bytes.size() >= kBlock; bytes.remove_prefix(kBlock)) absorb(state, bytes);
  std::string last(bytes);
  last += '\x80';
  while (last.size() % kBlock != kBlock - 8) last += '\0';
  last += big_endian(bits, 8);
  for (std::string_view rest = last; !rest.empty(); rest.remove_prefix(kBlock)) absorb(state, rest);
  std::string digest;
  for (const std::uint32_t word : state) digest += big_endian(word, 4);
  return digest;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string padded(key.size() > kBlock ? sha256(key) : key);
  padded.resize(kBlock, '\0');
  std::string inner, outer;
  for (const char c : padded) {
    inner += static_cast<char>(static_cast<unsigned char>(c) ^ 0x36U);
    outer += static_cast<char>(static_cast<unsigned char>(c) ^ 0x5cU);
  }
  return sha256(outer + sha256(inner.append(message)));
}

bool same_bytes(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned>(static_cast<unsigned char>(b[i]));
  return difference == 0;
}

namespace {

constexpr std::uint32_t kMagic = 0x68766441;
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kNonceBytes = 16;
constexpr std::size_t kClaimBytes = 16;
static_assert(kClaimBytes + kNonceBytes + kHashBytes == kMostOfStranger);

std::string packed(const Claim& claim) {
  return Packer()
      .number(kMagic)
      .number(kVersion)
      .number(claim.purpose)
      .number(claim.stream)
      .number(claim.rank)
      .number(claim.to)
      .take();
}

std::optional<Claim> unpacked(std::string_view bytes) {
  Unpacker reader(bytes);
  const bool ours =
      reader.number<std::uint32_t>() == kMagic && reader.number<std::uint16_t>() == kVersion;
  Claim claim;
  claim.purpose = reader.number<std::uint8_t>();
  claim.stream = reader.number<std::uint8_t>();
  claim.rank = reader.number<std::int32_t>();
  claim.to = reader.number<std::int32_t>();
  if (!ours || !reader.complete()) return std::nullopt;
  return claim;
}

}  // namespace

std::string connection_key(const std::string& secret, const std::string& token) {
  return hmac_sha256(secret, "hvd connection " + token);
}

Result<Handshake> Handshake::caller(const Claim& claim, std::string key) {
  Result<std::string> nonce = random_bytes(kNonceBytes);
  if (!nonce.is_ok()) return nonce.status();
  Handshake handshake;
  handshake.calls_ = true;
  handshake.claim_ = claim;
  handshake.key_ = std::move(key);
  handshake.packed_claim_ = packed(claim);
  handshake.my_nonce_ = nonce.take();
  handshake.opening_ = handshake.packed_claim_ + handshake.my_nonce_;
  handshake.wanted_ = kNonceBytes;
  return handshake;
}

Result<Handshake> Handshake::listener(KeyFor key_for) {
  Result<std::string> nonce = random_bytes(kNonceBytes);
  if (!nonce.is_ok()) return nonce.status();
  Handshake handshake;
  handshake.key_for_ = std::move(key_for);
  handshake.my_nonce_ = nonce.take();
  handshake.wanted_ = kClaimBytes + kNonceBytes;
  return handshake;
}

std::string Handshake::feed(std::string_view bytes) {
  if (state_ != State::kTalking) return "";
  received_.append(bytes.substr(0, wanted()));
  if (wanted() != 0) return "";
  std::string message;
  message.swap(received_);
  return step(message);
}

std::string Handshake::step(std::string_view message) {
  const bool first = step_++ == 0;
  if (calls_ && first) {
    its_nonce_ = message;
    wanted_ = kHashBytes;
    return proof("caller");
  }
  if (first) {
    const std::optional<Claim> claim = unpacked(message.substr(0, kClaimBytes));
    std::optional<std::string> key = claim ? key_for_(*claim) : std::nullopt;
    if (!key) return refuse();
    claim_ = *claim;
    key_ = std::move(*key);
    packed_claim_ = message.substr(0, kClaimBytes);
    its_nonce_ = message.substr(kClaimBytes);
    wanted_ = kHashBytes;
    return my_nonce_;
  }
  heard_proof_ = true;
  wanted_ = 0;
  if (!same_bytes(message, proof(calls_ ? "listener" : "caller"))) return refuse();
  state_ = State::kDone;
  return calls_ ? "" : proof("listener");
}

// A caller with the wrong key receives a refusal instead of a closed connection.
std::string Handshake::refuse() {
  state_ = State::kRefused;
  wanted_ = 0;
  return calls_ || !heard_proof_ ? "" : std::string(kHashBytes, '\0');
}

std::string Handshake::proof(const char* direction) const {
  const std::string& callers = calls_ ? my_nonce_ : its_nonce_;
  const std::string& listeners = calls_ ? its_nonce_ : my_nonce_;
  return hmac_sha256(key_,
                     std::string("hvd ") + direction + " " + packed_claim_ + callers + listeners);
}

bool same_user(const Fd& socket) {
  const Result<Credentials> who = peer_of(socket);
  return who.is_ok() && who.value().uid == ::geteuid();
}

bool converse(const Fd& socket, Handshake& handshake) {
  while (handshake.state() == Handshake::State::kTalking) {
    std::array<char, kMostOfStranger> part{};
    const ssize_t got = ::recv(socket.get(), part.data(), handshake.wanted(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) return true;
    if (got <= 0) return false;
    const std::string answer =
        handshake.feed(std::string_view(part.data(), static_cast<std::size_t>(got)));
    // This always fits into the buffer of a new connection.
    if (!answer.empty() && !send_all(socket, answer, Deadline::after_seconds(0))) return false;
  }
  return true;
}

}  // namespace hvd
