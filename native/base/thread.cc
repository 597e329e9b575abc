#include "base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fd.h"

namespace hvd {

Status start_thread(std::thread& into, std::function<void()> body) {
  try {
    into = std::thread(std::move(body));
    return Status::ok();
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

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const unsigned cores =
      std::thread::hardware_concurrency();  // over 1,024 cores the mask is bigger
  return cores == 0 ? 1 : static_cast<int>(cores);
}

}  // namespace hvd
