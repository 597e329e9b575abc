#include "engine/timeline/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "engine/timeline/timeline_events.h"

namespace hvd {
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
