// A proxy between two ranks that cuts every connection after so many bytes, whichever way they
// went: as a machine between them that goes away at the worst moment.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "transport/socket/socket.h"

namespace hvd::test {

class Cutter {
 public:
  // with_reset: the ends see a reset (RST), else an orderly end (FIN).
  Cutter(std::size_t budget, bool with_reset) : budget_(budget), with_reset_(with_reset) {
    Result<Fd> listener = listen_tcp("127.0.0.1", 0, 16);
    REQUIRE(listener.is_ok());
    port_ = bound_port(listener.value());
    listener_ = listener.take();
    thread_ = std::thread([this] { run(); });
  }
  ~Cutter() {
    stop_ = true;
    thread_.join();
  }
  Cutter(const Cutter&) = delete;
  Cutter& operator=(const Cutter&) = delete;

  std::uint16_t port() const { return port_; }  // to call instead of the target
  void lead_to(std::uint16_t target) { target_ = target; }
  std::uint16_t target() const { return target_; }  // 0: nowhere yet
  std::size_t passed() const { return passed_; }

 private:
  struct Wire {
    std::array<Fd, 2> ends;
    std::array<bool, 2> open{true, true};  // from this end something may still come
  };

  void run() {
    while (!stop_ && passed_ < budget_) {
      std::vector<pollfd> items{{listener_.get(), POLLIN, 0}};
      for (const Wire& wire : wires_)
        for (std::size_t side = 0; side < 2; ++side)
          items.push_back({wire.open[side] ? wire.ends[side].get() : -1, POLLIN, 0});
      if (::poll(items.data(), items.size(), 5) <= 0) continue;
      auto item = items.begin() + 1;
      for (Wire& wire : wires_)
        for (std::size_t side = 0; side < 2; ++side, ++item)
          if (item->revents != 0) pass(wire, side);
      if (items.front().revents != 0) accept();
    }
    cut();
  }

  void accept() {
    Result<Fd> caller = accept_one(listener_);
    if (!caller.is_ok() || !caller.value()) return;
    Result<Fd> target = connect_tcp("127.0.0.1", target_, Deadline::after_seconds(1));
    if (target.is_ok()) wires_.push_back({{caller.take(), target.take()}});
  }

  void pass(Wire& wire, std::size_t side) {
    std::array<char, 4096> part{};
    const std::size_t most = std::min(part.size(), budget_ - passed_);
    if (most == 0) return;
    const ssize_t got = ::recv(wire.ends[side].get(), part.data(), most, MSG_DONTWAIT);
    if (got < 0 && again(errno)) return;
    if (got <= 0) {
      wire.open[side] = false;
      ::shutdown(wire.ends[1 - side].get(), SHUT_WR);
      return;
    }
    passed_ += static_cast<std::size_t>(got);
    static_cast<void>(send_all(wire.ends[1 - side], {part.data(), static_cast<std::size_t>(got)},
                               Deadline::after_seconds(1)));
  }

  void cut() {
    listener_.reset();
    const linger at_once{1, 0};
    for (Wire& wire : wires_) {
      for (Fd& end : wire.ends) {
        if (with_reset_) ::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        end.reset();
      }
    }
  }

  const std::size_t budget_;
  const bool with_reset_;
  std::uint16_t port_ = 0;
  std::atomic<std::uint16_t> target_{0};
  std::atomic<std::size_t> passed_{0};
  std::atomic<bool> stop_{false};
  Fd listener_;
  std::list<Wire> wires_;
  std::thread thread_;
};

}  // namespace hvd::test
