// The timeline: events exactly, and a file that is valid JSON whenever it is looked at.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "engine/timeline/json_check.h"
#include "engine/timeline/timeline.h"
#include "ranks.h"

using namespace hvd;
using test::JsonCheck;

namespace {

TraceRecord record(std::int64_t start_ns, std::int64_t duration_ns, const char* phase,
                   const std::string& name, std::int64_t bytes = 0, std::int64_t detail = 0) {
  TraceRecord made;
  made.start_ns = start_ns;
  made.duration_ns = duration_ns;
  made.phase = phase;
  made.name = name;
  made.bytes = bytes;
  made.detail = detail;
  return made;
}

struct TempFolder {
  TempFolder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~TempFolder() {
    for (const std::string& file : files) ::unlink(file.c_str());
    ::rmdir(path.c_str());
  }
  std::string file(const std::string& name) {
    files.push_back(path + "/" + name);
    return files.back();
  }
  std::string path = "/tmp/hvd-timeline-XXXXXX";
  std::vector<std::string> files;
};

std::string read_once(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(file);
  struct stat info{};
  REQUIRE(::fstat(file.get(), &info) == 0);
  std::string text(static_cast<std::size_t>(info.st_size) + (1U << 16U), '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  REQUIRE(got >= 0);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

// The file as it is between two writes. ext4 lets a read see half of a write; a change of the mode
// waits for a write that is going on, so a half-written text does not come twice.
std::string read_file(const std::string& path) {
  std::string before = read_once(path);
  for (;;) {
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    std::string now = read_once(path);
    if (now == before) return now;
    before = std::move(now);
  }
}

std::vector<std::string> events_in(const std::string& text) {
  bool ok = false;
  std::vector<std::string> events = JsonCheck::elements(text, ok);
  CAPTURE(text.substr(text.size() > 400 ? text.size() - 400 : 0));
  CHECK(ok);
  return events;
}

std::size_t count_of(const std::vector<std::string>& events, const std::string& part) {
  return static_cast<std::size_t>(std::count_if(
      events.begin(), events.end(),
      [&](const std::string& event) { return event.find(part) != std::string::npos; }));
}

// The value of a key in an event's text; "": it has none.
std::string field(const std::string& event, const std::string& key) {
  const std::string quoted = "\"" + key + "\":";
  const std::size_t at = event.find(quoted);
  if (at == std::string::npos) return "";
  const std::size_t from = at + quoted.size();
  return event.substr(from, event.find_first_of(",}", from) - from);
}

// On every lane time never goes back and each end closes what was begun. How many bars there are.
std::size_t check_nesting(const std::vector<std::string>& events) {
  struct FastPath {
    double now = 0;
    int open = 0;
  };
  std::map<std::pair<std::string, std::string>, FastPath> lanes;
  std::size_t bars = 0;
  for (const std::string& event : events) {
    const std::string kind = field(event, "ph");
    if (kind != "\"B\"" && kind != "\"E\"") continue;
    CAPTURE(event);
    FastPath& lane = lanes[{field(event, "pid"), field(event, "tid")}];
    const double ts = std::strtod(field(event, "ts").c_str(), nullptr);
    CHECK(ts >= lane.now);
    lane.now = ts;
    lane.open += kind == "\"B\"" ? 1 : -1;
    CHECK(lane.open >= 0);
    bars += kind == "\"B\"" ? 1 : 0;
  }
  for (const auto& [place, lane] : lanes) CHECK(lane.open == 0);
  return bars;
}

std::unique_ptr<Timeline> started(const Trace& trace, const std::string& path,
                                  bool mark_cycles = false, int ranks_now = 0) {
  Result<std::unique_ptr<Timeline>> timeline =
      Timeline::start(trace, path, mark_cycles, nullptr, ranks_now);
  REQUIRE_MESSAGE(timeline, timeline.status().message);
  return timeline.take();
}

}  // namespace

TEST_CASE("json check: accepts JSON and rejects other text") {
  const auto valid = [](const std::string& text) {
    bool ok = false;
    JsonCheck::elements(text, ok);
    return ok;
  };
  for (const char* text :
       {"[]", " [1, -2.5e+3, 0] \n", R"([{"a":"\u00e9\n","b":[true,false,null]},"x"])"}) {
    CAPTURE(text);
    CHECK(valid(text));
  }
  for (const char* text : {"", "[", "[1,]", "[1]]", "[1] x", "[01]", "[\"\n\"]", "[\"\\x\"]",
                           "[{\"a\":}]", "[{a:1}]", "[1 2]", "[\"a]", "[.5]", "{}", "[tru]"}) {
    CAPTURE(text);
    CHECK_FALSE(valid(text));
  }
}

TEST_CASE("timeline events: a negotiation and an operation, exactly") {
  TimelineEvents events(1'000, false);
  TraceRecord operation = record(5'500, 10'000, "ALLREDUCE", "allreduce.a", 8, 3);
  operation.dtype = "float32";
  operation.shape = "[1, 2]";
  const std::string text =
      events.of({record(2'500, 0, "READY", "allreduce.a", 0, 1),
                 record(2'000, 3'500, "NEGOTIATE_ALLREDUCE", "allreduce.a", 8, 0), operation,
                 record(5'500, 9'000, "SHM_SLICES", "allreduce.a", 8, 3)});
  CHECK(text ==
        R"({"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"allreduce.a"}},
{"name":"process_sort_index","ph":"M","pid":1,"tid":0,"args":{"sort_index":1}},
{"name":"1","ph":"X","ts":1.500,"dur":0,"pid":1,"tid":0},
{"name":"NEGOTIATE_ALLREDUCE","ph":"B","ts":1.000,"pid":1,"tid":0},
{"ph":"E","ts":4.500,"pid":1,"tid":0,"args":{"bytes":8,"fused":0}},
{"name":"ALLREDUCE","ph":"B","ts":4.500,"pid":1,"tid":0},
{"name":"SHM_SLICES","ph":"B","ts":4.500,"pid":1,"tid":0},
{"ph":"E","ts":13.500,"pid":1,"tid":0,"args":{"bytes":8,"fused":3}},
{"ph":"E","ts":14.500,"pid":1,"tid":0,"args":{"bytes":8,"fused":3,"dtype":"float32","shape":"[1, 2]"}})");
  // The row is named once.
  CHECK(events.of({record(20'000, 0, "READY", "allreduce.a", 0, 0)}) ==
        R"({"name":"0","ph":"X","ts":19.000,"dur":0,"pid":1,"tid":0})");
}

TEST_CASE("timeline events: a negotiation begins with the first rank's request") {
  TimelineEvents events(0, false);
  const std::string text = events.of(
      {record(1'000, 0, "READY", "x", 0, 2),  // of an operation that failed
       record(3'000, 0, "READY", "x", 0, 2), record(5'000, 0, "READY", "x", 0, 0),
       record(7'000, 0, "READY", "x", 0, 2),  // for the next one, before this one's bars come
       record(5'500, 500, "NEGOTIATE_ALLREDUCE", "x"), record(6'000, 100, "ALLREDUCE", "x"),
       record(8'000, 1'000, "NEGOTIATE_ALLREDUCE", "x"), record(9'000, 100, "ALLREDUCE", "x"),
       record(9'500, 500, "NEGOTIATE_ALLREDUCE", "x"), record(10'000, 100, "ALLREDUCE", "x")});
  for (const char* const ts : {"3.000", "7.000", "9.500"}) {
    CAPTURE(text);
    CHECK(count_of(events_in("[" + text + "]"),
                   std::string(R"({"name":"NEGOTIATE_ALLREDUCE","ph":"B","ts":)") + ts) == 1);
  }
}

TEST_CASE("timeline events: overlapping operations of one name have lanes of their own") {
  TimelineEvents events(0, false);
  // A device does the first while the second is agreed on.
  const auto operation = [](std::int64_t asked, std::int64_t done) {
    return std::vector<TraceRecord>{record(asked, 10, "NEGOTIATE_ALLREDUCE", "x"),
                                    record(asked + 10, done - asked - 10, "ALLREDUCE", "x")};
  };
  const auto lanes = [&](std::int64_t asked, std::int64_t done) {
    const auto all = events_in("[" + events.of(operation(asked, done)) + "]");
    std::set<std::string> found;
    for (const std::string& event : all) found.insert(field(event, "tid"));
    found.erase(found.size() > 1 ? "0" : "");  // of the row's name
    return found;
  };
  CHECK(lanes(1'000, 5'000) == std::set<std::string>{"0"});
  CHECK(lanes(2'000, 6'000) == std::set<std::string>{"1"});
  CHECK(lanes(3'000, 7'000) == std::set<std::string>{"2"});
  CHECK(lanes(5'000, 8'000) == std::set<std::string>{"0"});
  CHECK(lanes(6'000, 9'000) == std::set<std::string>{"1"});
}

TEST_CASE("timeline events: in any schedule, bars of a lane nest and times increase") {
  std::mt19937 random(18);
  const auto draw = [&](int below) { return static_cast<std::int64_t>(random() % below); };
  for (int round = 0; round < 30; ++round) {
    TimelineEvents events(0, true);
    std::string text;
    std::int64_t now = 0;
    std::size_t bars = 0;
    for (int batch = 0; batch < 5; ++batch) {
      std::vector<TraceRecord> records;
      for (int i = 0; i < 20; ++i) {
        const std::string name = "x" + std::to_string(draw(3));
        const std::int64_t asked = now += draw(40), agreed = asked + draw(30);
        const std::int64_t end = agreed + draw(200);
        for (std::int64_t rank = draw(3); rank > 0; --rank)
          records.push_back(record(asked - draw(20), 0, "READY", name, 0, rank));
        records.push_back(record(asked, agreed - asked, "NEGOTIATE_ALLREDUCE", name));
        records.push_back(record(agreed, end - agreed, "ALLREDUCE", name));
        bars += 2;
        for (std::int64_t at = agreed; at < end && draw(3) > 0; ++bars) {
          const std::int64_t step = draw(static_cast<int>(end - at) + 1);
          records.push_back(record(at, step, "QUEUE", name));
          at += step;
        }
      }
      text += (text.empty() ? "" : ",") + events.of(records);
    }
    const auto all = events_in("[" + text + "]");
    CHECK(check_nesting(all) == bars);
    for (const std::string& event : all) {
      CAPTURE(event);
      const bool names = field(event, "ph") != "\"E\"";
      CHECK((!names || event.find(R"({"name":")") == 0));
      CHECK(field(event, "pid") != "");
      CHECK(field(event, "tid") != "");
      CHECK((field(event, "ts") != "" || field(event, "ph") == "\"M\""));
    }
  }
}

TEST_CASE("timeline events: bars of a row nest for any order of the records") {
  TimelineEvents events(0, false);
  // The inner one first, and it ends after the outer one: it is cut.
  const std::string text =
      events.of({record(2'000, 9'000, "INNER", "x"), record(1'000, 5'000, "OUTER", "x"),
                 record(1'500, 1'000, "OTHER", "y")});
  const std::vector<std::string> all = events_in("[" + text + "]");
  std::vector<std::string> order;
  for (const std::string& event : all) {
    if (event.find(R"("pid":1)") != std::string::npos && event.find("\"M\"") == std::string::npos)
      order.push_back(event.substr(0, event.find(",\"pid\"")));
  }
  CHECK(order == std::vector<std::string>{R"({"name":"OUTER","ph":"B","ts":1.000)",
                                          R"({"name":"INNER","ph":"B","ts":2.000)",
                                          R"({"ph":"E","ts":6.000)", R"({"ph":"E","ts":6.000)"});
  CHECK(count_of(all, R"("pid":2)") == 4);
}

TEST_CASE("timeline events: cycles only if enabled; events from before the origin begin at 0") {
  const std::vector<TraceRecord> records{record(3'000, 0, "CYCLE", ""),
                                         record(1'000, 4'000, "NEGOTIATE_BARRIER", "barrier")};
  TimelineEvents without(2'000, false), with(2'000, true);
  CHECK(without.of(records).find("CYCLE") == std::string::npos);
  const std::vector<std::string> all = events_in("[" + with.of(records) + "]");
  CHECK(all[0] == R"({"name":"CYCLE_START","ph":"i","s":"g","pid":0,"tid":0,"ts":1.000})");
  CHECK(count_of(all, R"("ph":"B","ts":0.000)") == 1);
  CHECK(count_of(all, R"("ph":"E","ts":3.000)") == 1);
  CHECK(
      with.lost(7, 4'000) ==
      R"({"name":"RECORDS_LOST","ph":"i","s":"g","pid":0,"tid":0,"ts":2.000,"args":{"records":7}})");
}

TEST_CASE("json text: quotes, backslashes, control characters, valid and invalid UTF-8") {
  CHECK(json_text("a/b.c") == "\"a/b.c\"");
  CHECK(json_text("a\"b\\c") == R"("a\"b\\c")");
  CHECK(json_text(std::string("\n\0\x1f\x7f", 4)) == "\"\\u000a\\u0000\\u001f\x7f\"");
  CHECK(json_text("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80") ==
        "\"gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80\"");
  // A lone continuation, an overlong form, a surrogate, beyond U+10FFFF, a cut character.
  CHECK(json_text("\x80") == "\"\\ufffd\"");
  CHECK(json_text("\xC0\xAF") == "\"\\ufffd\\ufffd\"");
  CHECK(json_text("\xED\xA0\x80") == "\"\\ufffd\\ufffd\\ufffd\"");
  CHECK(json_text("\xF4\x90\x80\x80") == "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
  CHECK(json_text("\xE2\x82") == "\"\\ufffd\\ufffd\"");
}

TEST_CASE("timeline: starts as valid JSON with the time of its origin, then writes events") {
  TempFolder folder;
  const std::string path = folder.file("a.json");
  Trace trace(64);
  trace.add(1, 1, "ALLREDUCE", "before", 0);
  auto timeline = started(trace, path);
  std::vector<std::string> events = events_in(read_file(path));
  REQUIRE(events.size() == 1);
  CHECK(events[0].find(R"("start_time_since_epoch_in_micros":)") != std::string::npos);
  trace.add(2, 5, "NEGOTIATE_ALLREDUCE", "after \"quoted\" \xE2\x82\xAC\n", 16);
  trace.add(7, 5, "ALLREDUCE", "after \"quoted\" \xE2\x82\xAC\n", 16, 1);
  timeline.reset();
  events = events_in(read_file(path));
  CHECK(events.size() == 1 + 2 + 4);
  CHECK(count_of(events, "before") == 0);
  CHECK(count_of(events, "\"name\":\"after \\\"quoted\\\" \xE2\x82\xAC\\u000a\"") == 1);
}

TEST_CASE("timeline: continued after a reset, it marks the reset and has new rows") {
  TempFolder folder;
  const std::string path = folder.file("a.json");
  const std::string early(300, 'e');
  for (int ranks = 1; ranks <= 3; ++ranks) {  // of an engine each, with a trace of its own
    Trace trace(64);
    auto timeline = started(trace, path, false, ranks == 1 ? 0 : ranks);
    trace.add(now_ns(), 5, "ALLREDUCE", ranks == 1 ? early.c_str() : "late", 16, 1);
  }
  const std::vector<std::string> events = events_in(read_file(path));
  CHECK(count_of(events, "start_time_since_epoch_in_micros") == 1);
  CHECK(count_of(events, R"("name":"RESET")") == 2);
  CHECK(count_of(events, R"("args":{"ranks":3}})") == 1);
  std::set<std::string> rows;
  double last = 0;
  for (const std::string& event : events) {
    if (event.find(R"("name":"process_name")") != std::string::npos)
      rows.insert(field(event, "pid"));
    if (event.find(R"("ts":)") == std::string::npos) continue;
    const double at = std::strtod(field(event, "ts").c_str(), nullptr);
    CHECK(at >= last);
    last = at;
  }
  CHECK(rows.size() == 1 + 3);
}

TEST_CASE("timeline: continues only a complete file, and replaces any other") {
  TempFolder folder;
  Trace trace(64);
  for (const std::string text : {"", "[]", "[\n{}\n]\n", "[\n{}", "no JSON at all\n]\n"}) {
    const std::string path = folder.file("a.json");
    std::ofstream(path) << text;
    started(trace, path, false, 2).reset();
    const std::vector<std::string> events = events_in(read_file(path));
    CHECK(count_of(events, "start_time_since_epoch_in_micros") == 1);
    CHECK(count_of(events, "RESET") == 0);
  }
  started(trace, folder.file("new.json"), false, 2).reset();
  CHECK(events_in(read_file(folder.file("new.json"))).size() == 1);
}

TEST_CASE("timeline: a second timeline uses another file") {
  TempFolder folder;
  const std::string first = folder.file("1.json"), second = folder.file("2.json");
  Trace trace(64);
  auto timeline = started(trace, first);
  trace.add(1, 1, "ALLREDUCE", "one", 0);
  timeline.reset();
  trace.add(2, 1, "ALLREDUCE", "between", 0);
  timeline = started(trace, second, true);
  trace.add(3, 1, "ALLREDUCE", "two", 0);
  trace.add(4, 0, "CYCLE", "", 0);
  timeline.reset();
  const auto in_first = events_in(read_file(first)), in_second = events_in(read_file(second));
  CHECK(count_of(in_first, "\"one\"") == 1);
  CHECK(count_of(in_first, "\"two\"") == 0);
  CHECK(count_of(in_second, "\"two\"") == 1);
  CHECK(count_of(in_second, "\"one\"") == 0);
  CHECK(count_of(in_second, "CYCLE_START") == 1);
  for (const auto* events : {&in_first, &in_second}) CHECK(count_of(*events, "between") == 0);
}

TEST_CASE("timeline: an existing file is replaced") {
  TempFolder folder;
  const std::string path = folder.file("a.json");
  Trace trace(64);
  for (int round = 0; round < 2; ++round) {
    auto timeline = started(trace, path);
    if (round == 0) trace.add(1, 1, "ALLREDUCE", std::string(60, 'x'), 0);
  }
  CHECK(events_in(read_file(path)).size() == 1);
}

TEST_CASE("timeline: valid JSON at every moment while it is written") {
  TempFolder folder;
  const std::string path = folder.file("a.json");
  Trace trace(4096);
  auto timeline = started(trace, path);
  constexpr std::size_t kStates = 25, kBurst = 200;
  std::atomic<std::size_t> seen{0};  // so many bursts have made the file longer
  test::run_ranks(2, [&](int rank) {
    std::size_t before = 1;
    for (std::size_t state = 0; state < kStates; ++state) {
      if (rank == 0) {
        while (seen.load() < state) std::this_thread::yield();
        for (std::size_t i = 0; i < kBurst; ++i) {
          const auto at = static_cast<std::int64_t>(2 * (kBurst * state + i));
          const std::string name = "allreduce.grad/" + std::to_string(i);
          trace.add(at, 1, "NEGOTIATE_ALLREDUCE", name, 4);
          trace.add(at + 1, 1, "ALLREDUCE", name, 4, 1);
        }
      } else {
        std::size_t now = before;
        while (now == before) now = events_in(read_file(path)).size();
        CHECK(now > before);
        before = now;
        ++seen;
      }
    }
  });
  timeline.reset();
  const auto events = events_in(read_file(path));
  CHECK(count_of(events, R"("ph":"B")") == 2 * kBurst * kStates);
  CHECK(count_of(events, R"("ph":"E")") == 2 * kBurst * kStates);
}

TEST_CASE("timeline: a reader that is too slow for the ring reports how many events it lost") {
  TempFolder folder;
  const std::string path = folder.file("a.json");
  Trace trace(16);
  auto timeline = started(trace, path);
  for (int i = 0; i < 100'000; ++i) trace.add(i, 1, "ALLREDUCE", "x", 0);
  timeline.reset();
  const auto events = events_in(read_file(path));
  std::size_t lost = 0;
  for (const std::string& event : events) {
    const std::size_t at = event.find(R"("records":)");
    if (at != std::string::npos) lost += std::strtoull(event.c_str() + at + 10, nullptr, 10);
  }
  CHECK(lost > 0);
  CHECK(count_of(events, R"("ph":"E")") + lost == 100'000);
}

TEST_CASE("timeline: the time during which the process was stopped is not written") {
  TempFolder folder;
  const std::string path = folder.file("a.json");
  Trace trace(64);
  auto timeline = started(trace, path);
  trace.add(1, 1, "NEGOTIATE_ALLREDUCE", "x", 4);
  trace.add(1, 3, "WAIT", "x", 0);
  trace.add(2, 1, "ALLREDUCE", "x", 4, 1);
  timeline.reset();
  const std::string text = read_file(path);
  CHECK(text.find("WAIT") == std::string::npos);
  CHECK(count_of(events_in(text), R"("ph":"E")") == 2);
}

TEST_CASE("timeline: without a file there is no timeline") {
  Trace trace(64);
  const auto nowhere = Timeline::start(trace, "/nonexistent/a.json", false);
  CHECK(nowhere.status().message ==
        "cannot open the timeline /nonexistent/a.json: No such file or directory (errno 2)");
  const auto full = Timeline::start(trace, "/dev/full", false);
  CHECK(full.status().code == Code::kUnavailable);
}

TEST_CASE("timeline: on a full disk it ends with the complete events") {
  TempFolder folder;
  const std::string path = folder.file("a.json");
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  Trace trace(4096);
  auto timeline = started(trace, path);
  const rlimit small{20'000, old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);  // the timeline's thread has blocked SIGXFSZ
  for (int i = 0; i < 2'000; ++i) trace.add(i, 1, "ALLREDUCE", "x" + std::to_string(i), 0);
  timeline.reset();
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  const std::string text = read_file(path);
  CHECK(text.size() <= 20'000);
  CHECK(events_in(text).size() >= 1);
}
