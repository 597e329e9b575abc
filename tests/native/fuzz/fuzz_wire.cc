// For libFuzzer (clang, -fsanitize=fuzzer): cmake -DHVD_FUZZ=ON, then
//   fuzz_wire -max_total_time=60 tests/native/fuzz/corpus
#include "fuzz/feed.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hvd::test::feed(data, size);
  return 0;
}
