// The C table as plugins use it: versions, plain C, the current engine.
#include <doctest/doctest.h>

#include <cstddef>

#include "framework.h"
#include "plain.h"

namespace hvd::test {

TEST_CASE("table: C and C++ have the same structs, and every function exists") {
  std::size_t sizes[4] = {};
  plain_sizes(sizes);
  CHECK(sizes[0] == sizeof(hvd_request));
  CHECK(sizes[1] == sizeof(hvd_outcome));
  CHECK(sizes[2] == sizeof(hvd_output));
  CHECK(sizes[3] == sizeof(hvd_core));
  CHECK(core().struct_size == sizeof(hvd_core));
  CHECK(std::string(core().version).find('.') != std::string::npos);
  const auto* const functions = reinterpret_cast<void* const*>(&core().current);
  const std::size_t count = (sizeof(hvd_core) - offsetof(hvd_core, current)) / sizeof(void*);
  for (std::size_t i = 0; i < count; ++i) CHECK((functions[i] != nullptr));
}

TEST_CASE("table: a program in C sums over ranks") {
  on_ranks(3, [](hvd_engine* engine, int rank) {
    std::vector<float> values(5, static_cast<float>(rank + 1));
    plain_ending ending{};
    char text[64] = "";
    REQUIRE(plain_sum(engine, "x", values.data(), 5, &ending, text, sizeof(text)) == HVD_OK);
    Told barrier;
    REQUIRE(asked(engine, request_of(HVD_BARRIER, "after", barrier)) == "");
    barrier.wait();
    CHECK(ending.calls == 1);
    CHECK(ending.code == HVD_OK);
    CHECK(values == std::vector<float>(5, 6.0F));
  });
}

TEST_CASE("table: an engine exists only while it is current") {
  CHECK((core().current() == nullptr));
  Told told;
  int code = 0;
  CHECK(asked(nullptr, request_of(HVD_BARRIER, "x", told), &code) ==
        "Horovod has not been initialized; use hvd.init().");
  CHECK(code == HVD_SHUTDOWN);
  on_ranks(1, [](hvd_engine* engine, int) {
    core().make_current(engine);
    hvd_engine* const found = core().current();
    CHECK((found == engine));
    CHECK(core().size(found) == 1);
    core().release(found);
    core().make_current(nullptr);
    CHECK((core().current() == nullptr));
  });
  CHECK(told.calls() == 0);
}

}  // namespace hvd::test
