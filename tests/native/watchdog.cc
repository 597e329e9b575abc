// Ends a test case that takes too long, by name, with the stacks of all threads; and writes down
// how long each one took.
//   HVDTEST_LIMIT_S: seconds that a test case may take (300)
//   HVDTEST_CASES: a file, to which a line is added for each: seconds, failed (0 or 1), name
#include <dirent.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

namespace {

constexpr int kMostFrames = 48;
const int kTell = SIGRTMIN + 5;
std::array<char, 256> running{};
std::atomic<bool> told{false};

void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// The process is lost: calls that are unsafe in a signal handler do no further harm.
void tell_own_stack(int /*number*/) {
  std::array<void*, kMostFrames> frames{};
  const int count = ::backtrace(frames.data(), kMostFrames);
  std::array<char, 64> head{};
  std::snprintf(head.data(), head.size(), "thread %ld:\n", ::syscall(SYS_gettid));
  say(head.data());
  std::array<std::array<char, 20>, kMostFrames> offsets{};
  std::array<const char*, kMostFrames + 4> command{"addr2line", "-Cfpe", "/proc/self/exe"};
  std::array<char, 64> program{};
  std::snprintf(program.data(), program.size(), "/proc/%d/exe", ::getpid());
  command[2] = program.data();
  Dl_info own{}, of{};
  ::dladdr(reinterpret_cast<void*>(&tell_own_stack), &own);
  int known = 0;
  for (int i = 0; i < count; ++i) {
    if (::dladdr(frames[i], &of) == 0 || of.dli_fbase != own.dli_fbase) continue;
    std::snprintf(offsets[known].data(), offsets[known].size(), "0x%zx",
                  static_cast<std::size_t>(static_cast<char*>(frames[i]) -
                                           static_cast<char*>(own.dli_fbase)) -
                      1);
    command[3 + known] = offsets[known].data();
    ++known;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(command[0], const_cast<char* const*>(command.data()));
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
    ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  told = true;
}

void late(int /*number*/) {
  say("\nthis test case took too long: ");
  say(running.data());
  say("\n");
  DIR* const threads = ::opendir("/proc/self/task");
  while (const dirent* entry = threads == nullptr ? nullptr : ::readdir(threads)) {
    const long thread = std::strtol(entry->d_name, nullptr, 10);
    if (thread == 0) continue;
    told = false;
    if (thread == ::syscall(SYS_gettid)) {
      tell_own_stack(0);
      continue;
    }
    if (::syscall(SYS_tgkill, ::getpid(), thread, kTell) != 0) continue;
    for (int i = 0; i < 500 && !told; ++i) ::usleep(10'000);
  }
  ::signal(SIGABRT, SIG_DFL);
  ::abort();
}

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// An alarm is no thread, and a child that a test forks does not inherit it.
struct Watchdog final : doctest::IReporter {
  explicit Watchdog(const doctest::ContextOptions& /*options*/) {
    if (const char* const limit = std::getenv("HVDTEST_LIMIT_S")) limit_s_ = std::atoi(limit);
    if (const char* const cases = std::getenv("HVDTEST_CASES")) cases_ = cases;
    ::unsetenv("HVDTEST_CASES");  // what this program starts is part of a test case
  }
  void test_run_start() override {
    std::array<void*, 1> frame{};
    ::backtrace(frame.data(), 1);  // loads what it needs, here and not in the handler
    ::signal(kTell, tell_own_stack);
  }
  void test_case_start(const doctest::TestCaseData& test) override {
    std::snprintf(running.data(), running.size(), "%s (%s:%u)", test.m_name, test.m_file.c_str(),
                  test.m_line);
    name_ = test.m_name;
    begun_ = now();
    ::signal(SIGALRM, late);
    ::alarm(static_cast<unsigned>(limit_s_));
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    ::alarm(0);
    if (cases_.empty()) return;
    std::ofstream(cases_, std::ios::app)
        << now() - begun_ << '\t' << (stats.failure_flags == 0 ? 0 : 1) << '\t' << name_ << '\n';
  }
  void report_query(const doctest::QueryData& /*query*/) override {}
  void test_run_end(const doctest::TestRunStats& /*stats*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*test*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*error*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*signature*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*data*/) override {}
  void log_message(const doctest::MessageData& /*data*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*test*/) override {}

  int limit_s_ = 300;
  double begun_ = 0;
  const char* name_ = "";
  std::string cases_;
};

}  // namespace

REGISTER_LISTENER("watchdog", 0, Watchdog);
