// Deadlines, descriptors, the trace ring, packing.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <string>

#include "base/abort.h"
#include "base/backoff.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/trace.h"
#include "ranks.h"
#include "transport/socket/pack.h"

using namespace hvd;

namespace {

// What a line of the log is where these variables are set (null: not set), on stderr.
std::string logged(const char* hides, const char* level, const char* our_level = nullptr) {
  // NOLINTBEGIN(concurrency-mt-unsafe)
  const auto set = [](const char* name, const char* value) {
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  };
  set("HOROVOD_LOG_HIDE_TIME", hides);
  set("HOROVOD_LOG_LEVEL", level);
  set("HVD_LOG_LEVEL", our_level);
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) == 0);
  const Fd in(ends[0]), out(ends[1]), stderr_before(::dup(STDERR_FILENO));
  ::dup2(out.get(), STDERR_FILENO);
  log(Level::kInfo, "room", "text");
  ::dup2(stderr_before.get(), STDERR_FILENO);
  std::array<char, 200> line{};
  const ssize_t got = ::read(in.get(), line.data(), line.size());
  set("HOROVOD_LOG_HIDE_TIME", nullptr);
  set("HOROVOD_LOG_LEVEL", nullptr);
  set("HVD_LOG_LEVEL", nullptr);
  // NOLINTEND(concurrency-mt-unsafe)
  return {line.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

}  // namespace

TEST_CASE("log: HOROVOD_LOG_HIDE_TIME switches the time of a line") {
  const std::string plain = "hvd_kernel info: room: text\n";
  const std::regex timed(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} hvd_kernel info: room: text\n)");
  for (const char* const shows : {"0", "no", "false", "OFF", "00", "maybe"}) {
    CAPTURE(shows);
    CHECK(std::regex_match(logged(shows, "info"), timed));
  }
  for (const char* const hides : {"1", "yes", "TRUE", "on", "2", ""}) {
    CAPTURE(hides);
    CHECK(logged(hides, "info") == plain);
  }
  CHECK(logged(nullptr, "info") == plain);
  CHECK(logged(nullptr, "warning") == "");
}

TEST_CASE("log: our own variable that is empty leaves the level to Horovod's") {
  CHECK(logged(nullptr, "INFO", "") == "hvd_kernel info: room: text\n");  // hvdrun --log-level INFO
  CHECK(logged(nullptr, "INFO", "error") == "");
}

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

TEST_CASE("abort: the first cause is kept") {
  Abort abort;
  CHECK_FALSE(abort.raised());
  test::run_ranks(4,
                  [&](int rank) { abort.raise(Status::make(Code::kAborted, "x", "test", rank)); });
  CHECK(abort.raised());
  const int first = abort.cause().rank;
  CHECK_FALSE(abort.raise(Status::make(Code::kInternal, "later", "test", 9)));
  CHECK(abort.cause().rank == first);
}

TEST_CASE("trace: records are read completely, in order, once") {
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

TEST_CASE("spin: polls up to a count or a time, then not again until a restart") {
  const auto looks = [](Spin& spin) {
    int count = 0;
    while (spin.again()) ++count;
    return count;
  };
  Spin counted(Spin::Between::kYield, 16U);
  CHECK(looks(counted) == 16);
  CHECK_FALSE(counted.again());
  counted.restart();
  CHECK(looks(counted) == 16);
  Spin none = Spin::none();
  CHECK_FALSE(none.again());
  Spin timed(Spin::Between::kPause, std::chrono::milliseconds(2));
  const std::int64_t begin = now_ns();
  CHECK(looks(timed) > 0);
  CHECK(now_ns() - begin >= 2'000'000);
  CHECK_FALSE(timed.again());
  timed.restart();
  CHECK(timed.again());
}

TEST_CASE("polling: naps once the spin is over") {
  using std::chrono::milliseconds;
  Polling polling(Spin(Spin::Between::kPause, 1000U), milliseconds(1), std::chrono::hours(1));
  for (int i = 0; i < 1000; ++i) polling.pause();
  const std::int64_t begin = now_ns();
  for (int i = 0; i < 3; ++i) polling.pause();
  CHECK(now_ns() - begin >= 3'000'000);
}

TEST_CASE("pack: values round-trip, little-endian") {
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

TEST_CASE("pack: lists, enums and flags are appended") {
  enum class Colour : std::uint8_t { kRed, kGreen };
  std::string bytes = "head";
  Packer(bytes)
      .list(std::vector<std::int16_t>{-2, 3})
      .number(Colour::kGreen)
      .flag(true)
      .number(0.5);
  CHECK(bytes == std::string("head\x02\0\0\0\xFE\xFF\x03\0\x01\x01\0\0\0\0\0\0\xE0\x3F", 22));
  Unpacker reader(std::string_view(bytes).substr(4));
  CHECK(reader.list<std::int16_t>() == std::vector<std::int16_t>{-2, 3});
  CHECK(reader.at() == 8);
  CHECK(reader.one_of<Colour>(2) == Colour::kGreen);
  CHECK(reader.flag());
  CHECK(reader.number<double>() == 0.5);
  CHECK(reader.complete());
}

TEST_CASE(
    "pack: a list that claims more than is there, a flag and an enum out of range are found") {
  const std::string lying = Packer().length(3).number(std::uint64_t{1}).take();
  Unpacker list(lying), flag("\x02"), choice("\x02");
  CHECK(list.list<std::uint32_t>().empty());
  CHECK_FALSE(list.ok());
  CHECK_FALSE(flag.flag());
  CHECK_FALSE(flag.ok());
  CHECK(choice.one_of<std::uint8_t>(2) == 0);
  CHECK_FALSE(choice.ok());
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
