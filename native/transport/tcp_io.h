// TCP data links. One I/O thread ("hvd-io") moves slots between sockets and slot rings in memory,
// in both directions at once, so that to the ring algorithm a TCP link looks like any other and no
// order of sends and receives can deadlock. On the wire a slot is its length (8 bytes) and its
// bytes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/abort.h"
#include "base/fd.h"
#include "transport/heap_ring.h"
#include "transport/ring_link.h"

namespace hvd {

class TcpIo : public Doorbell {
 public:
  using Broken =
      std::function<void(int peer, const std::string& why)>;  // called from the I/O thread

  TcpIo(std::size_t slot_bytes, std::size_t slots, const Abort& abort, Broken broken)
      : slot_bytes_(slot_bytes), slots_(slots), abort_(abort), broken_(std::move(broken)) {}
  ~TcpIo() override;  // sends what is still in the rings, for two seconds at most

  void add(int peer, Fd socket);  // before start()
  Status start();

  RingMemory outgoing(int peer) const { return conn(peer).out.memory(); }
  RingMemory incoming(int peer) const { return conn(peer).in.memory(); }
  const std::atomic<bool>& ended(int peer) const { return conn(peer).ended; }

  void ring() override;

 private:
  struct Conn {
    Conn(int rank, Fd fd, std::size_t slot_bytes, std::size_t slots)
        : peer(rank),
          socket(std::move(fd)),
          out(slot_bytes, slots),
          in(slot_bytes, slots),
          sending(out.memory()),
          receiving(in.memory()) {}
    int peer;
    Fd socket;
    HeapRing out, in;
    RingConsumer sending;    // takes from `out`
    RingProducer receiving;  // fills `in`
    std::array<std::byte, 8> out_head{}, in_head{};
    std::size_t sent = 0, received = 0;  // of the present slot, its head included
    bool readable = true, writable = true;
    bool in_done = false, out_done = false;
    std::atomic<bool> ended{false};
  };

  void run();
  bool flushed() const;
  bool push(Conn& conn);
  bool pull(Conn& conn);
  void pulled(Conn& conn, std::size_t bytes);
  void failed(Conn& conn, const std::string& why);
  void sleep();
  Conn& conn(int peer) const;

  std::size_t slot_bytes_, slots_;
  const Abort& abort_;
  Broken broken_;
  std::vector<std::unique_ptr<Conn>> conns_;
  Fd event_;
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace hvd
