// Row E4: ports that are taken. In a network of their own, where the range that the kernel gives
// ports from is as small as the test wants it.
#include <doctest/doctest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "ranks.h"
#include "transport/bootstrap/tcp_bootstrap.h"
#include "transport/mesh/mesh.h"
#include "transport/socket/socket.h"

using namespace hvd;

namespace {

constexpr int kFirst = 50'000;
constexpr std::uint16_t kMeeting = 40'000;  // outside of the range

enum End { kMet = 0, kRefused = 1, kUnnamed, kNoNetwork };

bool raise_loopback() {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

bool own_network(int ports) {
  if (::unshare(CLONE_NEWNET) != 0 || !raise_loopback()) return false;
  std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
  range << kFirst << ' ' << kFirst + ports - 1 << std::endl;
  return range.good();
}

pid_t start_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  return pid;
}

int end_of(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

int in_a_child(const std::function<int()>& body) { return end_of(start_child(body)); }

// How long the ranks wait for each other. Of two for which there are not enough ports one may wait
// so long for nothing.
struct Patience {
  double bootstrap, mesh;
};
constexpr double kEnough = 30, kForNothing = 5;

// Two ranks of two hosts, as far as they know.
Status meet(int rank, const Patience& patience) {
  auto bootstrap = TcpBootstrap::connect(rank, 2, "127.0.0.1", kMeeting, patience.bootstrap);
  if (!bootstrap.is_ok()) return bootstrap.status();
  MeshOptions options;
  options.transport = "tcp";
  options.host = std::to_string(rank);
  options.tcp_interface = "127.0.0.1";
  options.start_timeout_s = patience.mesh;
  auto mesh = connect_mesh(rank, 2, *bootstrap.value(), options);
  if (mesh.is_ok()) mesh.value()->leave();
  return mesh.status();
}

// The range has `ports`, of which others listen on all but `left`.
int meet_with(int ports, int left, const Patience& patience) {
  if (!own_network(ports)) return kNoNetwork;
  std::vector<Fd> others;
  for (int i = 0; i < ports - left; ++i) {
    Result<Fd> other = listen_tcp("127.0.0.1", static_cast<std::uint16_t>(kFirst + i), 1);
    if (!other.is_ok()) return kNoNetwork;
    others.push_back(other.take());
  }
  std::vector<Status> ends(2);
  test::run_ranks(2,
                  [&](int rank) { ends[static_cast<std::size_t>(rank)] = meet(rank, patience); });
  if (ends[0] && ends[1]) return kMet;
  bool named = false;
  for (const Status& end : ends)
    named = named || end.message.find("net.ipv4.ip_local_port_range") != std::string::npos;
  return named && !ends[0] && !ends[1] ? kRefused : kUnnamed;
}

bool networks() {
  return in_a_child([] { return own_network(8) ? kMet : kNoNetwork; }) == kMet;
}

}  // namespace

TEST_CASE("ports: E4 ranks connect on the last free ports, and report a range without any") {
  if (!networks()) {
    MESSAGE("skipped: no network of our own");
    return;
  }
  const auto start = [](int left, const Patience& patience) {
    return start_child([&] { return meet_with(64, left, patience); });
  };
  // At the same time: they wait most of it.
  std::vector<pid_t> some;
  for (int left = 1; left < 6; ++left) some.push_back(start(left, {kEnough, kForNothing}));
  const pid_t none = start(0, {kForNothing, kForNothing});
  CHECK(end_of(start(64, {kEnough, kEnough})) == kMet);
  // A listener of each rank, and what rank 1 calls rank 0 from.
  CHECK(end_of(start(6, {kEnough, kEnough})) == kMet);
  CHECK(end_of(none) == kRefused);
  for (const pid_t child : some) CHECK(end_of(child) <= kRefused);
}

TEST_CASE("ports: E4 an occupied port is named, with the remedy") {
  Result<Fd> other = listen_tcp("127.0.0.1", 0, 1);
  REQUIRE(other.is_ok());
  const std::uint16_t port = bound_port(other.value());
  const auto bootstrap = TcpBootstrap::connect(0, 2, "127.0.0.1", port, 0.3);
  REQUIRE_FALSE(bootstrap.is_ok());
  const std::string& message = bootstrap.status().message;
  CHECK(message.find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
  CHECK(message.find("another process has this port: end it, or choose another") !=
        std::string::npos);
}
