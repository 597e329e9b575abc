// One input of the fuzzer, as bytes that a peer might send: to the decoders, to rank 0, to a rank
// between and to a leaf. The first byte cuts the rest into two messages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::test {

void feed(const std::uint8_t* data, std::size_t size);

}  // namespace hvd::test
