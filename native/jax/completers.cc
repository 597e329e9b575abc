#include "jax/completers.h"

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "jax/call.h"

namespace hvd::jax {
namespace {

constexpr std::size_t kMost = 64;

class Completers {
 public:
  void add(Call* call) {
    bool is_alone = false;
    {
      const std::lock_guard<std::mutex> locked(lock_);
      waiting_.push_back(call);
      if (waiting_.size() > idle_ && threads_ < kMost) is_alone = !start() && threads_ == 0;
    }
    if (is_alone) return complete(take());  // no thread can be had: better here than never
    added_.notify_one();
  }

 private:
  bool start() {
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
    std::unique_lock<std::mutex> locked(lock_);
    ++idle_;
    added_.wait(locked, [this] { return !waiting_.empty(); });
    --idle_;
    Call* const call = waiting_.front();
    waiting_.pop_front();
    return call;
  }
  [[noreturn]] void work() {
    pthread_setname_np(pthread_self(), "hvd-jax");
    for (;;) complete(take());
  }

  std::mutex lock_;
  std::condition_variable added_;
  std::deque<Call*> waiting_;
  std::size_t idle_ = 0, threads_ = 0;
};

}  // namespace

void complete_later(Call* call) {
  // Never destroyed: they may work while the process exits.
  static auto* const all = new Completers;  // NOLINT(cppcoreguidelines-owning-memory): for ever
  all->add(call);
}

}  // namespace hvd::jax
