// SHA-256 and HMAC against known values, the handshake message by message, the handshake acceptor
// with strangers in it.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "ranks.h"
#include "transport/auth/auth.h"
#include "transport/auth/handshake_acceptor.h"
#include "transport/socket/socket.h"

using namespace hvd;

namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4U];
    text += "0123456789abcdef"[static_cast<unsigned char>(c) & 15U];
  }
  return text;
}

Handshake listener_with(const std::string& key) {
  return Handshake::listener([key](const Claim&) { return std::optional<std::string>(key); })
      .take();
}

// Carries the messages across; `spoil` may change each of them, numbered from 0.
void talk(Handshake& caller, Handshake& listener,
          const std::function<void(int, std::string&)>& spoil = {}) {
  std::string message = caller.opening();
  for (int number = 0; !message.empty(); ++number) {
    if (spoil) spoil(number, message);
    message = (number % 2 == 0 ? listener : caller).feed(message);
  }
}

const Claim kClaim{3, 1, 2, 5};
using State = Handshake::State;

}  // namespace

TEST_CASE("auth: SHA-256 equals FIPS 180-4 and hashlib") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(std::string(1'000'000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string digests;  // all lengths around the borders of a block
  for (std::size_t n = 0; n < 200; ++n) digests += sha256(std::string(n, static_cast<char>(n)));
  CHECK(hex(sha256(digests)) == "6f979b0f53f1f6efc88ce8829b3e9c0d7711e102a3cfe31394c5d6c3232047ad");
}

TEST_CASE("auth: HMAC equals RFC 4231") {
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string key;
  for (char c = 1; c <= 25; ++c) key += c;
  CHECK(hex(hmac_sha256(key, std::string(50, '\xcd'))) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'),
                        "This is a test using a larger than block-size key and a larger than "
                        "block-size data. The key needs to be hashed before being used by the "
                        "HMAC algorithm.")) ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("auth: bytes are compared whole") {
  CHECK(same_bytes("", ""));
  CHECK(same_bytes("abc", "abc"));
  CHECK_FALSE(same_bytes("abc", "abd"));
  CHECK_FALSE(same_bytes("abc", "xbc"));
  CHECK_FALSE(same_bytes("abc", "abcd"));
}

TEST_CASE("auth: peers with the key accept each other, for every division of the bytes") {
  for (const std::size_t piece : {1U, 7U, 64U}) {
    Handshake caller = Handshake::caller(kClaim, "key").take();
    Handshake listener = listener_with("key");
    std::string for_listener = caller.opening(), for_caller;
    while (!for_listener.empty() || !for_caller.empty()) {
      const std::size_t n = std::min({piece, for_listener.size(), listener.wanted()});
      for_caller += listener.feed(std::string_view(for_listener).substr(0, n));
      for_listener.erase(0, n);
      const std::size_t m = std::min({piece, for_caller.size(), caller.wanted()});
      for_listener += caller.feed(std::string_view(for_caller).substr(0, m));
      for_caller.erase(0, m);
    }
    CHECK(caller.state() == State::kDone);
    CHECK(listener.state() == State::kDone);
    CHECK(listener.claim().rank == 3);
    CHECK(listener.claim().to == 1);
    CHECK(listener.claim().purpose == 2);
    CHECK(listener.claim().stream == 5);
  }
}

TEST_CASE("auth: another key, a secret more or a secret less is refused on both sides") {
  const std::string token = "token";
  for (const auto& [callers, listeners] :
       std::vector<std::pair<std::string, std::string>>{{"a", "b"}, {"", "b"}, {"a", ""}}) {
    Handshake caller = Handshake::caller(kClaim, connection_key(callers, token)).take();
    Handshake listener = listener_with(connection_key(listeners, token));
    talk(caller, listener);
    CHECK(listener.state() == State::kRefused);
    CHECK(caller.state() == State::kRefused);
    CHECK(caller.unproven());
  }
}

TEST_CASE("auth: every changed bit of every message ends in a refusal") {
  for (int message = 0; message < 4; ++message) {
    Handshake measure = Handshake::caller(kClaim, "key").take();
    const std::size_t lengths[] = {measure.opening().size(), 16, 32, 32};
    for (std::size_t bit = 0; bit < lengths[message] * 8; ++bit) {
      Handshake caller = Handshake::caller(kClaim, "key").take();
      Handshake listener = listener_with("key");
      talk(caller, listener, [&](int number, std::string& bytes) {
        if (number == message) bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      });
      CAPTURE(message);
      CAPTURE(bit);
      REQUIRE(caller.state() != State::kDone);
      REQUIRE((message == 3 || listener.state() == State::kRefused));
    }
  }
}

TEST_CASE("auth: a proof is invalid in another conversation, and when reflected") {
  Handshake caller = Handshake::caller(kClaim, "key").take();
  Handshake listener = listener_with("key");
  std::vector<std::string> said;
  talk(caller, listener, [&](int, std::string& bytes) { said.push_back(bytes); });
  REQUIRE(said.size() == 4);
  Handshake second = listener_with("key");  // the caller's words again
  CHECK_FALSE(second.feed(said[0]).empty());
  CHECK(second.feed(said[2]) == std::string(32, '\0'));
  CHECK(second.state() == State::kRefused);
  Handshake third = Handshake::caller(kClaim, "key").take();  // its own proof as the answer
  const std::string proof = third.feed(said[1]);
  third.feed(proof);
  CHECK(third.state() == State::kRefused);
}

TEST_CASE("auth: only 64 bytes of a stranger are read, and no proof is sent") {
  Handshake listener = listener_with("key");
  std::size_t read = 0, heard = 0;
  while (listener.wanted() > 0) {
    const std::size_t n = listener.wanted();
    heard += listener.feed(std::string(n, 'x')).size();
    read += n;
  }
  CHECK(read <= kMostOfStranger);
  CHECK(heard == 0);
  Handshake caller = Handshake::caller(kClaim, "guess").take();
  Handshake again = listener_with("key");
  read = again.wanted();
  again.feed(caller.opening());
  read += again.wanted();
  CHECK(again.feed(std::string(32, 'y')) == std::string(32, '\0'));
  CHECK(read == kMostOfStranger);
}

TEST_CASE("auth: a hundred silent strangers do not keep a rank out") {
  Result<Fd> listener = listen_tcp("127.0.0.1", 0, 256);
  REQUIRE(listener.is_ok());
  const std::uint16_t port = bound_port(listener.value());
  const Deadline deadline = Deadline::after_seconds(40);
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) {
    Result<Fd> stranger = connect_tcp("127.0.0.1", port, deadline);
    REQUIRE(stranger.is_ok());
    if (i % 3 == 1) CHECK(send_all(stranger.value(), "half a hello", deadline));
    if (i % 3 == 2) CHECK(send_all(stranger.value(), std::string(500, 'g'), deadline));
    strangers.push_back(stranger.take());
  }
  HandshakeAcceptor here, there;
  here.listen(listener.take(), false,
              [](const Claim&) { return std::optional<std::string>("key"); });
  Result<Fd> honest = connect_tcp("127.0.0.1", port, deadline);
  REQUIRE(honest.is_ok());
  REQUIRE(there.call(7, honest.take(), kClaim, "key"));
  Connection caller, callee;  // one after the other, the silent ones would take two seconds each
  while ((!caller.socket || !callee.socket) && !deadline.expired()) {
    for (HandshakeAcceptor* acceptor : {&here, &there}) {
      auto connections = acceptor->wait(Deadline::after_seconds(0.01));
      REQUIRE(connections.is_ok());
      for (Connection& connection : connections.value())
        (acceptor == &here ? callee : caller) = std::move(connection);
    }
  }
  REQUIRE(caller.socket);
  REQUIRE(callee.socket);
  CHECK(caller.call == 7);
  CHECK(callee.claim.rank == 3);
  REQUIRE(send_all(caller.socket, "data", deadline));
  const Result<std::string> data = receive_all(callee.socket, 4, deadline);
  REQUIRE(data.is_ok());
  CHECK(data.value() == "data");
}

TEST_CASE("auth: an acceptor reports another key, or a closed connection") {
  Result<Fd> listener = listen_tcp("127.0.0.1", 0, 8);
  REQUIRE(listener.is_ok());
  const Deadline deadline = Deadline::after_seconds(20);
  HandshakeAcceptor here, there;
  const std::uint16_t port = bound_port(listener.value());
  here.listen(listener.take(), false, [](const Claim& claim) {
    return claim.rank == 3 ? std::optional<std::string>("key") : std::nullopt;
  });
  const Claim unwanted{4, 1, 2, 0};
  REQUIRE(there.call(1, connect_tcp("127.0.0.1", port, deadline).take(), kClaim, "other"));
  REQUIRE(there.call(2, connect_tcp("127.0.0.1", port, deadline).take(), unwanted, "key"));
  std::vector<Connection> ends;
  while (ends.size() < 2 && !deadline.expired()) {
    auto mine = here.wait(Deadline::after_seconds(0.01));
    REQUIRE(mine.is_ok());
    CHECK(mine.value().empty());
    auto theirs = there.wait(Deadline::after_seconds(0.01));
    REQUIRE(theirs.is_ok());
    for (Connection& connection : theirs.value()) ends.push_back(std::move(connection));
  }
  REQUIRE(ends.size() == 2);
  for (const Connection& end : ends)
    CHECK(end.end == (end.call == 1 ? Connection::End::kRefused : Connection::End::kGone));
  CHECK(here.refused() == 1);
}

TEST_CASE("auth: A16 no descriptor left for a caller is an error, not an endless wait") {
  Result<Fd> listener = listen_tcp("127.0.0.1", 0, 8);
  REQUIRE(listener.is_ok());
  const Deadline deadline = Deadline::after_seconds(20);
  const Result<Fd> caller = connect_tcp("127.0.0.1", bound_port(listener.value()), deadline);
  REQUIRE(caller.is_ok());
  HandshakeAcceptor acceptor;
  acceptor.listen(listener.take(), false,
                  [](const Claim&) { return std::optional<std::string>("key"); });
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(Fd(::dup(0)).get());  // the lowest that is free
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const Result<std::vector<Connection>> connections = acceptor.wait(deadline);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE_FALSE(connections.is_ok());
  CHECK(connections.status().message.find("cannot accept a connection") != std::string::npos);
}
