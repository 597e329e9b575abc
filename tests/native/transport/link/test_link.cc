// Slot rings and the links over them: order, geometry, waiting, ends of waiting.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "ranks.h"
#include "transport/control_wait.h"
#include "transport/link/slot_ring.h"
#include "transport/mesh/mesh.h"
#include "transport/shm/heap_ring.h"

using namespace hvd;

namespace {

MeshOptions small_slots() {
  MeshOptions options;
  options.slot_bytes = 128;
  options.slots = 3;
  return options;
}

void put(SendLink& link, const Abort& abort, std::uint64_t value) {
  Result<Slot> slot = link.acquire(abort);
  REQUIRE(slot.is_ok());
  std::memcpy(slot.value().data, &value, sizeof value);
  link.publish(sizeof value);
}

std::uint64_t take(RecvLink& link, const Abort& abort) {
  Result<Slot> slot = link.peek(abort);
  REQUIRE(slot.is_ok());
  REQUIRE(slot.value().bytes == sizeof(std::uint64_t));
  std::uint64_t value = 0;
  std::memcpy(&value, slot.value().data, sizeof value);
  link.release();
  return value;
}

}  // namespace

TEST_CASE("a ring gives slots in order and no more than it has") {
  const HeapRing heap(128, 3);
  RingProducer producer(heap.memory());
  RingConsumer consumer(heap.memory());
  CHECK(consumer.try_peek().data == nullptr);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < 3; ++i) {
      const Slot slot = producer.try_acquire();
      REQUIRE(slot.data != nullptr);
      CHECK(slot.bytes == 128);
      CHECK(reinterpret_cast<std::uintptr_t>(slot.data) % 64 == 0);
      producer.publish(i + 1);
    }
    CHECK(producer.try_acquire().data == nullptr);
    CHECK_FALSE(producer.all_released());
    for (std::size_t i = 0; i < 3; ++i) {
      const Slot slot = consumer.try_peek();
      REQUIRE(slot.data != nullptr);
      CHECK(slot.bytes == i + 1);
      consumer.release();
    }
    CHECK(producer.all_released());
  }
}

TEST_CASE("the counters may wrap around") {
  const HeapRing heap(64, 3);  // 3 does not divide 2^32, where the counters wrap around
  heap.memory().header->published.value = heap.memory().header->released.value = 0xFFFFFF00U;
  RingProducer producer(heap.memory());
  RingConsumer consumer(heap.memory());
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    REQUIRE(producer.try_acquire().data != nullptr);
    producer.publish(i % 64);
    const Slot slot = consumer.try_peek();
    REQUIRE(slot.data != nullptr);
    REQUIRE(slot.bytes == i % 64);
    consumer.release();
  }
}

TEST_CASE("links carry every value in order between all pairs of ranks") {
  for (const int size : {2, 3, 4}) {
    auto meshes = make_local_meshes(size, small_slots());
    test::run_ranks(size, [&](int rank) {
      Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      for (std::uint64_t i = 0; i < 500; ++i) {
        for (int peer = 0; peer < size; ++peer)
          if (peer != rank)
            put(mesh.to(peer), mesh.abort(), i * 100 + static_cast<std::uint64_t>(rank));
        for (int peer = 0; peer < size; ++peer)
          if (peer != rank)
            REQUIRE(take(mesh.from(peer), mesh.abort()) ==
                    i * 100 + static_cast<std::uint64_t>(peer));
      }
    });
  }
}

TEST_CASE(
    "an abort ends the wait for an empty and for a full ring, with its cause, on every rank") {
  auto meshes = make_local_meshes(3, small_slots());
  test::run_ranks(3, [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    Status status;
    if (rank == 0) {
      for (int i = 0; i < 3; ++i) put(mesh.to(1), mesh.abort(), 7);
      status = mesh.to(1).acquire(mesh.abort()).status();  // full: rank 1 never reads
    } else if (rank == 1) {
      status = mesh.from(2).peek(mesh.abort()).status();  // empty: rank 2 never sends
    } else {
      mesh.raise_everywhere(Status::make(Code::kAborted, "rank 2 raised ValueError", "test", 2));
      mesh.raise_everywhere(Status::make(Code::kInternal, "a later cause", "test", 0));
      status = mesh.abort().cause();
    }
    CHECK(status.code == Code::kAborted);
    CHECK(status.rank == 2);
    CHECK(status.message == "rank 2 raised ValueError");
  });
}

TEST_CASE("a peer that left ends only the waits that need it") {
  auto meshes = make_local_meshes(2, small_slots());
  test::run_ranks(2, [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    if (rank == 0) {
      put(mesh.to(1), mesh.abort(), 11);
      mesh.leave();
      return;
    }
    while (!mesh.has_left(0)) test::wait_control(mesh, std::chrono::seconds(10));
    CHECK(take(mesh.from(0), mesh.abort()) == 11);  // sent before the goodbye
    const Status status = mesh.from(0).peek(mesh.abort()).status();
    CHECK(status.code == Code::kShutdown);
    CHECK(status.rank == 0);
    CHECK_FALSE(mesh.abort().raised());
  });
}
