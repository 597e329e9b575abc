// Fast-path negotiation: ranks that all block in a call for the same operation agree on it in
// shared memory (transport/shm/fast_path.h), without messages and without a coordinator. All other
// cases are negotiated by messages (controller.h). Operations of process sets do not involve all
// ranks, so with process sets ranks at the same position may differ in their history: then the fast
// path is off. Messages between two ranks do not turn it off: a rank that has executed one does not
// agree on the fast path before the next operation of all ranks.
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
  // position: the initial position, the same on all ranks.
  FastPathNegotiation(std::unique_ptr<FastPath> fast_path, int size, std::uint32_t position)
      : fast_path_(std::move(fast_path)), size_(size), position_(position) {}

  // This rank has executed the response.
  void passed(const Response& response) {
    if (response.kind == Kind::kLeave || response.kind == Kind::kProbe || !response.status) return;
    if (response.set == 0) passed();
    if (response.kind != Kind::kSend) return;
    missed_ = position_;
    decline();
  }
  void passed() { ++position_; }  // an operation of all ranks

  // This rank negotiates by messages: no rank need wait for it here.
  void decline() {
    if (fast_path_ != nullptr) fast_path_->close(position_);
  }

  // A blocking call waits for the other ranks, a call with other work hardly does. Each of the two
  // tries less often after its own misses.
  enum class Try : std::uint8_t { kMeets, kPasses };

  // Waits for the other ranks while patient() returns true. nullopt: negotiate by messages.
  // put_data(half) writes this rank's data if all ranks write theirs beforehand. Not for kPasses,
  // which mostly misses the other ranks: the copy would be wasted.
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

  // The same for an encoded request for which all ranks write their data beforehand. Returns the
  // half that holds the data.
  template <class Patient, class PutData>
  std::optional<int> agree(std::string_view text_with_data, Try how, const Patient& patient,
                           const PutData& put_data) {
    if (fast_path_ == nullptr || rests(how)) return std::nullopt;
    put_data(half_);
    if (!all_agree(text_with_data, how, patient)) return std::nullopt;
    return next_half();
  }

  // Encoded so that ranks that differ in whether they write their data beforehand do not agree.
  // Empty: the request is too long.
  static std::string text_with_data(const Request& request) {
    std::string text;
    append_request(text, request);
    if (text.size() >= kFastPathTextBytes) return {};
    text.push_back(kWithData);
    return text;
  }

 private:
  // After repeated misses ranks try at fewer positions, the same ones on every rank.
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
    if (missed_ == position_) return false;  // tried at this position already
    FastPath::Stand stand = fast_path_->enter(position_, text);
    failpoint("engine.fast_path_entered");
    while (stand == FastPath::Stand::kCounted) {
      stand = patient() ? fast_path_->poll() : fast_path_->leave();
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
  std::array<unsigned, 2> misses_{};     // consecutive, of kMeets and kPasses
  std::optional<std::uint32_t> missed_;  // the last position with a miss
  int half_ = 0;                         // for the next data, the same on all ranks at one position
};

}  // namespace hvd
