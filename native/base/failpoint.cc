#include "base/failpoint.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"

namespace hvd {

std::atomic<bool> failpoints_armed{false};

namespace {

enum class Action { kKill, kStop, kThrow, kFail, kDelay };

struct Named {
  std::string_view text;
  Action action;
};
constexpr std::array<Named, 4> kActions{{{"kill", Action::kKill},
                                         {"stop", Action::kStop},
                                         {"throw", Action::kThrow},
                                         {"fail", Action::kFail}}};

// The effect of a passage. Without its name, because copying it may need memory that is missing.
struct Effect {
  Action action = Action::kFail;
  long milliseconds = 0;
};

struct Armed {
  std::string name;
  Effect effect;
  long at = 0;  // 0: at every passage
  long passed = 0;
};

Mutex mutex;
std::vector<Armed>& table() {  // never destroyed: other threads may pass while the process ends
  static auto* const all = new std::vector<Armed>();  // NOLINT(cppcoreguidelines-owning-memory)
  return *all;
}

// A whole number of decimal digits, or -1.
long number(std::string_view text) {
  if (text.empty() || text.size() > 9) return -1;
  long value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  return value;
}

bool read_effect(std::string_view text, Effect& effect) {
  constexpr std::string_view kDelay = "delay=";
  if (text.substr(0, kDelay.size()) == kDelay) {
    effect.action = Action::kDelay;
    effect.milliseconds = number(text.substr(kDelay.size()));
    return effect.milliseconds >= 0;
  }
  const auto* const found = std::find_if(kActions.begin(), kActions.end(),
                                         [&](const Named& named) { return named.text == text; });
  if (found == kActions.end()) return false;
  effect.action = found->action;
  return true;
}

// "name:action@n"
bool read_one(std::string_view text, Armed& armed) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  armed.name = text.substr(0, colon);
  std::string_view action = text.substr(colon + 1);
  const std::size_t times = action.find('@');
  if (times != std::string_view::npos) {
    armed.at = number(action.substr(times + 1));
    if (armed.at < 1) return false;
    action = action.substr(0, times);
  }
  return read_effect(action, armed.effect);
}

// True if this passage triggers the failpoint. Several threads may pass; each passage has its own
// number.
bool due(const char* name, Effect& found) {
  const MutexLock lock(mutex);
  for (Armed& armed : table()) {
    if (armed.name != name) continue;
    ++armed.passed;
    if (armed.at != 0 && armed.passed != armed.at) continue;
    found = armed.effect;
    return true;
  }
  return false;
}

// NOLINTNEXTLINE(bugprone-throwing-static-initialization): a test without its failpoint is none
const bool kArmedAtStart = [] {
  const char* const text = std::getenv("HVD_FAILPOINT");  // NOLINT(concurrency-mt-unsafe)
  if (text != nullptr) arm_failpoints(text);
  return text != nullptr;
}();

}  // namespace

long failpoint_passages(const char* name) {
  const MutexLock lock(mutex);
  for (const Armed& armed : table())
    if (armed.name == name) return armed.passed;
  return 0;
}

bool failpoint_reached(const char* name) {
  Effect effect;
  if (!due(name, effect)) return false;
  switch (effect.action) {
    case Action::kKill:
      ::kill(::getpid(), SIGKILL);
      return false;
    case Action::kStop:
      ::kill(::getpid(), SIGSTOP);
      return false;
    case Action::kThrow:
      throw std::runtime_error("failpoint " + std::string(name));
    case Action::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(effect.milliseconds));
      return false;
    case Action::kFail:
      break;
  }
  return true;
}

void arm_failpoints(const char* text) {
  const MutexLock lock(mutex);
  table().clear();
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find(';');
    const std::string_view one = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    Armed armed;
    if (one.empty()) continue;
    if (read_one(one, armed)) {
      table().push_back(std::move(armed));
    } else {
      log(Level::kWarning, "base/failpoint", "\"" + std::string(one) + "\" is not understood");
    }
  }
  failpoints_armed.store(!table().empty(), std::memory_order_relaxed);
}

}  // namespace hvd
