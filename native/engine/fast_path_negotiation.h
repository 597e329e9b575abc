// The agreement of ranks that all stand in a call for the same thing (transport/shm/fast_path.h):
// no messages, and nobody decides. Whatever is not quite so goes negotiation by messages
// (controller.h). Operations of process sets are not everybody's, so where there are any, ranks at
// the same position need not have the same past: then there is no fast path.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/failpoint.h"
#include "engine/controller/negotiate.h"
#include "engine/message/request.h"
#include "engine/message/wire.h"
#include "transport/shm/fast_path.h"

namespace hvd {

// Progress-lock owner only.
class FastPathNegotiation {
 public:
  // `position`: of all ranks at the beginning, the same.
  FastPathNegotiation(std::unique_ptr<FastPath> fast_path, int size, std::uint32_t position)
      : fast_path_(std::move(fast_path)), size_(size), position_(position) {}

  // This rank has carried it out.
  void passed(const Response& response) {
    const bool everybodys = response.set == 0 && response.kind != Kind::kLeave;
    if (everybodys && response.status) passed();
  }
  void passed() { ++position_; }  // it was everybody's

  // This rank asks negotiation by messages: nobody need wait for it here.
  void decline() {
    if (fast_path_ != nullptr) fast_path_->close(position_);
  }

  // Who stands in its call waits for the others; who only passes by, hardly. Each tries less often
  // after misses of its own.
  enum class Try : std::uint8_t { kMeets, kPasses };

  // Waits for the other ranks as long as patient() says so. Nothing: to be asked negotiation by
  // messages. put_data(half): writes what this rank gives, where all give theirs beforehand. Who
  // only passes by mostly misses the others, and would have copied in vain.
  template <class Patient, class PutData>
  std::optional<Response> agree(const Request& request, Try how, const Patient& patient,
                                const PutData& put_data) {
    std::optional<Response> response;
    if (fast_path_ == nullptr || rests(how)) return response;
    text_.clear();
    append_request(text_, request);
    if (text_.size() < kFastPathTextBytes) response = agreed_by_all(request, size_);
    const bool with_data = response && how == Try::kMeets && !response->shared && put_data(half_);
    if (with_data) text_.push_back(kWithData);
    if (!response) {
      decline();
    } else if (!all_agree(text_, how, patient)) {
      response.reset();
    } else if (with_data) {
      response->fast_path_half = next_half();
    }
    return response;
  }

  // The same where all give their data beforehand, of a request that was encoded before: the half
  // that they lie in.
  template <class Patient, class PutData>
  std::optional<int> agree(std::string_view text_with_data, Try how, const Patient& patient,
                           const PutData& put_data) {
    if (fast_path_ == nullptr || rests(how)) return std::nullopt;
    put_data(half_);
    if (!all_agree(text_with_data, how, patient)) return std::nullopt;
    return next_half();
  }

  // Ranks that differ in whether they give their data beforehand do not agree. Empty: too long.
  static std::string text_with_data(const Request& request) {
    std::string text;
    append_request(text, request);
    if (text.size() >= kFastPathTextBytes) return {};
    text.push_back(kWithData);
    return text;
  }

 private:
  // Ranks that miss each other again and again try less and less often; by position, so that they
  // try at the same time.
  static constexpr unsigned kMostMisses = 6;
  static constexpr char kWithData = 'd';

  bool rests(Try how) {
    if ((position_ & ((1U << misses(how)) - 1)) == 0) return false;
    decline();
    return true;
  }
  unsigned& misses(Try how) { return misses_[how == Try::kMeets ? 0 : 1]; }

  int next_half() { return std::exchange(half_, 1 - half_); }

  template <class Patient>
  bool all_agree(std::string_view text, Try how, const Patient& patient) {
    if (missed_ == position_) return false;  // this rank has tried here
    FastPath::Stand stand = fast_path_->enter(position_, text);
    failpoint("engine.fast_path_entered");
    while (stand == FastPath::Stand::kCounted) {
      stand = patient() ? fast_path_->look() : fast_path_->leave();
    }
    const bool all = stand == FastPath::Stand::kComplete;
    failpoint("engine.fast_path_left");
    misses(how) = all ? 0 : std::min(misses(how) + 1, kMostMisses);
    if (!all) missed_ = position_;
    return all;
  }

  const std::unique_ptr<FastPath> fast_path_;
  const int size_;
  std::uint32_t position_;
  std::string text_;
  std::array<unsigned, 2> misses_{};     // in a row, of those who wait, and of those who pass by
  std::optional<std::uint32_t> missed_;  // the last position where it was tried in vain
  int half_ = 0;                         // for the next data, the same on all ranks at one position
};

}  // namespace hvd
