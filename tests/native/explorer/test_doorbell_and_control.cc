// The doorbell and the ring of control bytes: every interleaving, and a death at every step.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include "explorer/model.h"
#include "transport/link/doorbell.h"
#include "transport/shm/control_ring.h"

using namespace hvd;
using namespace hvd::explorer;

namespace {

using ModelDoorbell = BasicDoorbell<ModelWord>;
using ModelDoorbellMemory = BasicDoorbellMemory<ModelWord>;
constexpr std::chrono::seconds kLong{1};

// The progress-lock owner as doorbell.h describes it; `look` is true when there was news. `awake`
// is called between two sleeps.
template <class Look, class Awake>
void sleep_until(ModelDoorbell& doorbell, const Look& look, const Awake& awake) {
  for (;;) {
    const Value seen = doorbell.heard();
    if (look()) return;
    doorbell.announce();
    if (look()) {
      doorbell.awake();
      return;
    }
    doorbell.wait(seen, kLong);
    doorbell.awake();
    awake();
  }
}

// ---- the doorbell ----

struct Waiting {
  ModelDoorbellMemory memory;
  std::array<ModelWord, 2> news;
  ModelWord abort;
};

void caller(Waiting& waiting, std::size_t which) {
  waiting.news[which].store(1);
  ModelDoorbell(waiting.memory).ring();
}

void sleeper(Waiting& waiting) {
  ModelDoorbell doorbell(waiting.memory);
  sleep_until(
      doorbell,
      [&] {
        return (waiting.news[0].load() != 0 && waiting.news[1].load() != 0) ||
               waiting.abort.load() != 0;
      },
      [] {});
}

Outcome run_waiting(const std::function<void(Waiting&)>& sleeps, bool mortal = false) {
  return explore([&] {
    const auto waiting = std::make_shared<Waiting>();
    Scenario scenario;
    scenario.actors.push_back({[waiting, &sleeps] { sleeps(*waiting); }, false, false});
    scenario.actors.push_back({[waiting] { caller(*waiting, 0); }, mortal, false});
    scenario.actors.push_back({[waiting] { caller(*waiting, 1); }, false, false});
    if (mortal)
      scenario.actors.push_back({[waiting] {
                                   Run::current()->await_death();
                                   waiting->abort.store(1);
                                   ModelDoorbell(waiting->memory).ring();
                                 },
                                 false, true});
    return scenario;
  });
}

// ---- the ring of control bytes, with its two doorbells ----

struct ModelControlHeader {
  explicit ModelControlHeader(Value first) : written(first), read(first) {}
  ModelWord written, wants, read;
};

constexpr std::uint32_t kCapacity = 2;

struct ModelControlMemory {
  ModelControlHeader* header;
  std::array<ModelWord, kCapacity>* bytes;
  std::uint32_t capacity;
  void put(std::uint32_t at, const char* from, std::size_t n) const {
    for (std::size_t i = 0; i < n; ++i)
      (*bytes)[at + i].store(static_cast<Value>(static_cast<unsigned char>(from[i])));
  }
  void get(std::uint32_t at, char* to, std::size_t n) const {
    for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<char>((*bytes)[at + i].load());
  }
};

using Writer = BasicControlWriter<ModelControlMemory>;
using Reader = BasicControlReader<ModelControlMemory>;

struct Office {
  explicit Office(Value first) : header(first), memory{&header, &bytes, kCapacity} {}
  ModelControlHeader header;
  std::array<ModelWord, kCapacity> bytes;
  ModelDoorbellMemory of_writer, of_reader;
  ModelWord abort;
  ModelControlMemory memory;
};

constexpr std::string_view kText = "abcd";

using Write = std::function<std::size_t(Writer&, std::string_view)>;

// As MemoryLine::push_kept (transport/control/control_line.cc), from the progress-lock owner's
// poll.
void write_all(Office& office, const Write& write) {
  struct Local {
    Writer writer;
    std::size_t done = 0;
  };
  auto local = resume<Local>([&] { return Local{Writer(office.memory)}; });
  ModelDoorbell doorbell(office.of_writer);
  const auto look = [&] {
    const std::size_t moved = write(local.writer, kText.substr(local.done));
    local.done += moved;
    if (moved != 0) ModelDoorbell(office.of_reader).ring();
    if (local.done < kText.size()) return office.abort.load() != 0;
    local.writer.want(false);
    return true;
  };
  sleep_until(doorbell, look, [&] { keep(local); });
}

// As MemoryLine::collect.
void read_all(Office& office) {
  struct Local {
    Reader reader;
    std::size_t have = 0;
  };
  auto local = resume<Local>([&] { return Local{Reader(office.memory)}; });
  ModelDoorbell doorbell(office.of_reader);
  const auto look = [&] {
    for (;;) {
      std::string text(kText.substr(0, local.have));
      const Reader::Found found = local.reader.take(text);
      if (found == Reader::Found::kRubbish) throw Wrong{"rubbish"};
      if (found == Reader::Found::kNothing) break;
      if (text != kText.substr(0, text.size())) throw Wrong{"wrong bytes: " + text};
      local.have = text.size();
      if (local.reader.wanted()) ModelDoorbell(office.of_writer).ring();
    }
    return local.have == kText.size() || office.abort.load() != 0;
  };
  sleep_until(doorbell, look, [&] { keep(local); });
}

std::size_t shipped(Writer& writer, std::string_view rest) { return write_what_fits(writer, rest); }

Outcome run_office(int mortal, Value first = 0, const Write& write = shipped) {
  return explore([&] {
    const auto office = std::make_shared<Office>(first);
    Scenario scenario;
    scenario.actors.push_back(
        {[office, &write] { write_all(*office, write); }, mortal == 0, false});
    scenario.actors.push_back({[office] { read_all(*office); }, mortal == 1, false});
    if (mortal >= 0)
      scenario.actors.push_back({[office] {
                                   Run::current()->await_death();
                                   office->abort.store(1);
                                   ModelDoorbell(office->of_writer).ring();
                                   ModelDoorbell(office->of_reader).ring();
                                 },
                                 false, true});
    return scenario;
  });
}

}  // namespace

TEST_CASE("explorer: a doorbell rung by two at once is never missed") {
  const Outcome outcome = run_waiting(sleeper);
  CHECK(outcome.wrong == "");
  CHECK(outcome.ends > 0);
  MESSAGE(outcome.states << " states");
}

TEST_CASE("explorer: a caller that dies at any step leaves no sleeper, once the watch has rung") {
  const Outcome outcome = run_waiting(sleeper, true);
  CHECK(outcome.wrong == "");
  CHECK(outcome.deaths > 20);
  MESSAGE(outcome.states << " states, " << outcome.deaths << " deaths");
}

TEST_CASE("explorer: finds the ring lost if the doorbell is read after the check") {
  const auto late = [](Waiting& waiting) {
    ModelDoorbell doorbell(waiting.memory);
    while (waiting.news[0].load() == 0 || waiting.news[1].load() == 0) {
      const Value seen = doorbell.heard();
      doorbell.announce();
      doorbell.wait(seen, kLong);
      doorbell.awake();
    }
  };
  CHECK(run_waiting(late).wrong.find("sleeps forever") != std::string::npos);
}

TEST_CASE("explorer: finds the ring that is lost without the announcement") {
  const auto silent = [](Waiting& waiting) {
    ModelDoorbell doorbell(waiting.memory);
    for (;;) {
      const Value seen = doorbell.heard();
      if (waiting.news[0].load() != 0 && waiting.news[1].load() != 0) return;
      doorbell.wait(seen, kLong);
    }
  };
  CHECK(run_waiting(silent).wrong.find("sleeps forever") != std::string::npos);
}

TEST_CASE("explorer: control bytes arrive in order through a ring smaller than the message") {
  for (const Value first : {Value{0}, Value{0xFFFFFFFDU}}) {
    const Outcome outcome = run_office(-1, first);
    CAPTURE(first);
    CHECK(outcome.wrong == "");
    CHECK(outcome.ends > 0);
    MESSAGE(outcome.states << " states");
  }
}

TEST_CASE("explorer: after a death at any step the other side of the control ring ends") {
  for (const int mortal : {0, 1}) {
    const Outcome outcome = run_office(mortal);
    CAPTURE(mortal);
    CHECK(outcome.wrong == "");
    CHECK(outcome.deaths > 20);
    MESSAGE(outcome.states << " states, " << outcome.deaths << " deaths");
  }
}

TEST_CASE("explorer: finds the space missed if it is not requested") {
  const Write silent = [](Writer& writer, std::string_view rest) {
    const std::string_view part = rest.substr(0, writer.room(rest.size()));
    if (!part.empty()) {
      writer.write(part);
      writer.show();
    }
    return part.size();
  };
  CHECK(run_office(-1, 0, silent).wrong.find("sleeps forever") != std::string::npos);
}
