#include "transport/auth/auth.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "transport/auth/sha256.h"
#include "transport/socket/pack.h"
#include "transport/socket/socket.h"

namespace hvd {
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
