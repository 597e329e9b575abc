#include "engine/timeline_events.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <tuple>

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
  return R"({"bytes":)" + number(record.bytes) + R"(,"fused":)" + number(record.detail) + "}";
}

bool is(const TraceRecord& record, std::string_view phase) { return record.phase == phase; }

std::int64_t end_of(const TraceRecord& record) { return record.start_ns + record.duration_ns; }

}  // namespace

bool is_instant(const TraceRecord& record) { return is(record, "READY") || is(record, "CYCLE"); }

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
  return R"({"name":"process_name","ph":"M","pid":0,"args":{"name":"hvd_kernel",)"
         R"("start_time_since_epoch_in_micros":)" +
         number(epoch_us) + "}}";
}

std::string TimelineEvents::lost(std::uint64_t records, std::int64_t at_ns) const {
  return R"({"name":"RECORDS_LOST","ph":"i","s":"g","pid":0,"ts":)" + micros(at_ns) +
         R"(,"args":{"records":)" + std::to_string(records) + "}}";
}

int TimelineEvents::row_of(const std::string& name, std::string& out) {
  const auto [row, added] = rows_.try_emplace(name, static_cast<int>(rows_.size()) + 1);
  if (added) {
    const std::string pid = number(row->second);
    append(out, R"({"name":"process_name","ph":"M","pid":)" + pid + R"(,"args":{"name":)" +
                    json_text(name) + "}}");
    append(out, R"({"name":"process_sort_index","ph":"M","pid":)" + pid +
                    R"(,"args":{"sort_index":)" + pid + "}}");
  }
  return row->second;
}

void TimelineEvents::bars(int row, std::vector<const TraceRecord*> records,
                          std::string& out) const {
  // By begin; of those that begin together the longest is outside, or else the one that was added
  // first (they lie in one array).
  std::sort(records.begin(), records.end(), [](const TraceRecord* a, const TraceRecord* b) {
    return std::make_tuple(a->start_ns, -a->duration_ns, a) <
           std::make_tuple(b->start_ns, -b->duration_ns, b);
  });
  const std::string pid = R"(,"pid":)" + number(row);
  struct Open {
    const TraceRecord* record;
    std::int64_t end_ns;
  };
  std::vector<Open> open;
  const auto close = [&] {
    append(out, R"({"ph":"E","ts":)" + micros(open.back().end_ns) + pid + R"(,"args":)" +
                    args_of(*open.back().record) + "}");
    open.pop_back();
  };
  for (const TraceRecord* record : records) {
    while (!open.empty() && open.back().end_ns <= record->start_ns) close();
    const std::int64_t end =
        open.empty() ? end_of(*record) : std::min(end_of(*record), open.back().end_ns);
    append(out, R"({"name":)" + json_text(record->phase) + R"(,"ph":"B","ts":)" +
                    micros(record->start_ns) + pid + "}");
    open.push_back({record, end});
  }
  while (!open.empty()) close();
}

std::string TimelineEvents::of(const std::vector<TraceRecord>& records) {
  std::string out;
  std::map<int, std::vector<const TraceRecord*>> bars_of_row;
  for (const TraceRecord& record : records) {
    if (is(record, "CYCLE")) {
      if (mark_cycles_) {
        append(out, R"({"name":"CYCLE_START","ph":"i","s":"g","pid":0,"ts":)" +
                        micros(record.start_ns) + "}");
      }
      continue;
    }
    const int row = row_of(record.name, out);
    if (is(record, "READY")) {
      append(out, R"({"name":")" + number(record.detail) + R"(","ph":"X","ts":)" +
                      micros(record.start_ns) + R"(,"dur":0,"pid":)" + number(row) + "}");
    } else {
      bars_of_row[row].push_back(&record);
    }
  }
  for (auto& [row, bars_here] : bars_of_row) bars(row, std::move(bars_here), out);
  return out;
}

}  // namespace hvd
