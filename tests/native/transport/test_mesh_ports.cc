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
#include "transport/mesh.h"
#include "transport/socket.h"
#include "transport/tcp_bootstrap.h"

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

int in_a_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

// Two ranks of two hosts, as far as they know.
Status meet(int rank) {
  auto bootstrap = TcpBootstrap::connect(rank, 2, "127.0.0.1", kMeeting, 0.5);
  if (!bootstrap.is_ok()) return bootstrap.status();
  MeshOptions options;
  options.transport = "tcp";
  options.host = std::to_string(rank);
  options.tcp_interface = "127.0.0.1";
  options.start_timeout_s = 0.5;
  auto mesh = connect_mesh(rank, 2, *bootstrap.value(), options);
  if (mesh.is_ok()) mesh.value()->leave();
  return mesh.status();
}

// The range has `ports`, of which others listen on all but `left`.
int meet_with(int ports, int left) {
  if (!own_network(ports)) return kNoNetwork;
  std::vector<Fd> others;
  for (int i = 0; i < ports - left; ++i) {
    Result<Fd> other = listen_tcp("127.0.0.1", static_cast<std::uint16_t>(kFirst + i), 1);
    if (!other.is_ok()) return kNoNetwork;
    others.push_back(other.take());
  }
  std::vector<Status> ends(2);
  test::run_ranks(2, [&](int rank) { ends[static_cast<std::size_t>(rank)] = meet(rank); });
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

TEST_CASE("ports: E4 ranks meet on the last free ports, and are told of the range without any") {
  if (!networks()) {
    MESSAGE("skipped: no network of our own");
    return;
  }
  CHECK(in_a_child([] { return meet_with(64, 64); }) == kMet);
  // A listener of each rank, and what rank 1 calls rank 0 from.
  CHECK(in_a_child([] { return meet_with(64, 6); }) == kMet);
  CHECK(in_a_child([] { return meet_with(64, 0); }) == kRefused);
  for (int left = 1; left < 6; ++left) {
    CAPTURE(left);
    CHECK(in_a_child([left] { return meet_with(64, left); }) <= kRefused);
  }
}

TEST_CASE("ports: E4 a port that another process has is named, with what to do") {
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
