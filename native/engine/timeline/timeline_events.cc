#include "engine/timeline/timeline_events.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <tuple>
#include <utility>

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

}  // namespace hvd
