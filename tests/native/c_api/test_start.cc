// Engines of programs without Python: a bootstrap in C, settings as texts.
#include <doctest/doctest.h>

#include <cstdio>

#include "framework.h"

namespace hvd::test {
namespace {

// A rank's end of a Meeting, as a function of C; what it gives lives here.
struct Carrier {
  Meeting* meeting = nullptr;
  int rank = 0;
  std::vector<std::string> all;

  static std::int32_t exchange(void* context, const void* mine, std::size_t size, const void** all,
                               std::size_t* sizes, char* /*text*/, std::size_t /*text_size*/) {
    auto& self = *static_cast<Carrier*>(context);
    self.all = self.meeting->allgather(self.rank, {static_cast<const char*>(mine), size});
    for (std::size_t i = 0; i < self.all.size(); ++i) {
      all[i] = self.all[i].data();
      sizes[i] = self.all[i].size();
    }
    return 0;
  }
};

std::int32_t fail(void* /*context*/, const void* /*mine*/, std::size_t /*size*/,
                  const void** /*all*/, std::size_t* /*sizes*/, char* text, std::size_t text_size) {
  std::snprintf(text, text_size, "the line is down");
  return 1;
}

}  // namespace

TEST_CASE("table: programs without Python start engines, use them and end them") {
  constexpr int kRanks = 3;
  Meeting meeting(kRanks);
  run_ranks(kRanks, [&](int rank) {
    Carrier carrier;
    carrier.meeting = &meeting;
    carrier.rank = rank;
    const char* const names[] = {"fusion_threshold", "cycle_time_ms"};
    const char* const values[] = {"1024", "1"};
    char text[256] = "";
    hvd_engine* const engine = core().start(rank, kRanks, &Carrier::exchange, &carrier, names,
                                            values, 2, text, sizeof(text));
    REQUIRE(std::string(text) == "");
    REQUIRE((engine != nullptr));
    CHECK(core().rank(engine) == rank);
    CHECK(core().size(engine) == kRanks);
    check_usable(engine, "x");
    core().shutdown(engine);
    core().release(engine);
  });
}

TEST_CASE("table: a failed start reports the reason") {
  char text[256] = "";
  CHECK((core().start(0, 2, &fail, nullptr, nullptr, nullptr, 0, text, sizeof(text)) == nullptr));
  CHECK(std::string(text).find("the line is down") != std::string::npos);
  CHECK((core().start(2, 2, &fail, nullptr, nullptr, nullptr, 0, text, sizeof(text)) == nullptr));
  CHECK(std::string(text).find("rank 2 of 2") != std::string::npos);
  const char* const names[] = {"no_such_setting"};
  const char* const values[] = {"1"};
  CHECK((core().start(0, 1, &fail, nullptr, names, values, 1, text, sizeof(text)) == nullptr));
  CHECK(std::string(text).find("no_such_setting") != std::string::npos);
}

}  // namespace hvd::test
