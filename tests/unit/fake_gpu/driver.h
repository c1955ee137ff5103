// What the files of the stand-in share. It is as strict as the documentation: a stream, an event, a function and memory
// belong to a context, default streams to the current one, and what does not fit is an error. It is as lazy as a driver
// may be: nothing that is put on a stream runs before somebody waits for it, so that whoever waits for the wrong stream
// finds nothing done. "Device memory" is host memory whose GPU and end are known, and kernels are functions of the host
// (kernels.cpp).
//
// The functions fake_* are for the tests: what was called, calls that fail or block, graphs.
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

struct CUctx_st;

/// A point on a stream, which an event was recorded at.
struct Point {
  CUstream_st* stream;
  bool reached = false;
  double at = 0;  // milliseconds
};

struct CUstream_st {
  CUctx_st* context;
  std::deque<std::function<void()>> work;
  bool capturing = false, broken = false;
  std::vector<std::function<void()>> captured;
};

struct CUctx_st {
  int ordinal = 0;
  bool active = false;
  CUstream_st legacy{this, {}, false, false, {}}, per_thread{this, {}, false, false, {}};
};

struct CUevent_st {
  CUctx_st* context;
  std::shared_ptr<Point> point;
  bool captured = false, timed = false;
};

struct CUlib_st {
  size_t params_bytes;
  bool unloaded = false;
};

struct CUkern_st {
  CUlib_st* library;
};

struct CUfunc_st {
  CUctx_st* context;
  CUlib_st* library;
};

namespace fake {

struct Block {
  size_t bytes;
  int ordinal;  // -1 for page-locked memory
};

/// A launch that was recorded.
struct Recorded {
  std::vector<unsigned char> params;
  std::array<unsigned, 3> grid;
};

/// Everything but what belongs to a thread. Its lock is held while a call is served, and not while one is made to
/// block.
struct State {
  std::recursive_mutex lock;
  std::deque<CUctx_st> contexts;
  std::set<CUstream_st*> streams;
  std::map<uintptr_t, Block> blocks;
  std::vector<std::string> log, violations;
  std::map<std::string, int> codes;  // calls that fail from now on
  long calls = 0, fails_at = -1;
  double clock = 0;  // milliseconds that GPUs have worked: a kernel takes 0.005, a byte that is set a millionth
  int priority = 0;  // of the last launch that asked for one
  int clusters = 1;  // of more than 8 threadblocks, that a GPU holds
  bool allows_large_clusters = false;
  int fails_with = 0, libraries = 0, events = 0, running_on = -1;
  std::vector<std::vector<std::function<void()>>> graphs;
  std::mutex gate;
  std::condition_variable opened, arrived;
  std::string blocking;
  bool inside = false;
  bool only_records = false;
  std::vector<Recorded> recorded;
  std::map<std::string, std::string> noted;  // by kernel
  pid_t process = getpid();

  State() {
    char const* count = std::getenv("FAKE_GPUS");
    for (int i = 0; i < (count ? std::atoi(count) : 2); ++i)
      contexts.emplace_back().ordinal = i;  // in place: its streams point to it
  }
};

State& state();

extern thread_local CUctx_st* current;
extern thread_local bool quiet;  // calls of the test itself are not counted, and do not fail
extern thread_local CUstreamCaptureMode mode;

using Guard = std::lock_guard<std::recursive_mutex>;

void violation(std::string const& text);

/// The beginning of every call: it may be made to block or to fail.
CUresult enter(char const* name);

#define ENTER(name)                       \
  CUresult const entered_ = enter(#name); \
  if (entered_) return entered_;          \
  Guard guard(state().lock)

/// What might wait for the device, and so breaks a capture that some thread has under way.
bool breaks_a_capture();

#define REFUSED_UNDER_CAPTURE() \
  if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

/// The stream that a handle means in the current context; null, with a code, where it means none.
CUstream_st* resolve(CUstream handle, CUresult& code);

#define STREAM(handle)                                \
  CUresult code_ = CUDA_SUCCESS;                      \
  CUstream_st* const stream = resolve(handle, code_); \
  if (!stream) return code_

void push(CUstream_st* stream, std::function<void()> work);
void drain(CUstream_st* stream);
/// Runs everything that is on any stream.
void run_all();

/// Whether `bytes` at `address` lie in memory of GPU `ordinal`, or that it may read.
bool reachable(uintptr_t address, size_t bytes, int ordinal);

}  // namespace fake
