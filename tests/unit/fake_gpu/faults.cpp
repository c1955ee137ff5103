// What the stand-in was asked, what of it would have gone wrong, and calls that fail or block.
#include "driver.h"

#include <chrono>
#include <sstream>

namespace fake {

thread_local bool quiet = false;

void violation(std::string const& text) { state().violations.push_back(text); }

CUresult enter(char const* name) {
  State& all = state();
  if (getpid() != all.process) return CUDA_ERROR_NOT_INITIALIZED;
  if (quiet) return CUDA_SUCCESS;
  {
    std::unique_lock<std::mutex> gate(all.gate);
    if (all.blocking == name) {
      all.inside = true;
      all.arrived.notify_all();
      all.opened.wait(gate, [&] { return all.blocking != name; });
    }
  }
  Guard guard(all.lock);
  all.log.push_back(std::string(name) + " " + (current ? std::to_string(current->ordinal) : "-"));
  if (all.calls++ == all.fails_at) return static_cast<CUresult>(all.fails_with);
  auto found = all.codes.find(name);
  return found == all.codes.end() ? CUDA_SUCCESS : static_cast<CUresult>(found->second);
}

}  // namespace fake

using namespace fake;

extern "C" {

void fake_violation(char const* text) { violation(text); }

void fake_quiet(int on) { quiet = on; }

long fake_calls() {
  Guard guard(state().lock);
  return state().calls;
}

/// Makes the call that is `number` calls from now fail; below 0 none.
void fake_fail_at(long number, int code) {
  Guard guard(state().lock);
  state().fails_at = number < 0 ? -1 : state().calls + number;
  state().fails_with = code;
}

/// Makes every call of a function fail; code 0 none.
void fake_fail(char const* name, int code) {
  Guard guard(state().lock);
  if (code) {
    state().codes[name] = code;
  } else {
    state().codes.erase(name);
  }
}

/// Makes calls of a function wait until another name, or "", is given.
void fake_block(char const* name) {
  State& all = state();
  std::lock_guard<std::mutex> gate(all.gate);
  all.blocking = name;
  all.inside = false;
  all.opened.notify_all();
}

/// Waits until a call blocks; whether one does.
int fake_blocked(double seconds) {
  State& all = state();
  std::unique_lock<std::mutex> gate(all.gate);
  auto const most = std::chrono::duration<double>(seconds);
  return all.arrived.wait_for(gate, most, [&] { return all.inside; });
}

/// Lines of the log since the last call, or of violations.
char const* fake_log() {
  static std::string text;
  Guard guard(state().lock);
  std::ostringstream lines;
  for (std::string const& line : state().log) lines << line << '\n';
  state().log.clear();
  text = lines.str();
  return text.c_str();
}

char const* fake_violations() {
  static std::string text;
  Guard guard(state().lock);
  std::ostringstream lines;
  for (std::string const& line : state().violations) lines << line << '\n';
  text = lines.str();
  return text.c_str();
}

}  // extern "C"
