// Frames on a stream of bytes: a length of four bytes, then so many bytes. Between the two stands,
// where frames are numbered, their number from 0 on, of four bytes too: one that comes twice, late
// or out of its turn is refused.
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
// What stands before the body of a numbered frame.
std::array<char, 2 * kLengthBytes> frame_head(std::uint32_t number, std::size_t body_bytes);
// In the place of a frame: nothing more comes.
std::string end_of_frames();

// What a frame's first four bytes say of its body.
std::uint32_t announced_bytes(std::string_view head);

class FrameParser {
 public:
  enum class Next { kFrame, kNothing, kEnd, kRubbish };

  static FrameParser plain(std::uint32_t longest) { return {longest, false}; }
  static FrameParser numbered(std::uint32_t longest) { return {longest, true}; }

  // What has come is appended to this.
  std::string& stream() { return stream_; }
  // The next frame's body, which lies in the stream until the next call. kNothing: the rest of it
  // has not come yet. After kEnd and kRubbish nothing else comes.
  Next next(std::string_view& body);

 private:
  FrameParser(std::uint32_t longest, bool numbered) : longest_(longest), numbered_(numbered) {}

  std::uint32_t longest_;
  bool numbered_;
  std::uint32_t number_ = 0;  // of the next frame
  std::string stream_;
  std::size_t at_ = 0;  // in it, where the next frame begins
};

}  // namespace hvd
