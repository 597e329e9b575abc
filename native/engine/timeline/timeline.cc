#include "engine/timeline/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace hvd {

namespace {

// Bytes of the well-formed UTF-8 character at the start of `text` (Unicode, table 3-7); 0: none.
std::size_t character(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  const unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (at(1) < least || at(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((at(i) & 0xC0U) != 0x80U) return 0;
  }
  return length;
}

void append(std::string& out, const std::string& event) {
  if (!out.empty()) out += ",\n";
  out += event;
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::string args_of(const TraceRecord& record) {
  std::string args = R"({"bytes":)" + number(record.bytes) + R"(,"fused":)" + number(record.detail);
  if (*record.dtype != '\0') {
    args += R"(,"dtype":)" + json_text(record.dtype) + R"(,"shape":)" + json_text(record.shape);
  }
  return args + "}";
}

bool is(const TraceRecord& record, std::string_view phase) { return record.phase == phase; }

std::int64_t end_of(const TraceRecord& record) { return record.start_ns + record.duration_ns; }

// The first lane that is free at `start_ns`; otherwise a new one.
std::size_t fast_path_from(std::vector<std::int64_t>& lanes, std::int64_t start_ns) {
  const auto free = std::find_if(lanes.begin(), lanes.end(),
                                 [&](std::int64_t end_ns) { return end_ns <= start_ns; });
  const auto lane = static_cast<std::size_t>(free - lanes.begin());
  if (free == lanes.end()) lanes.push_back(start_ns);
  return lane;
}

}  // namespace

bool is_instant(const TraceRecord& record) { return is(record, "READY") || is(record, "CYCLE"); }

bool is_wait(const TraceRecord& record) { return is(record, "WAIT"); }

bool negotiates(const TraceRecord& record) {
  return std::string_view(record.phase).rfind("NEGOTIATE_", 0) == 0;
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = character(text);
    const char c = text.front();
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      out += code.data();
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out + "\"";
}

std::string TimelineEvents::micros(std::int64_t at_ns) const {
  const std::int64_t ns = std::max<std::int64_t>(0, at_ns - origin_ns_);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%lld.%03d", static_cast<long long>(ns / 1000),
                static_cast<int>(ns % 1000));
  return text.data();
}

std::string TimelineEvents::first(std::int64_t epoch_us) {
  return R"({"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"hvd_kernel",)"
         R"("start_time_since_epoch_in_micros":)" +
         number(epoch_us) + "}}";
}

std::optional<std::int64_t> TimelineEvents::epoch_of_first(std::string_view text) {
  constexpr std::string_view kWord = R"("start_time_since_epoch_in_micros":)";
  const std::size_t at = text.find(kWord);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + kWord.size());
  std::int64_t epoch_us = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), epoch_us);
  if (error != std::errc() || epoch_us <= 0) return std::nullopt;
  return epoch_us;
}

std::string TimelineEvents::reset(int ranks, std::int64_t at_ns) const {
  return R"({"name":"RESET","ph":"i","s":"g","pid":0,"tid":0,"ts":)" + micros(at_ns) +
         R"(,"args":{"ranks":)" + std::to_string(ranks) + "}}";
}

std::string TimelineEvents::lost(std::uint64_t records, std::int64_t at_ns) const {
  return R"({"name":"RECORDS_LOST","ph":"i","s":"g","pid":0,"tid":0,"ts":)" + micros(at_ns) +
         R"(,"args":{"records":)" + std::to_string(records) + "}}";
}

TimelineEvents::Row& TimelineEvents::row_of(const std::string& name, std::string& out) {
  const auto [row, added] = rows_.try_emplace(name);
  if (added) {
    row->second.pid = after_row_ + static_cast<std::int64_t>(rows_.size());
    const std::string pid = number(row->second.pid);
    append(out, R"({"name":"process_name","ph":"M","pid":)" + pid + R"(,"tid":0,"args":{"name":)" +
                    json_text(name) + "}}");
    append(out, R"({"name":"process_sort_index","ph":"M","pid":)" + pid +
                    R"(,"tid":0,"args":{"sort_index":)" + pid + "}}");
  }
  return row->second;
}

void TimelineEvents::cycle(const TraceRecord& record, std::string& out) const {
  if (!mark_cycles_) return;
  append(out, R"({"name":"CYCLE_START","ph":"i","s":"g","pid":0,"tid":0,"ts":)" +
                  micros(record.start_ns) + "}");
}

void TimelineEvents::ready(Row& row, const TraceRecord& record, std::string& out) const {
  row.ready.push_back({static_cast<int>(record.detail), record.start_ns});
  append(out, R"({"name":")" + number(record.detail) + R"(","ph":"X","ts":)" +
                  micros(record.start_ns) + R"(,"dur":0,"pid":)" + number(row.pid) +
                  R"(,"tid":0})");
}

// The last request of each rank before the end of the negotiation belongs to it; earlier requests,
// of failed operations, have no bars.
void TimelineEvents::begin_at_first_request(Row& row, TraceRecord& negotiation) {
  const std::int64_t end = end_of(negotiation);
  std::map<int, std::int64_t> last;
  std::vector<Ready> later;
  for (const Ready& request : row.ready) {
    if (request.at_ns > end)
      later.push_back(request);
    else
      last[request.rank] = request.at_ns;
  }
  for (const auto& [rank, at_ns] : last) {
    negotiation.start_ns = std::min(negotiation.start_ns, at_ns);
  }
  negotiation.duration_ns = end - negotiation.start_ns;
  row.ready = std::move(later);
}

// By begin; of bars with the same begin the longest is outside, or else the one that was added
// first. (std::stable_sort uses something that C++17 has deprecated.)
std::vector<const TraceRecord*> TimelineEvents::from_outside(const Bars& bars) {
  std::vector<const TraceRecord*> order;
  order.reserve(bars.size());
  for (const TraceRecord& bar : bars) order.push_back(&bar);
  std::sort(order.begin(), order.end(), [](const TraceRecord* a, const TraceRecord* b) {
    return std::make_tuple(a->start_ns, -a->duration_ns, a) <
           std::make_tuple(b->start_ns, -b->duration_ns, b);
  });
  return order;
}

void TimelineEvents::operation(Row& row, Bars bars, std::string& out) const {
  if (bars.empty()) return;
  if (negotiates(bars.front())) begin_at_first_request(row, bars.front());
  const std::vector<const TraceRecord*> nested = from_outside(bars);
  const std::size_t lane = fast_path_from(row.lanes, nested.front()->start_ns);
  const std::string place =
      R"(,"pid":)" + number(row.pid) + R"(,"tid":)" + number(static_cast<std::int64_t>(lane));
  struct Open {
    const TraceRecord* record;
    std::int64_t end_ns;
  };
  std::vector<Open> open;
  const auto close = [&] {
    const std::int64_t end = open.back().end_ns;
    append(out, R"({"ph":"E","ts":)" + micros(end) + place + R"(,"args":)" +
                    args_of(*open.back().record) + "}");
    row.lanes[lane] = std::max(row.lanes[lane], end);
    open.pop_back();
  };
  for (const TraceRecord* const bar : nested) {
    while (!open.empty() && open.back().end_ns <= bar->start_ns) close();
    std::int64_t end = end_of(*bar);
    if (!open.empty()) end = std::min(end, open.back().end_ns);
    append(out, R"({"name":)" + json_text(bar->phase) + R"(,"ph":"B","ts":)" +
                    micros(bar->start_ns) + place + "}");
    open.push_back({bar, end});
  }
  while (!open.empty()) close();
}

std::string TimelineEvents::of(const std::vector<TraceRecord>& records) {
  std::string out;
  std::map<std::string, Bars> open;  // by name: the operation whose records follow
  for (const TraceRecord& record : records) {
    if (is(record, "CYCLE")) {
      cycle(record, out);
      continue;
    }
    Row& row = row_of(record.name, out);
    if (is(record, "READY")) {
      ready(row, record, out);
      continue;
    }
    Bars& bars = open[record.name];
    if (negotiates(record)) operation(row, std::exchange(bars, {}), out);
    bars.push_back(record);
  }
  for (auto& [name, bars] : open) operation(row_of(name, out), std::move(bars), out);
  return out;
}

namespace {

constexpr const char* kWhere = "engine/timeline";
// A ring of 16,384 records lasts longer than this at 800,000 records a second.
constexpr std::chrono::milliseconds kPeriod(20);
constexpr std::string_view kEnd = "\n]\n";

// A JSON array in a file, complete after every call.
class ArrayFile {
 public:
  static Result<ArrayFile> create(const std::string& path, const std::string& first) {
    ArrayFile file;
    file.fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.fd_) return errno_status("cannot open the timeline " + path, kWhere, errno);
    Status status = file.write("[\n" + first);
    if (!status) return status;
    return file;
  }

  // Opens a complete array to append to it; nullopt: no such file.
  static std::optional<ArrayFile> reopen(const std::string& path) {
    ArrayFile file;
    file.fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const off_t size = file.fd_ ? ::lseek(file.fd_.get(), 0, SEEK_END) : 0;
    file.end_ = size - static_cast<off_t>(kEnd.size());
    if (file.end_ <= 0 || file.text_at(file.end_, kEnd.size()) != kEnd) return std::nullopt;
    return file;
  }

  std::string text_at(off_t at, std::size_t most) const {
    std::string text(most, '\0');
    const ssize_t got = ::pread(fd_.get(), text.data(), most, at);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  off_t end() const { return end_; }

  // Elements, separated by commas.
  Status append(const std::string& elements) { return write(",\n" + elements); }

 private:
  // Overwrites the old end with new elements and the new end in one write, so that a reader between
  // two calls always finds a complete array.
  Status write(const std::string& text) {
    std::string_view left;
    const std::string whole = text + std::string(kEnd);
    left = whole;
    off_t at = end_;
    while (!left.empty()) {
      const ssize_t wrote = ::pwrite(fd_.get(), left.data(), left.size(), at);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return give_up(errno);
      left.remove_prefix(static_cast<std::size_t>(wrote));
      at += wrote;
    }
    end_ += static_cast<off_t>(text.size());
    return Status::ok();
  }

  // Restore the array as it was before the failed write, on blocks that the file has already.
  Status give_up(int error) {
    if (end_ > 0 &&
        ::pwrite(fd_.get(), kEnd.data(), kEnd.size(), end_) == static_cast<ssize_t>(kEnd.size()) &&
        ::ftruncate(fd_.get(), end_ + static_cast<off_t>(kEnd.size())) != 0) {
      log(Level::kWarning, kWhere, "the end of the timeline's file may be damaged");
    }
    return errno_status("cannot write the timeline", kWhere, error);
  }

  Fd fd_;
  off_t end_ = 0;  // position of the closing bracket
};

std::int64_t epoch_us() {
  const auto epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(epoch).count();
}

// An open file and the origin of its times.
struct Begun {
  ArrayFile file;
  TimelineEvents events;
};

Result<Begun> begun(const std::string& path, bool mark_cycles) {
  const std::int64_t origin_ns = now_ns();
  Result<ArrayFile> file = ArrayFile::create(path, TimelineEvents::first(epoch_us()));
  if (!file) return file.status();
  return Begun{file.take(), TimelineEvents(origin_ns, mark_cycles)};
}

// Rows get numbers that are not in the file yet: each row in it takes more than a byte.
std::optional<Begun> reopened(const std::string& path, bool mark_cycles, int ranks_now) {
  constexpr std::size_t kFirst = 512;  // bytes that contain the first event
  std::optional<ArrayFile> file = ArrayFile::reopen(path);
  if (!file) return std::nullopt;
  const std::optional<std::int64_t> origin_us =
      TimelineEvents::epoch_of_first(file->text_at(0, kFirst));
  if (!origin_us) return std::nullopt;
  const std::int64_t now = now_ns();
  TimelineEvents events(now - (epoch_us() - *origin_us) * 1000, mark_cycles, file->end());
  const Status status = file->append(events.reset(ranks_now, now));
  if (!status) return std::nullopt;
  return Begun{std::move(*file), std::move(events)};
}

void give_up_writing(const std::string& why) {
  log(Level::kWarning, kWhere, why + ": it ends here, training continues");
}

}  // namespace

struct Timeline::State {
  State(const Trace& the_trace, ArrayFile the_file, TimelineEvents the_events,
        BeforeRead the_callback)
      : trace(the_trace),
        file(std::move(the_file)),
        events(std::move(the_events)),
        before_read(std::move(the_callback)) {
    (void)trace.read(cursor);  // skip earlier records
  }

  ~State() {
    {
      const MutexLock lock(mutex);
      stop = true;
    }
    changed.notify_one();
    if (thread.joinable()) thread.join();
  }

  void run() {
    name_thread("hvd-timeline");
    block_signals();
    MutexLock lock(mutex);
    for (bool last = false; !last;) {
      if (!stop) changed.wait_for(lock, kPeriod);
      last = stop;
      lock.unlock();
      complete_trace(last);
      const Status status = write_new(last);
      if (!status) {
        if (!last) complete_trace(true);
        give_up_writing(status.message);
        return;
      }
      lock.lock();
    }
  }

  void complete_trace(bool last) const {
    if (before_read != nullptr) before_read(last);
  }

  Status write_new(bool last) {
    const std::uint64_t before = cursor;
    std::vector<TraceRecord> records = trace.read(cursor);
    const std::uint64_t lost = cursor - before - records.size();
    // Only the phases of tensors are written, not the waits of the program.
    records.erase(std::remove_if(records.begin(), records.end(), is_wait), records.end());
    const bool quiet = records.empty();
    records.insert(records.begin(), std::make_move_iterator(held.begin()),
                   std::make_move_iterator(held.end()));
    const std::size_t held_before = std::exchange(held, {}).size();
    if (!quiet && !last) hold_back(records, held_before);
    std::string text = events.of(records);
    if (lost > 0) text += (text.empty() ? "" : ",\n") + events.lost(lost, now_ns());
    return text.empty() ? Status::ok() : file.append(text);
  }

  // Nested bars are added one after another, the negotiation's first: those of the last operation
  // may be incomplete, so they are held back, once.
  void hold_back(std::vector<TraceRecord>& records, std::size_t held_before) {
    auto from = records.end();
    const auto first = records.begin() + static_cast<std::ptrdiff_t>(held_before);
    while (from != first && std::prev(from)->name == records.back().name &&
           !is_instant(*std::prev(from))) {
      --from;
      if (negotiates(*from)) break;
    }
    held.assign(std::make_move_iterator(from), std::make_move_iterator(records.end()));
    records.erase(from, records.end());
  }

  const Trace& trace;
  ArrayFile file;
  std::uint64_t cursor = 0;
  TimelineEvents events;
  const BeforeRead before_read;
  std::vector<TraceRecord> held;
  Mutex mutex;
  ConditionVariable changed;
  bool stop GUARDED_BY(mutex) = false;
  std::thread thread;
};

Result<std::unique_ptr<Timeline>> Timeline::start(const Trace& trace, const std::string& path,
                                                  bool mark_cycles, BeforeRead before_read,
                                                  int ranks_now) {
  std::optional<Begun> old;
  if (ranks_now > 0) old = reopened(path, mark_cycles, ranks_now);
  Result<Begun> made = old ? Result<Begun>(std::move(*old)) : begun(path, mark_cycles);
  if (!made) return made.status();
  auto state = std::make_unique<State>(trace, std::move(made.value().file),
                                       std::move(made.value().events), std::move(before_read));
  Status status = start_thread(
      state->thread, [running = state.get()] { running->run(); },
      [](const char* what) { give_up_writing(what); });
  if (!status) return status;
  return std::unique_ptr<Timeline>(new Timeline(std::move(state)));
}

Timeline::Timeline(std::unique_ptr<State> state) : state_(std::move(state)) {}

Timeline::~Timeline() = default;

}  // namespace hvd
