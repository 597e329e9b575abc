// Mutex, lock and condition variable with Clang's thread-safety annotations: guarded members are
// annotated where they are declared, and clang-tidy (-Wthread-safety in .clang-tidy) rejects
// accesses without the mutex. Other compilers only see std::mutex.
//   GUARDED_BY(m)      a member that is read and written with m held
//   REQUIRES(m)        a function, or a lambda, that is called with m held
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HVD_THREAD_SAFETY(x) __attribute__((x))
#else
#define HVD_THREAD_SAFETY(x)
#endif
#define CAPABILITY(x) HVD_THREAD_SAFETY(capability(x))
#define SCOPED_CAPABILITY HVD_THREAD_SAFETY(scoped_lockable)
#define GUARDED_BY(x) HVD_THREAD_SAFETY(guarded_by(x))
#define REQUIRES(...) HVD_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define RETURN_CAPABILITY(x) HVD_THREAD_SAFETY(lock_returned(x))
#define NO_THREAD_SAFETY_ANALYSIS HVD_THREAD_SAFETY(no_thread_safety_analysis)
#define ACQUIRE(...) HVD_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define RELEASE(...) HVD_THREAD_SAFETY(release_capability(__VA_ARGS__))

namespace hvd {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() RELEASE() { lock_.unlock(); }
  void lock() ACQUIRE() { lock_.lock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

// Without predicates: callers loop, where the analysis sees that the lock is held.
class ConditionVariable {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  template <class ClockType, class Duration>
  std::cv_status wait_until(MutexLock& lock,
                            const std::chrono::time_point<ClockType, Duration>& deadline) {
    return condition_.wait_until(lock.lock_, deadline);
  }
  template <class Rep, class Period>
  std::cv_status wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& longest) {
    return condition_.wait_for(lock.lock_, longest);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace hvd
