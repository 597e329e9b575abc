// Frames: what goes in comes out, however it is cut up, and what is no frame is refused.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "transport/socket/socket.h"

using namespace hvd;

namespace {

using Next = FrameParser::Next;

// All bodies, with the stream handed in pieces of so many bytes; how it ended.
Next take_all(FrameParser frames, std::string_view stream, std::size_t piece,
              std::vector<std::string>& bodies) {
  Next next = Next::kNothing;
  for (std::size_t at = 0; at < stream.size() && next == Next::kNothing; at += piece) {
    frames.stream().append(stream.substr(at, piece));
    std::string_view body;
    for (next = frames.next(body); next == Next::kFrame; next = frames.next(body))
      bodies.emplace_back(body);
  }
  return next;
}

}  // namespace

TEST_CASE("frames: their bytes") {
  CHECK(frame_of("hvd") == std::string("\x03\0\0\0hvd", 7));
  CHECK(frame_of(258, "hvd") == std::string("\x03\0\0\0\x02\x01\0\0hvd", 11));
  const auto head = frame_head(258, 3);
  CHECK(frame_of(258, "hvd").substr(0, 8) == std::string(head.data(), head.size()));
  CHECK(announced_bytes(frame_of("hvd")) == 3);
}

TEST_CASE("frames: are complete for every division of the bytes") {
  const std::vector<std::string> sent{"first", "", std::string(300, 'x'), "last"};
  std::string plain, numbered;
  for (std::uint32_t i = 0; i < sent.size(); ++i) {
    plain += frame_of(sent[i]);
    numbered += frame_of(i, sent[i]);
  }
  for (std::size_t piece = 1; piece <= numbered.size(); ++piece) {
    std::vector<std::string> came;
    CHECK(take_all(FrameParser::plain(300), plain, piece, came) == Next::kNothing);
    CHECK(came == sent);
    came.clear();
    CHECK(take_all(FrameParser::numbered(300), numbered + end_of_frames(), piece, came) ==
          Next::kEnd);
    CHECK(came == sent);
  }
}

TEST_CASE("frames: too long or out of turn is refused, after the valid ones") {
  for (const std::string& wrong : {frame_of(1, std::string(301, 'x')), frame_of(0, "x"),
                                   frame_of(2, "x"), std::string("\xFE\xFF\xFF\xFF")}) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{1000}}) {
      std::vector<std::string> came;
      CHECK(take_all(FrameParser::numbered(300), frame_of(0, "good") + wrong, piece, came) ==
            Next::kRubbish);
      CHECK(came == std::vector<std::string>{"good"});
    }
  }
}
