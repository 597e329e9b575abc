// Row C8: settings that must be equal on all ranks are compared before anything else happens.
#include <doctest/doctest.h>

#include "ranks.h"
#include "transport/mesh/mesh.h"
#include "transport/mesh/options.h"

using namespace hvd;

namespace {

Status refusal(const std::vector<std::string>& cards) { return read_cards(cards).status(); }

std::string card(const std::function<void(MeshOptions&)>& change = {},
                 std::uint32_t protocol = kProtocol, const std::string& host = "here") {
  MeshOptions options;
  options.agreement = "ring=1\ncache=8\nlast=2\n";
  if (change) change(options);
  return card_of(host, settings_of(options), protocol);
}

}  // namespace

TEST_CASE("agreement: equal ranks give their hosts") {
  const auto hosts = read_cards({card(), card({}, kProtocol, "there"), card()});
  REQUIRE(hosts.is_ok());
  CHECK(hosts.value() == std::vector<std::string>{"here", "there", "here"});
}

TEST_CASE("agreement: a difference names the rank and both values") {
  struct Case {
    std::function<void(MeshOptions&)> change;
    std::string sentence;
  };
  const std::vector<Case> cases{
      {[](MeshOptions& o) { o.transport = "tcp"; },
       "with transport tcp, rank 0 with transport auto"},
      {[](MeshOptions& o) { o.slots = 9; }, "with slots 9, rank 0 with slots 4"},
      {[](MeshOptions& o) { o.slot_bytes = 64; },
       "with slot_bytes 64, rank 0 with slot_bytes 262144"},
      {[](MeshOptions& o) { o.fanout = 2; }, "with fanout 2, rank 0 with fanout 64"},
      {[](MeshOptions& o) { o.tcp_streams = 3; }, "with tcp_streams 3, rank 0 with tcp_streams 1"},
      {[](MeshOptions& o) { o.agreement = "ring=1\ncache=7\nlast=2\n"; },
       "with cache 7, rank 0 with cache 8; give"},
      {[](MeshOptions& o) { o.agreement = "ring=1\nother=8\nlast=2\n"; },
       "with the setting other, rank 0 with the setting cache"},
      {[](MeshOptions& o) { o.agreement = "ring=1\n"; },
       "with a number of settings 7, rank 0 with a number of settings 9"}};
  for (const Case& one : cases) {
    const Status status = refusal({card(), card(), card(one.change)});
    CHECK(status.code == Code::kInvalidArgument);
    CHECK(status.rank == 2);
    CHECK_MESSAGE(status.message.find("rank 2 was started " + one.sentence) != std::string::npos,
                  status.message);
  }
}

TEST_CASE("agreement: another protocol version is named whatever else the card holds") {
  const Status status = refusal({card(), card({}, kProtocol + 1)});
  CHECK(status.code == Code::kInvalidArgument);
  CHECK(status.rank == 1);
  CHECK(status.message.find("protocol version " + std::to_string(kProtocol + 1) +
                            ", rank 0 with protocol version " + std::to_string(kProtocol)) !=
        std::string::npos);
}

TEST_CASE("agreement: every truncation of a card is refused") {
  const std::string good = card();
  for (std::size_t length = 0; length < good.size(); ++length)
    CHECK_FALSE(refusal({good, good.substr(0, length)}).is_ok());
}

TEST_CASE("agreement: every rank of a mesh gets the same sentence") {
  test::Meeting meeting(3);
  std::vector<std::string> said(3);
  test::run_ranks(3, [&](int rank) {
    test::ThreadBootstrap bootstrap(meeting, rank);
    MeshOptions options;
    options.agreement = rank == 1 ? "cache_capacity=0" : "cache_capacity=1024";
    const auto mesh = connect_mesh(rank, 3, bootstrap, options);
    REQUIRE_FALSE(mesh.is_ok());
    CHECK(mesh.status().code == Code::kInvalidArgument);
    CHECK(mesh.status().rank == 1);
    said[static_cast<std::size_t>(rank)] = mesh.status().message;
  });
  CHECK(said[0].find("rank 1 was started with cache_capacity 0, rank 0 with cache_capacity 1024") !=
        std::string::npos);
  CHECK(said[1] == said[0]);
  CHECK(said[2] == said[0]);
}
