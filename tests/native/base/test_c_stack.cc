// The C stack that a thread writes at a signal: the functions that it is in, and where the list
// ends.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "base/c_stack.h"
#include "base/fd.h"

using namespace hvd;

namespace {

struct Pipe {
  Fd out, in;
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    out.reset(ends[0]);
    in.reset(ends[1]);
  }
  std::string text() const {
    std::string all(65536, '\0');
    const ssize_t length = ::read(out.get(), all.data(), all.size());
    all.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    return all;
  }
};

bool handle(void (*handler)(int)) { return ::signal(SIGURG, handler) != SIG_ERR; }

}  // namespace

TEST_CASE("C stack: one line for each function, and then the end") {
  const Pipe pipe;
  REQUIRE(write_stack_at(SIGURG, pipe.in.get()));
  REQUIRE(::raise(SIGURG) == 0);
  const std::string text = pipe.text();
  const std::size_t outer = text.find("main");
  CHECK(outer != std::string::npos);
  CHECK(text.find("libc.so") < outer);  // raise, by whichever of its names
  CHECK(text.substr(text.size() - std::string(kStackEnd).size()) == kStackEnd);
  CHECK(handle(SIG_DFL));
}

TEST_CASE("C stack: a second request writes to the new descriptor") {
  const Pipe first;
  const Pipe second;
  REQUIRE(write_stack_at(SIGURG, first.in.get()));
  REQUIRE(write_stack_at(SIGURG, second.in.get()));
  REQUIRE(::raise(SIGURG) == 0);
  CHECK(first.text().empty());
  CHECK(!second.text().empty());
  CHECK(handle(SIG_DFL));
}

TEST_CASE("C stack: an existing handler runs first") {
  static volatile std::sig_atomic_t runs = 0;
  REQUIRE(handle([](int) { runs = runs + 1; }));
  const Pipe pipe;
  REQUIRE(write_stack_at(SIGURG, pipe.in.get()));
  REQUIRE(write_stack_at(SIGURG, pipe.in.get()));
  REQUIRE(::raise(SIGURG) == 0);
  CHECK(runs == 1);
  CHECK(!pipe.text().empty());
  CHECK(handle(SIG_DFL));
}

TEST_CASE("C stack: a signal that cannot be taken is an error") {
  const Status status = write_stack_at(SIGKILL, 2);
  CHECK(!status);
  CHECK(status.message.find("signal 9") != std::string::npos);
}
