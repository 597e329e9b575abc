// Row F5: whatever passes between two ranks over TCP is cut after every byte, by a reset and by an
// orderly end in turn. Each of the two gets its answer or one error; none waits forever.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "cutter.h"
#include "ranks.h"
#include "transport/bootstrap/tcp_bootstrap.h"
#include "transport/control_wait.h"
#include "transport/mesh/mesh.h"
#include "transport/socket/pack.h"

using namespace hvd;

namespace {

constexpr std::size_t kNever = 1U << 30U;
constexpr int kAtOnce = 12;        // cuts that are tried at the same time: most of it is waiting
constexpr double kPatience = 0.3;  // of ranks that are cut off; most of them use it up
constexpr double kEnough = 30;     // of those that are not

using Ends = std::array<Status, 2>;
using Session = std::function<Status(int rank, test::Cutter& cutter)>;

struct Scene {
  std::function<Session(double patience)> session;
  double seconds;  // that all cuts together may take
};

// What both ranks end with when the connections are cut after so many bytes; and how many passed.
std::pair<Ends, std::size_t> cut_after(std::size_t bytes, const Session& session) {
  test::Cutter cutter(bytes, bytes % 2 == 0);
  Ends ends;
  std::thread other([&] { ends[1] = session(1, cutter); });
  ends[0] = session(0, cutter);
  other.join();
  return {ends, cutter.passed()};
}

bool typed(const Status& end) {
  return end || end.code == Code::kRankDied || end.code == Code::kTimeout ||
         end.code == Code::kUnavailable || end.code == Code::kShutdown;
}

struct Counts {
  std::atomic<int> cuts{0}, died{0}, whole{0};
};

void cut_everywhere(const Scene& scene, Counts& counts) {
  const auto [ends, all] = cut_after(kNever, scene.session(kEnough));
  REQUIRE_MESSAGE(ends[0], ends[0].message);
  REQUIRE_MESSAGE(ends[1], ends[1].message);
  std::atomic<std::size_t> next{0};
  test::run_ranks(
      kAtOnce,
      [&, most = all](int) {
        for (std::size_t bytes = next++; bytes < most; bytes = next++) {
          const Ends cut = cut_after(bytes, scene.session(kPatience)).first;
          for (std::size_t rank = 0; rank < 2; ++rank) {
            CAPTURE(bytes);
            CAPTURE(cut[rank].message);
            CHECK(typed(cut[rank]));
            if (cut[rank].code == Code::kRankDied)
              CHECK(cut[rank].rank == 1 - static_cast<int>(rank));
          }
          ++counts.cuts;
          counts.died += cut[0].code == Code::kRankDied && cut[1].code == Code::kRankDied;
          counts.whole += cut[0] && cut[1];
        }
      },
      scene.seconds);
  CHECK(counts.cuts == static_cast<int>(all));
}

// Bound and not listening, so that rank 0 can listen there and no other process gets the port.
Fd reserved_port() {
  Fd held(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(held.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int bound = ::bind(held.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof loopback);
  REQUIRE(bound == 0);
  return held;
}

Session start_session(double patience) {
  return [patience](int rank, test::Cutter& cutter) {
    Fd held;
    if (rank == 0) {
      held = reserved_port();
      cutter.lead_to(bound_port(held));
    }
    while (cutter.target() == 0) std::this_thread::yield();
    auto met = TcpBootstrap::connect(rank, 2, "127.0.0.1",
                                     rank == 0 ? cutter.target() : cutter.port(), patience);
    if (!met.is_ok()) return met.status();
    return met.value()->allgather(std::string(20, 'x')).status();
  };
}

// Rank 1 gets the proxy's port in the place of rank 0's.
class Misled : public Bootstrap {
 public:
  Misled(test::Meeting& meeting, int rank, test::Cutter& cutter)
      : inner_(meeting, rank), rank_(rank), cutter_(cutter) {}

  Result<std::vector<std::string>> allgather(const std::string& mine) override {
    Result<std::vector<std::string>> all = inner_.allgather(mine);
    if (++calls_ == 2 && rank_ == 1 && all.is_ok()) all.value()[0] = redirected(all.value()[0]);
    return all;
  }

 private:
  std::string redirected(const std::string& card) {
    Unpacker reader(card);
    Packer other;
    for (int field = 0; field < 3; ++field) other.text(reader.text());
    cutter_.lead_to(reader.number<std::uint16_t>());
    return other.number(cutter_.port()).number(reader.number<std::int32_t>()).take();
  }

  test::ThreadBootstrap inner_;
  int rank_;
  test::Cutter& cutter_;
  int calls_ = 0;
};

Status exchange(Mesh& mesh) {
  const int other = 1 - mesh.topology().rank;
  if (Status status = mesh.send_control(other, "hello"); !status) return status;
  const ControlMessage message = test::next_control(mesh);
  if (mesh.abort().raised()) return mesh.abort().cause();
  if (message.bytes != "hello") return Status::make(Code::kInternal, "another message", "test");
  const Result<Slot> out = mesh.to(other).acquire(mesh.abort());
  if (!out.is_ok()) return out.status();
  mesh.to(other).publish(16);
  const Result<Slot> in = mesh.from(other).peek(mesh.abort());
  if (!in.is_ok()) return in.status();
  if (in.value().bytes != 16) return Status::make(Code::kInternal, "another length", "test");
  mesh.from(other).release();
  return Status::ok();
}

Session mesh_session(double patience) {
  auto meeting = std::make_shared<test::Meeting>(2);
  return [meeting, patience](int rank, test::Cutter& cutter) {
    Misled bootstrap(*meeting, rank, cutter);
    MeshOptions options;
    options.transport = "tcp";
    options.host = std::to_string(rank);
    options.tcp_interface = "127.0.0.1";
    options.start_timeout_s = patience;
    options.slot_bytes = 64;
    auto mesh = connect_mesh(rank, 2, bootstrap, options);
    if (!mesh.is_ok()) return mesh.status();
    const Status status = exchange(*mesh.value());
    mesh.value()->leave();
    return status;
  };
}

}  // namespace

TEST_CASE("cuts: F5 a start that is cut after any byte ends on both ranks") {
  Counts counts;
  cut_everywhere({start_session, 200}, counts);
  MESSAGE(counts.cuts.load() << " cuts");
}

TEST_CASE(
    "cuts: F5 ranks that are cut off after any byte each get one error that names the other") {
  Counts counts;
  cut_everywhere({mesh_session, 200}, counts);
  CHECK(counts.died > 0);
  MESSAGE(counts.cuts.load() << " cuts, in " << counts.died.load()
                             << " of them both ranks named the other");
}
