#include "base/thread.h"

#include <pthread.h>

#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/fd.h"

namespace hvd {

namespace {

void run_guarded(const std::function<void()>& body, const Failed& failed) noexcept {
  const auto tell = [&](const char* what) { tried([&] { failed(what); }); };
  try {
    body();
  } catch (const std::exception& error) {
    tell(error.what());
  } catch (...) {
    tell("unknown exception");
  }
}

}  // namespace

Status start_thread(std::thread& into, std::function<void()> body, Failed failed) {
  try {
    into = std::thread(run_guarded, std::move(body), std::move(failed));
    return Status::ok();
  } catch (const std::bad_alloc&) {
    return Status::make(Code::kUnavailable, "no memory for a thread", "base/thread");
  } catch (const std::system_error& error) {
    return errno_status(
        "cannot start a thread (RLIMIT_NPROC and the cgroup's pids.max bound "
        "how many there are)",
        "base/thread", error.code().value());
  }
}

void name_thread(const char* name) {
  pthread_setname_np(pthread_self(), std::string(name).substr(0, 15).c_str());
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP})
    sigdelset(&all, fault);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace hvd
