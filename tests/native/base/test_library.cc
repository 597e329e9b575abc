// Libraries that are loaded at run time: by file, by what the process has, and what they lack.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "base/library.h"

namespace hvd::test {
namespace {

using Cosine = double (*)(double);

}  // namespace

TEST_CASE("library: returns functions, and names missing ones") {
  const Library math = Library::open("libm.so.6");
  REQUIRE(bool(math));
  Cosine cosine = nullptr, none = nullptr;
  std::string missing;
  math.find("cos", cosine, missing);
  CHECK(missing == "");
  CHECK(cosine(0) == 1.0);
  math.find("no_such_function", none, missing);
  math.find("nor_this", none, missing);
  CHECK(missing == "no_such_function, nor_this");
  CHECK((none == nullptr));
  CHECK(math.has("sin"));
  CHECK_FALSE(math.has("no_such_function"));
}

TEST_CASE("library: an unloaded library is not loaded") {
  CHECK(bool(Library::loaded("libc.so.6")));
  const Library none = Library::loaded("libhvd_no_such.so.1");
  CHECK_FALSE(bool(none));
  Cosine cosine = nullptr;
  CHECK_FALSE(none.find("cos", cosine));
  CHECK_FALSE(none.has("cos"));
  CHECK(Library::open("libhvd_no_such.so.1").why_not().find("libhvd_no_such.so.1") !=
        std::string::npos);
}

TEST_CASE("library: the process has its global symbols") {
  CHECK(Library::of_process().has("malloc"));
  CHECK_FALSE(Library::of_process().has("hvd_no_such_function"));
}

}  // namespace hvd::test
