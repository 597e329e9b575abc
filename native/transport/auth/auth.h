// Authentication of the other end of a new connection, and the hash that it needs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"

namespace hvd {

// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, so that the core links no library for them.
constexpr std::size_t kHashBytes = 32;

std::string sha256(std::string_view bytes);  // 32 bytes, not hexadecimal
std::string hmac_sha256(std::string_view key, std::string_view message);

// Constant time.
bool same_bytes(std::string_view a, std::string_view b);

// The handshake, before anything else is read from a connection.
//   caller     connects and makes a claim: its rank, the rank it wants to reach, the purpose
//   listener   accepts; reads at most 64 bytes of an unauthenticated caller, proves nothing to it
//   key        known to both: derived from the ranks' shared secret and the listener's token
// Four messages, each of fixed length:
//   caller     32  claim, nonce            listener   16  nonce
//   caller     32  proof                   listener   32  proof; zeros: refused
// A proof is an HMAC over both nonces, the claim and the direction: it cannot be replayed,
// reflected or carried to another connection.
// Both sides are state machines that are fed with bytes, so that one thread can serve many.

constexpr std::size_t kMostOfStranger = 64;

struct Claim {
  std::int32_t rank = -1;
  std::int32_t to = -1;  // the rank to reach; for the bootstrap: the size
  std::uint8_t purpose = 0;
  std::uint8_t stream = 0;
};

class Handshake {
 public:
  enum class State { kTalking, kDone, kRefused };

  // The key for a caller's claim; nullopt: such a caller is not expected here.
  using KeyFor = std::function<std::optional<std::string>(const Claim&)>;

  static Result<Handshake> caller(const Claim& claim, std::string key);
  static Result<Handshake> listener(KeyFor key_for);

  // Number of bytes that it waits for: never read more, because later bytes are not its own.
  std::size_t wanted() const { return wanted_ - received_.size(); }
  // Handle received bytes, at most wanted(); return the bytes to send.
  std::string feed(std::string_view bytes);
  std::string opening() const { return opening_; }  // the caller's first bytes
  State state() const { return state_; }
  const Claim& claim() const { return claim_; }  // on the listener: valid only when done
  // The caller received the complete answer, but the listener does not know the key, or refused
  // ours.
  bool unproven() const { return state_ == State::kRefused && heard_proof_; }

 private:
  Handshake() = default;
  std::string step(std::string_view message);
  std::string proof(const char* direction) const;
  std::string refuse();

  bool calls_ = false;
  KeyFor key_for_;
  Claim claim_;
  std::string key_, packed_claim_, opening_;
  std::string my_nonce_, its_nonce_;
  std::string received_;
  std::size_t wanted_ = 0;
  int step_ = 0;
  State state_ = State::kTalking;
  bool heard_proof_ = false;
};

// The key of a listener's connections, from the ranks' secret (may be empty) and the listener's
// token.
std::string connection_key(const std::string& secret, const std::string& token);

// True if the peer of a unix socket has the same user.
bool same_user(const Fd& socket);

// Pass available bytes between a nonblocking socket and the handshake. False: the socket was
// closed.
bool converse(const Fd& socket, Handshake& handshake);

}  // namespace hvd
