// The slot ring between two processes: every interleaving, and a death at every step.
#include <doctest/doctest.h>

#include <array>
#include <memory>

#include "explorer/model.h"
#include "transport/link/slot_ring.h"

using namespace hvd;
using namespace hvd::explorer;

namespace {

constexpr std::size_t kMostSlots = 4;

struct ModelCell {
  ModelWord word;
  void operator=(std::size_t value) { word.store(static_cast<Value>(value)); }  // NOLINT
  operator std::size_t() const { return word.load(); }                          // NOLINT
};

struct ModelHeader {
  explicit ModelHeader(Value first) : published{{first}, {0}}, released{{first}, {0}} {}
  BasicCounter<ModelWord> published, released;
  std::array<ModelCell, kMostSlots> payload;
};

struct ModelMemory {
  ModelHeader* header;
  std::byte* slots;
  std::size_t slot_bytes;
  std::uint32_t count;
};

using Producer = BasicRingProducer<ModelMemory>;
using Consumer = BasicRingConsumer<ModelMemory>;
using Rules = BasicWaitRules<ModelFlag>;

// The wait for a counter: the shipped one, or a broken one.
using Waiting =
    std::function<Status(BasicCounter<ModelWord>&, Value seen, const ModelAbort&, const Rules&)>;

Status shipped(BasicCounter<ModelWord>& counter, Value seen, const ModelAbort& abort,
               const Rules& rules) {
  return wait_for(counter, seen, abort, rules);
}

struct World {
  World(Value first, std::uint32_t count) : header(first), memory{&header, room.data(), 1, count} {}
  ModelHeader header;
  std::array<std::byte, kMostSlots> room{};
  std::array<ModelWord, kMostSlots> data;  // what the slots hold
  ModelAbort abort;
  ModelFlag left;
  ModelMemory memory;
  Rules rules{false, &left, nullptr, 1};

  ModelWord& data_of(const Slot& slot) {
    return data[static_cast<std::size_t>(slot.data - room.data())];
  }
};

// As RingSendLink::acquire and publish do it (transport/link/slot_ring.h).
void send(World& world, Value items, const Waiting& wait) {
  struct Local {
    Producer ring;
    Value item = 1;
  };
  auto local = resume<Local>([&] { return Local{Producer(world.memory)}; });
  auto& [ring, item] = local;
  for (; item <= items; ++item, keep(local)) {
    Slot slot = ring.try_acquire();
    while (slot.data == nullptr) {
      if (!wait(ring.awaited(), ring.full_at(), world.abort, world.rules)) return;
      slot = ring.try_acquire();
    }
    world.data_of(slot).store(item);
    ring.publish(item + 100);
  }
}

// As RingRecvLink::peek and release. What a slot holds is looked at when it comes and again before
// it is given back.
void receive(World& world, Value items, const Waiting& wait) {
  struct Local {
    Consumer ring;
    Value item = 1;
  };
  auto local = resume<Local>([&] { return Local{Consumer(world.memory)}; });
  auto& [ring, item] = local;
  for (; item <= items; ++item, keep(local)) {
    Slot slot = ring.try_peek();
    while (slot.data == nullptr) {
      if (!wait(ring.awaited(), ring.empty_at(), world.abort, world.rules)) return;
      slot = ring.try_peek();
    }
    if (slot.bytes != item + 100) throw Wrong{"a length that was not published"};
    if (world.data_of(slot).load() != item) throw Wrong{"an unpublished slot was read"};
    if (world.data_of(slot).load() != item) throw Wrong{"a slot was overwritten while in use"};
    ring.release();
  }
}

// The failure detector of the survivor: as FailureDetector::died -> Abort::raise ->
// ConnectedMesh::news.
void failure_detector(World& world) {
  Run::current()->await_death();
  world.abort.raise();
  wake_sleeper(world.header.published);
  wake_sleeper(world.header.released);
}

struct Case {
  std::uint32_t slots = 2;
  Value items = 3;
  Value first = 0;
  int mortal = -1;
  Waiting wait = shipped;
};

Outcome run(const Case& told) {
  return explore([&told] {
    const auto world = std::make_shared<World>(told.first, told.slots);
    Scenario scenario;
    scenario.actors.push_back(
        {[world, &told] { send(*world, told.items, told.wait); }, told.mortal == 0, false});
    scenario.actors.push_back(
        {[world, &told] { receive(*world, told.items, told.wait); }, told.mortal == 1, false});
    if (told.mortal >= 0)
      scenario.actors.push_back({[world] { failure_detector(*world); }, false, true});
    scenario.slices = told.mortal >= 0;
    return scenario;
  });
}

}  // namespace

TEST_CASE("explorer: a slot ring loses no wake-up, shows nothing early, overwrites nothing") {
  for (const std::uint32_t slots : {2U, 3U, 4U}) {
    Case told;
    told.slots = slots;
    told.items = slots + 2;
    const Outcome outcome = run(told);
    CAPTURE(slots);
    CHECK(outcome.wrong == "");
    CHECK(outcome.ends > 0);
    MESSAGE(slots << " slots: " << outcome.states << " states");
  }
}

TEST_CASE("explorer: the same where the counters wrap around") {
  Case told;
  told.slots = 3;
  told.items = 5;
  told.first = 0xFFFFFFFDU;
  const Outcome outcome = run(told);
  CHECK(outcome.wrong == "");
  CHECK(outcome.ends > 0);
}

TEST_CASE("explorer: after a death at any step the survivor of a slot ring terminates") {
  for (const int mortal : {0, 1}) {
    Case told;
    told.mortal = mortal;
    const Outcome outcome = run(told);
    CAPTURE(mortal);
    CHECK(outcome.wrong == "");
    CHECK(outcome.deaths > 20);
    MESSAGE("rank " << mortal << " mortal: " << outcome.states << " states, " << outcome.deaths
                    << " deaths");
  }
}

TEST_CASE("explorer: finds the wake-up lost without the check after the announcement") {
  Case told;
  told.wait = [](BasicCounter<ModelWord>& counter, Value seen, const ModelAbort&, const Rules&) {
    counter.sleeps.store(1);
    Run::current()->wait(counter.value.index(), seen, false);  // does not look at the counter again
    counter.sleeps.store(0);
    return Status::ok();
  };
  CHECK(run(told).wrong.find("sleeps forever") != std::string::npos);
}

TEST_CASE("explorer: finds the wake-up that is lost without the announcement") {
  Case told;
  told.wait = [](BasicCounter<ModelWord>& counter, Value seen, const ModelAbort&, const Rules&) {
    futex_wait(counter.value, seen, std::chrono::seconds(1));
    return Status::ok();
  };
  CHECK(run(told).wrong.find("sleeps forever") != std::string::npos);
}

TEST_CASE("explorer: finds the slot that is shown before it is filled") {
  const Outcome outcome = explore([] {
    const auto world = std::make_shared<World>(0, 2);
    Scenario scenario;
    scenario.actors.push_back({[world] {
                                 Producer ring(world->memory);
                                 const Slot slot = ring.try_acquire();
                                 ring.publish(101);
                                 world->data_of(slot).store(1);
                               },
                               false, false});
    scenario.actors.push_back({[world] { receive(*world, 1, shipped); }, false, false});
    return scenario;
  });
  CHECK(outcome.wrong.find("an unpublished slot was read") != std::string::npos);
}

TEST_CASE("explorer: finds the slot that is given back before it is read") {
  const Outcome outcome = explore([] {
    const auto world = std::make_shared<World>(0, 2);
    Scenario scenario;
    scenario.actors.push_back({[world] { send(*world, 3, shipped); }, false, false});
    scenario.actors.push_back(
        {[world] {
           Consumer ring(world->memory);
           Slot slot;
           while (slot.data == nullptr) {
             slot = ring.try_peek();
             if (slot.data == nullptr &&
                 !shipped(ring.awaited(), ring.empty_at(), world->abort, world->rules))
               return;
           }
           ring.release();
           if (world->data_of(slot).load() != 1) throw Wrong{"a slot was overwritten while in use"};
         },
         false, false});
    return scenario;
  });
  CHECK(outcome.wrong.find("overwritten") != std::string::npos);
}
