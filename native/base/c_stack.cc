#include "base/c_stack.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/fd.h"

namespace hvd {
namespace {

constexpr int kMostFrames = 64;
using Handler = void (*)(int);
std::atomic<int> descriptor_of_signal{-1};
std::atomic<Handler> handler_before{SIG_DFL};

void write_stack(int signal) {
  const int before = errno;
  const Handler other = handler_before.load(std::memory_order_relaxed);
  if (other != SIG_DFL && other != SIG_IGN) other(signal);
  const int descriptor = descriptor_of_signal.load(std::memory_order_relaxed);
  std::array<void*, kMostFrames> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), kMostFrames), descriptor);
  const ssize_t written = write(descriptor, kStackEnd, std::strlen(kStackEnd));
  static_cast<void>(written);  // a signal handler cannot report errors
  errno = before;
}

}  // namespace

Status write_stack_at(int signal, int descriptor) {
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // the first call loads a library, which a handler may not do
  descriptor_of_signal.store(descriptor, std::memory_order_relaxed);
  struct sigaction action{};
  struct sigaction was{};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // the interrupted system call is restarted
  if (sigaction(signal, &action, &was) != 0) {
    return errno_status("no C stack is written at signal " + std::to_string(signal), "base/c_stack",
                        errno);
  }
  if (was.sa_handler != write_stack) {
    handler_before.store(was.sa_handler, std::memory_order_relaxed);
  }
  return Status::ok();
}

}  // namespace hvd
