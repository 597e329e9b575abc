// Deadlines, descriptors, the trace ring, packing.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/abort.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/trace.h"
#include "ranks.h"
#include "transport/pack.h"

using namespace hvd;

TEST_CASE("deadline: remaining time is never negative and rounds up") {
  const Deadline past(std::chrono::seconds(-1));
  CHECK(past.expired());
  CHECK(past.remaining().count() == 0);
  CHECK(past.remaining_ms() == 0);
  const Deadline soon(std::chrono::microseconds(900));
  CHECK(soon.remaining_ms() <= 1);
  CHECK_FALSE(Deadline::never().expired());
  CHECK(Deadline::never().remaining_ms(250) == 250);
  CHECK_FALSE(Deadline::after_seconds(1e300).expired());
}

TEST_CASE("fd: closes itself, moves, and errors carry the system's sentence") {
  int raw = -1;
  {
    Fd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    raw = first.get();
    REQUIRE(first);
    const Fd second = std::move(first);
    CHECK(second.get() == raw);
    CHECK(::fcntl(raw, F_GETFD) != -1);
  }
  CHECK(::fcntl(raw, F_GETFD) == -1);
  const Status status = errno_status("cannot open it", "test", ENOENT);
  CHECK(status.code == Code::kUnavailable);
  CHECK(status.message == "cannot open it: No such file or directory (errno 2)");
  const Result<std::string> a = random_bytes(16), b = random_bytes(16);
  REQUIRE(a.is_ok());
  CHECK(a.value().size() == 16);
  CHECK(a.value() != b.value());
}

TEST_CASE("abort: the first cause wins, whoever raises") {
  Abort abort;
  CHECK_FALSE(abort.raised());
  test::run_ranks(4,
                  [&](int rank) { abort.raise(Status::make(Code::kAborted, "x", "test", rank)); });
  CHECK(abort.raised());
  const int first = abort.cause().rank;
  CHECK_FALSE(abort.raise(Status::make(Code::kInternal, "later", "test", 9)));
  CHECK(abort.cause().rank == first);
}

TEST_CASE("trace: records come back whole, in order, once") {
  Trace trace(8);
  std::uint64_t cursor = 0;
  CHECK(trace.read(cursor).empty());
  for (int i = 0; i < 5; ++i)
    trace.add(i, 10 * i, "ALLREDUCE", "grad/" + std::to_string(i), 100 * i);
  const auto records = trace.read(cursor);
  REQUIRE(records.size() == 5);
  for (int i = 0; i < 5; ++i) {
    const TraceRecord& record = records[static_cast<std::size_t>(i)];
    CHECK(record.start_ns == i);
    CHECK(record.duration_ns == 10 * i);
    CHECK(std::string(record.phase) == "ALLREDUCE");
    CHECK(record.name == "grad/" + std::to_string(i));
    CHECK(record.bytes == 100 * i);
  }
  CHECK(trace.read(cursor).empty());
}

TEST_CASE("trace: a slow reader gets the newest, and a long name is cut at a whole character") {
  Trace trace(8);
  for (int i = 0; i < 100; ++i) trace.add(i, 0, "P", std::string(62, 'a') + "\xC3\xA9", 0);
  std::uint64_t cursor = 0;
  const auto records = trace.read(cursor);
  REQUIRE(records.size() == 8);
  CHECK(records.front().start_ns == 92);
  CHECK(records.back().start_ns == 99);
  CHECK(records.back().name == std::string(62, 'a'));
  CHECK(cursor == 100);
}

TEST_CASE("trace: several writers and a reader never show a torn record") {
  Trace trace(64);
  constexpr int kRecords = 20'000;
  std::atomic<int> writing{3};
  std::int64_t seen = 0, torn = 0;
  test::run_ranks(4, [&](int rank) {
    if (rank < 3) {
      const std::string name(20, static_cast<char>('a' + rank));
      for (int i = 0; i < kRecords; ++i) trace.add(rank, rank, "P", name, rank);
      --writing;
      return;
    }
    std::uint64_t cursor = 0;
    for (bool last = false; !last;) {
      last = writing.load() == 0;
      for (const TraceRecord& record : trace.read(cursor)) {
        ++seen;
        const std::string name(20, static_cast<char>('a' + record.bytes));
        if (record.name != name || record.start_ns != record.bytes ||
            record.duration_ns != record.bytes)
          ++torn;
      }
    }
  });
  CHECK(torn == 0);
  CHECK(seen > 0);
  CHECK(seen <= 3 * kRecords);
}

TEST_CASE("pack: what goes in comes out, little-endian") {
  std::string bytes = Packer()
                          .number(std::uint32_t{0x01020304})
                          .number(std::int64_t{-5})
                          .text("hvd")
                          .raw("!")
                          .take();
  CHECK(bytes.substr(0, 4) == "\x04\x03\x02\x01");
  Unpacker reader(bytes);
  CHECK(reader.number<std::uint32_t>() == 0x01020304);
  CHECK(reader.number<std::int64_t>() == -5);
  CHECK(reader.text() == "hvd");
  CHECK_FALSE(reader.complete());
  CHECK(reader.raw(1) == "!");
  CHECK(reader.complete());
}

TEST_CASE("pack: every truncation and every wrong length is found") {
  const std::string bytes =
      Packer().number(std::uint16_t{7}).text("name").number(std::uint8_t{1}).take();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    Unpacker reader(std::string_view(bytes).substr(0, length));
    reader.number<std::uint16_t>();
    const std::string text = reader.text();
    reader.number<std::uint8_t>();
    CHECK_FALSE(reader.ok());
    CHECK(text.size() <= 4);
  }
  Unpacker lying(
      std::string_view("\xFF\xFF\xFF\xFF"
                       "abc",
                       7));
  CHECK(lying.text().empty());
  CHECK_FALSE(lying.ok());
  CHECK(lying.number<std::uint64_t>() == 0);
}
