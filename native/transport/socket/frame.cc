#include "transport/socket/frame.h"

#include <cstring>

#include "transport/socket/pack.h"

namespace hvd {
namespace {

constexpr std::uint32_t kEnd = 0xFFFFFFFF;
static_assert(kMaxFrame < kEnd);

}  // namespace

std::string frame_of(std::string_view body) { return Packer().text(body).take(); }

std::string frame_of(std::uint32_t number, std::string_view body) {
  return Packer().length(body.size()).number(number).raw(body).take();
}

std::array<char, 2 * kLengthBytes> frame_head(std::uint32_t number, std::size_t body_bytes) {
  const std::array<std::uint32_t, 2> fields{static_cast<std::uint32_t>(body_bytes), number};
  std::array<char, 2 * kLengthBytes> head{};
  std::memcpy(head.data(), fields.data(), head.size());
  return head;
}

std::string end_of_frames() { return Packer().number(kEnd).take(); }

std::uint32_t announced_bytes(std::string_view head) {
  return Unpacker(head).number<std::uint32_t>();
}

FrameParser::Next FrameParser::next(std::string_view& body) {
  const std::string_view rest = std::string_view(stream_).substr(at_);
  const std::size_t head = numbered_ ? 2 * kLengthBytes : kLengthBytes;
  if (rest.size() >= kLengthBytes) {
    const std::uint32_t bytes = announced_bytes(rest);
    if (bytes == kEnd) return Next::kEnd;
    if (bytes > longest_) return Next::kRubbish;
    if (numbered_ && rest.size() >= head && announced_bytes(rest.substr(kLengthBytes)) != number_)
      return Next::kRubbish;
    if (rest.size() >= head + bytes) {
      body = rest.substr(head, bytes);
      at_ += head + bytes;
      ++number_;
      return Next::kFrame;
    }
  }
  stream_.erase(0, at_);
  at_ = 0;
  return Next::kNothing;
}

}  // namespace hvd
