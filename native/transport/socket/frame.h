// Frames on a stream of bytes: a length of four bytes, then that many bytes. Numbered frames have
// their number (four bytes, starting at 0) in between: a frame that is repeated, late or out of
// order is refused.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

constexpr std::uint32_t kMaxFrame = 16U << 20U;
constexpr std::size_t kLengthBytes = 4;

std::string frame_of(std::string_view body);
std::string frame_of(std::uint32_t number, std::string_view body);
// The head of a numbered frame.
std::array<char, 2 * kLengthBytes> frame_head(std::uint32_t number, std::size_t body_bytes);
// Sent instead of a frame: the end of the stream.
std::string end_of_frames();

// The length of the body, from a frame's first four bytes.
std::uint32_t announced_bytes(std::string_view head);

class FrameParser {
 public:
  enum class Next { kFrame, kNothing, kEnd, kRubbish };

  static FrameParser plain(std::uint32_t longest) { return {longest, false}; }
  static FrameParser numbered(std::uint32_t longest) { return {longest, true}; }

  // Append received bytes to this.
  std::string& stream() { return stream_; }
  // The next frame's body, valid until the next call. kNothing: it is incomplete. kEnd and kRubbish
  // are final.
  Next next(std::string_view& body);

 private:
  FrameParser(std::uint32_t longest, bool numbered) : longest_(longest), numbered_(numbered) {}

  std::uint32_t longest_;
  bool numbered_;
  std::uint32_t number_ = 0;  // of the next frame
  std::string stream_;
  std::size_t at_ = 0;  // position of the next frame in it
};

}  // namespace hvd
