#include "jax/completers.h"

#include <pthread.h>

#include <csignal>
#include <cstddef>
#include <deque>
#include <system_error>
#include <thread>

#include "base/mutex.h"
#include "jax/call.h"

namespace hvd::jax {
namespace {

constexpr std::size_t kMost = 64;

class Completers {
 public:
  void add(Call* call) {
    bool is_alone = false;
    {
      const MutexLock locked(lock_);
      waiting_.push_back(call);
      if (waiting_.size() > idle_ && threads_ < kMost) is_alone = !start() && threads_ == 0;
    }
    if (is_alone) return complete(take());  // no thread can be had: better here than never
    added_.notify_one();
  }

 private:
  bool start() REQUIRES(lock_) {
    sigset_t all{}, before{};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for Python's thread
    bool started = true;
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }
  Call* take() {
    MutexLock locked(lock_);
    ++idle_;
    while (waiting_.empty()) added_.wait(locked);
    --idle_;
    Call* const call = waiting_.front();
    waiting_.pop_front();
    return call;
  }
  [[noreturn]] void work() {
    pthread_setname_np(pthread_self(), "hvd-jax");
    for (;;) complete(take());
  }

  Mutex lock_;
  ConditionVariable added_;
  std::deque<Call*> waiting_ GUARDED_BY(lock_);
  std::size_t idle_ GUARDED_BY(lock_) = 0, threads_ GUARDED_BY(lock_) = 0;
};

}  // namespace

void complete_later(Call* call) {
  // Never destroyed: they may work while the process exits.
  static auto* const all = new Completers;  // NOLINT(cppcoreguidelines-owning-memory): for ever
  all->add(call);
}

}  // namespace hvd::jax
