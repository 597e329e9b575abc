// What members of a group tell each other is bytes of a peer: they need not be what we would send.
#include <doctest/doctest.h>

#include "cuda/device/choice.h"
#include "cuda/device/peer_info.h"

using namespace hvd;
using namespace hvd::cuda;

TEST_CASE("peer info: a text of a peer ends with its field, if nothing in it does") {
  std::array<char, 4> text{'a', 'b', 'c', 'd'};
  CHECK(text_in(text) == "abcd");
  text[2] = '\0';
  CHECK(text_in(text) == "ab");
  text[0] = '\0';
  CHECK(text_in(text).empty());
}
