// The rendezvous: every pair gets its sockets, with strangers about, and none with another secret.
#include <doctest/doctest.h>

#include "ranks.h"
#include "transport/bootstrap/rendezvous.h"
#include "transport/socket/pack.h"
#include "transport/socket/socket.h"

using namespace hvd;

namespace {

std::vector<PeerPlan> plans_for(int rank, int size, bool same_host, std::size_t streams) {
  std::vector<PeerPlan> plans(static_cast<std::size_t>(size));
  for (int peer = 0; peer < size; ++peer) {
    PeerPlan& plan = plans[static_cast<std::size_t>(peer)];
    plan.same_host = same_host;
    plan.streams = streams;
    if (peer != rank) plan.wanted = {true, std::min(rank, peer) == 0, true};
  }
  return plans;
}

std::string label(int from, int to, std::size_t purpose, std::size_t stream) {
  return std::to_string(from) + ">" + std::to_string(to) + "/" + std::to_string(purpose) + "." +
         std::to_string(stream);
}

// Through every socket goes what it is for, in both directions.
void check_sockets(int rank, std::vector<PeerSockets>& sockets,
                   const std::vector<PeerPlan>& plans) {
  const Deadline deadline = Deadline::after_seconds(20);
  for (const bool sends : {true, false})
    for (std::size_t peer = 0; peer < sockets.size(); ++peer)
      for (std::size_t purpose = 0; purpose < kPurposes; ++purpose)
        for (std::size_t s = 0; s < plans[peer].sockets(static_cast<Purpose>(purpose)); ++s) {
          Fd& socket = sockets[peer].at(static_cast<Purpose>(purpose), s);
          const int other = static_cast<int>(peer);
          REQUIRE(socket);
          if (sends) {
            REQUIRE(send_all(socket, label(rank, other, purpose, s), deadline));
            continue;
          }
          const std::string expected = label(other, rank, purpose, s);
          const Result<std::string> got = receive_all(socket, expected.size(), deadline);
          REQUIRE(got.is_ok());
          CHECK(got.value() == expected);
        }
}

// Forwards the cards, and passes them to a callback first.
class SeenBootstrap : public test::ThreadBootstrap {
 public:
  SeenBootstrap(test::Meeting& meeting, int rank, std::function<void(const std::string&)> look)
      : ThreadBootstrap(meeting, rank), look_(std::move(look)) {}
  Result<std::vector<std::string>> allgather(const std::string& mine) override {
    look_(mine);
    return ThreadBootstrap::allgather(mine);
  }

 private:
  std::function<void(const std::string&)> look_;
};

}  // namespace

TEST_CASE("rendezvous: every pair gets every requested socket, with its purpose") {
  for (const bool same_host : {true, false}) {
    for (const std::size_t streams : {1U, 3U}) {
      for (const int size : {2, 5}) {
        test::Meeting meeting(size);
        test::run_ranks(size, [&, n = size](int rank) {
          test::ThreadBootstrap bootstrap(meeting, rank);
          const std::vector<PeerPlan> plans = plans_for(rank, n, same_host, streams);
          auto met = Rendezvous(rank, plans, Deadline::after_seconds(20), "secret")
                         .meet(bootstrap, "127.0.0.1");
          REQUIRE_MESSAGE(met.is_ok(), met.status().message);
          std::vector<PeerSockets> sockets = met.take();
          check_sockets(rank, sockets, plans);
          for (int peer = 0; peer < n; ++peer)
            if (peer != rank)
              CHECK(sockets[static_cast<std::size_t>(peer)].take_data().size() == streams);
        });
      }
    }
  }
}

TEST_CASE("rendezvous: a rank with another secret is refused, by name of the remedy") {
  test::Meeting meeting(2);
  test::run_ranks(2, [&](int rank) {
    test::ThreadBootstrap bootstrap(meeting, rank);
    meeting.allgather(rank, "");  // now rank 0's time begins, which has to pass
    const Deadline deadline = Deadline::after_seconds(rank == 0 ? 3 : 600);
    const auto met =
        Rendezvous(rank, plans_for(rank, 2, false, 1), deadline, rank == 0 ? "right" : "wrong")
            .meet(bootstrap, "127.0.0.1");
    REQUIRE_FALSE(met.is_ok());
    CHECK(met.status().message.find("HVD_SECRET_KEY") != std::string::npos);
    CHECK(met.status().message.find(rank == 0 ? "rank 1 did not connect" : "same secret") !=
          std::string::npos);
  });
}

TEST_CASE("rendezvous: strangers at the listening port do not disturb") {
  test::Meeting meeting(3);
  std::vector<Fd> strangers;
  std::mutex mutex;
  test::run_ranks(3, [&](int rank) {
    // Right after a rank has said where it listens, before anybody else knows.
    SeenBootstrap bootstrap(meeting, rank, [&](const std::string& card) {
      Unpacker reader(card);
      reader.text();
      reader.text();
      const std::string host = reader.text();
      const auto port = reader.number<std::uint16_t>();
      const std::string words[] = {"", "half", std::string(4096, 'g')};
      for (int i = 0; i < 90; ++i) {
        Result<Fd> stranger = connect_tcp(host, port, Deadline::after_seconds(5));
        REQUIRE(stranger.is_ok());
        REQUIRE(send_all(stranger.value(), words[i % 3], Deadline::after_seconds(5)));
        const std::lock_guard<std::mutex> lock(mutex);
        strangers.push_back(stranger.take());
      }
    });
    const std::vector<PeerPlan> plans = plans_for(rank, 3, false, 2);
    // One after the other, those that keep silent would take two seconds each.
    auto met = Rendezvous(rank, plans, Deadline::after_seconds(40)).meet(bootstrap, "127.0.0.1");
    REQUIRE_MESSAGE(met.is_ok(), met.status().message);
    std::vector<PeerSockets> sockets = met.take();
    check_sockets(rank, sockets, plans);
  });
}

TEST_CASE("rendezvous: a missing rank is named") {
  test::Meeting meeting(3);
  test::run_ranks(3, [&](int rank) {
    test::ThreadBootstrap bootstrap(meeting, rank);
    std::vector<PeerPlan> plans = plans_for(rank, 3, false, 1);
    if (rank == 2) plans[0].wanted = plans[1].wanted = {};  // never calls
    meeting.allgather(rank, "");                            // now the time begins that has to pass
    auto met = Rendezvous(rank, plans, Deadline::after_seconds(3)).meet(bootstrap, "127.0.0.1");
    CHECK(met.is_ok() == (rank == 2));
    if (rank != 2)
      CHECK(met.status().message.find("rank 2 did not connect to rank " + std::to_string(rank)) !=
            std::string::npos);
  });
}
