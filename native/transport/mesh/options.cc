#include "transport/mesh/options.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "transport/link/slot_ring.h"
#include "transport/socket/pack.h"

namespace hvd {

namespace {

constexpr std::size_t kMinSlotBytes = 64;
constexpr std::size_t kMaxSlotBytes = std::size_t{64} << 20U;
constexpr int kMaxRanks = 4096;
constexpr std::size_t kMaxStreams = 64;
constexpr std::array<std::string_view, 4> kTransports{"auto", "shm", "tcp", "mpi"};

Status refuse(const std::string& message) {
  return Status::make(Code::kInvalidArgument, message, "transport/options");
}

}  // namespace

Status check_options(int rank, int size, const MeshOptions& options) {
  if (size < 1 || size > kMaxRanks)
    return refuse("size " + std::to_string(size) + " is not between 1 and " +
                  std::to_string(kMaxRanks));
  if (rank < 0 || rank >= size)
    return refuse("rank " + std::to_string(rank) + " is not between 0 and " +
                  std::to_string(size - 1));
  if (std::find(kTransports.begin(), kTransports.end(), options.transport) == kTransports.end())
    return refuse("transport \"" + options.transport + "\" is unknown; use auto, shm, tcp or mpi");
  if (options.slot_bytes < kMinSlotBytes || options.slot_bytes > kMaxSlotBytes)
    return refuse("slot_bytes " + std::to_string(options.slot_bytes) +
                  " is not between 64 and 67108864");
  if (options.slots < 2 || options.slots > kMaxSlots)
    return refuse("slots " + std::to_string(options.slots) + " is not between 2 and 64");
  if (options.fanout < 1) return refuse("fanout must be at least 1");
  if (options.tcp_streams < 1 || options.tcp_streams > kMaxStreams)
    return refuse("tcp_streams " + std::to_string(options.tcp_streams) +
                  " is not between 1 and 64");
  if (!(options.stop_warning_s >= 0) || !(options.stop_abort_s >= 0))
    return refuse("stop_warning_s and stop_abort_s must not be negative");
  if (!(options.net_timeout_s >= 0)) return refuse("net_timeout_s must not be negative");
  if (!(options.start_timeout_s > 0)) return refuse("start_timeout_s must be positive");
  return Status::ok();
}

std::size_t rounded_slot_bytes(std::size_t slot_bytes) { return (slot_bytes + 63) / 64 * 64; }

namespace {

const char* const kRoom = "transport/options_agreement";

struct Card {
  std::uint32_t protocol = 0;
  std::string host;
  Settings settings;
};

// False: written by another version (the protocol number has a fixed position), or invalid.
bool read_card(const std::string& bytes, Card& card) {
  Unpacker reader(bytes);
  card.protocol = reader.number<std::uint32_t>();
  if (!reader.ok() || card.protocol != kProtocol) return false;
  card.host = reader.text();
  const auto count = reader.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    std::string name = reader.text();
    std::string value = reader.text();
    card.settings.emplace_back(std::move(name), std::move(value));
  }
  return reader.complete();
}

Status different(std::size_t rank, const std::string& what, const std::string& its,
                 const std::string& first) {
  std::string text = "rank " + std::to_string(rank) + " was started with " + what;
  text.append(" ").append(its).append(", rank 0 with ").append(what).append(" ").append(first);
  text.append("; give every rank the same settings");
  return Status::make(Code::kInvalidArgument, std::move(text), kRoom, static_cast<int>(rank));
}

Status compare(std::size_t rank, const Settings& its, const Settings& first) {
  for (std::size_t i = 0; i < its.size() && i < first.size(); ++i) {
    if (its[i].first != first[i].first)
      return different(rank, "the setting", its[i].first, first[i].first);
    if (its[i] != first[i]) return different(rank, first[i].first, its[i].second, first[i].second);
  }
  if (its.size() == first.size()) return Status::ok();
  return different(rank, "a number of settings", std::to_string(its.size()),
                   std::to_string(first.size()));
}

// Lines "name=value", each a setting of its own, so that a refusal shows the one that differs.
void add_lines(const std::string& text, Settings& settings) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = std::min(line.find('='), line.size());
    settings.emplace_back(line.substr(0, end), line.substr(std::min(end + 1, line.size())));
  }
}

}  // namespace

Settings settings_of(const MeshOptions& options) {
  Settings settings{{"transport", options.transport},
                    {"slot_bytes", std::to_string(rounded_slot_bytes(options.slot_bytes))},
                    {"slots", std::to_string(options.slots)},
                    {"fanout", std::to_string(options.fanout)},
                    {"tcp_streams", std::to_string(options.tcp_streams)},
                    {"first_count", std::to_string(options.first_count)}};
  add_lines(options.agreement, settings);
  return settings;
}

std::string card_of(const std::string& host, const Settings& settings, std::uint32_t protocol) {
  Packer packer;
  packer.number(protocol).text(host).number(static_cast<std::uint32_t>(settings.size()));
  for (const auto& [name, value] : settings) packer.text(name).text(value);
  return packer.take();
}

Result<std::vector<std::string>> read_cards(const std::vector<std::string>& cards) {
  std::vector<std::string> hosts;
  Card first;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    Card card;
    const bool good = read_card(cards[rank], card);
    if (rank == 0) first = card;
    if (card.protocol != first.protocol)
      return different(rank, "protocol version", std::to_string(card.protocol),
                       std::to_string(first.protocol));
    if (!good)
      return Status::make(Code::kInternal,
                          "the settings of rank " + std::to_string(rank) + " cannot be read", kRoom,
                          static_cast<int>(rank));
    Status status = compare(rank, card.settings, first.settings);
    if (!status) return status;
    hosts.push_back(card.host);
  }
  return hosts;
}

}  // namespace hvd
