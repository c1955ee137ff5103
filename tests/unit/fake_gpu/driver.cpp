// A stand-in for libcuda.so.1 with several GPUs, for tests of what is asked of the driver.
//
// It is as strict as the documentation: a stream, an event, a function and memory belong to a context, default streams
// to the current one, and what does not fit is an error. It is as lazy as a driver may be: nothing that is put on a
// stream runs before somebody waits for it, so that whoever waits for the wrong stream finds nothing done. "Device
// memory" is host memory whose GPU and end are known, and kernels are functions of the host (kernels.cpp).
//
// The functions fake_* at the end are for the tests: what was called, calls that fail or block, graphs.
#include <cuda.h>
#include <unistd.h>

#include <condition_variable>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
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

namespace {

struct Block {
  size_t bytes;
  int ordinal;  // -1 for page-locked memory
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
  int fails_with = 0, libraries = 0, events = 0, running_on = -1;
  std::vector<std::vector<std::function<void()>>> graphs;
  std::mutex gate;
  std::condition_variable opened, arrived;
  std::string blocking;
  bool inside = false;
  pid_t process = getpid();

  State() {
    char const* count = std::getenv("FAKE_GPUS");
    for (int i = 0; i < (count ? std::atoi(count) : 2); ++i)
      contexts.emplace_back().ordinal = i;  // in place: its streams point to it
  }
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

thread_local CUctx_st* current = nullptr;
thread_local bool quiet = false;  // calls of the test itself are not counted, and do not fail
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

using Guard = std::lock_guard<std::recursive_mutex>;

void violation(std::string const& text) { state().violations.push_back(text); }

/// The beginning of every call: it may be made to block or to fail.
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

#define ENTER(name)                       \
  CUresult const entered_ = enter(#name); \
  if (entered_) return entered_;          \
  Guard guard(state().lock)

/// What might wait for the device, and so breaks a capture that some thread has under way.
bool breaks_a_capture() {
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  bool any = false;
  for (CUstream_st* stream : state().streams) {
    if (stream->capturing) any = stream->broken = true;
  }
  return any;
}

#define REFUSED_UNDER_CAPTURE() \
  if (breaks_a_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

/// The stream that a handle means in the current context; null, with a code, where it means none.
CUstream_st* resolve(CUstream handle, CUresult& code) {
  code = CUDA_ERROR_INVALID_CONTEXT;
  if (!current) return nullptr;
  code = CUDA_SUCCESS;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return &current->legacy;
  if (handle == CU_STREAM_PER_THREAD) return &current->per_thread;
  code = CUDA_ERROR_INVALID_HANDLE;
  if (!state().streams.count(handle)) {
    violation("a stream that is gone");
    return nullptr;
  }
  if (handle->context != current) return nullptr;
  code = CUDA_SUCCESS;
  return handle;
}

#define STREAM(handle)                                \
  CUresult code_ = CUDA_SUCCESS;                      \
  CUstream_st* const stream = resolve(handle, code_); \
  if (!stream) return code_

void push(CUstream_st* stream, std::function<void()> work) {
  int const ordinal = stream->context->ordinal;
  auto on_device = [work = std::move(work), ordinal] {
    int const before = state().running_on;
    state().running_on = ordinal;
    work();
    state().running_on = before;
  };
  if (stream->capturing) {
    stream->captured.push_back(on_device);
  } else {
    stream->work.push_back(on_device);
  }
}

void step(CUstream_st* stream) {
  std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  work();
}

void reach(Point const& point) {
  while (!point.reached && !point.stream->work.empty()) step(point.stream);
}

void drain(CUstream_st* stream) {
  while (!stream->work.empty()) step(stream);
}

void run_all() {
  for (CUctx_st& context : state().contexts) {
    drain(&context.legacy);
    drain(&context.per_thread);
  }
  for (CUstream_st* stream : state().streams) drain(stream);
}

/// Whether `bytes` at `address` lie in memory of GPU `ordinal`, or that it may read.
bool reachable(uintptr_t address, size_t bytes, int ordinal) {
  auto found = state().blocks.upper_bound(address);
  if (found == state().blocks.begin()) return false;
  --found;
  Block const& block = found->second;
  return address + bytes <= found->first + block.bytes && (block.ordinal == ordinal || block.ordinal < 0);
}

bool page_locked(void const* memory) { return reachable(reinterpret_cast<uintptr_t>(memory), 1, -1); }

}  // namespace

extern "C" {

// While kernels run: they tell what they touch.
void fake_touch(void const* address, size_t bytes) {
  if (!reachable(reinterpret_cast<uintptr_t>(address), bytes, state().running_on)) {
    violation("a kernel touches memory that is not its GPU's");
    std::fprintf(stderr, "fake GPU %d: %zu bytes at %p\n", state().running_on, bytes, address);
    std::abort();
  }
}

void fake_violation(char const* text) { violation(text); }

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, char const** text) {
  *text = "an error of the stand-in";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  ENTER(cuDeviceGet);
  if (ordinal < 0 || ordinal >= static_cast<int>(state().contexts.size())) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(state().contexts.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  std::strncpy(name, "stand-in", static_cast<size_t>(bytes));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  ENTER(cuDeviceGetAttribute);
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? 8
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR          ? 0
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT              ? 4
           : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 163 << 10
           : attribute == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE                     ? 1 << 10
                                                                                : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER(cuDevicePrimaryCtxRetain);
  *context = &state().contexts.at(static_cast<size_t>(device));
  (*context)->active = true;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  ENTER(cuDevicePrimaryCtxGetState);
  *flags = 0;
  *active = state().contexts.at(static_cast<size_t>(device)).active;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = nullptr;
  ENTER(cuCtxGetCurrent);
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER(cuCtxSetCurrent);
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  ENTER(cuCtxGetDevice);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  ENTER(cuMemGetInfo);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *total = size_t(8) << 30;
  *free = *total;
  for (auto const& [address, block] : state().blocks) {
    if (block.ordinal == current->ordinal) *free -= block.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* asked, void** answers, CUdeviceptr pointer) {
  ENTER(cuPointerGetAttributes);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  auto found = state().blocks.upper_bound(pointer);
  bool const known = found != state().blocks.begin() && pointer < (--found)->first + found->second.bytes;
  for (unsigned i = 0; i < count; ++i) {
    if (asked[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<unsigned*>(answers[i]) = !known                      ? 0
                                            : found->second.ordinal < 0 ? CU_MEMORYTYPE_HOST
                                                                        : CU_MEMORYTYPE_DEVICE;
    } else if (asked[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      *static_cast<int*>(answers[i]) = known ? found->second.ordinal : -1;
    } else {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  ENTER(cuMemAlloc);
  REFUSED_UNDER_CAPTURE();
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xA5, bytes);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  state().blocks[*address] = {bytes, current->ordinal};
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  ENTER(cuMemFree);
  state().blocks.erase(address);  // the memory itself stays: what would touch it is found by its address
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  ENTER(cuMemHostAlloc);
  REFUSED_UNDER_CAPTURE();
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  state().blocks[reinterpret_cast<uintptr_t>(*memory)] = {bytes, -1};
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, void const* image, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  ENTER(cuLibraryLoadData);
  REFUSED_UNDER_CAPTURE();
  size_t params_bytes = 0;
  if (std::sscanf(static_cast<char const*>(image), "stand-in %zu", &params_bytes) != 1) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *library = new CUlib_st{params_bytes};
  ++state().libraries;
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
  ENTER(cuLibraryUnload);
  REFUSED_UNDER_CAPTURE();
  if (library->unloaded) violation("a library is unloaded twice");
  run_all();  // it waits for the GPU
  library->unloaded = true;
  --state().libraries;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, char const*) {
  ENTER(cuLibraryGetKernel);
  *kernel = new CUkern_st{library};
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  ENTER(cuKernelGetFunction);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *function = new CUfunc_st{current, kernel->library};
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction function) {
  ENTER(cuFuncGetAttribute);
  if (current != function->context) return CUDA_ERROR_INVALID_CONTEXT;
  *value = 32;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int) {
  ENTER(cuFuncSetAttribute);
  return current == function->context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t, size_t* offset, size_t* bytes) {
  ENTER(cuFuncGetParamInfo);
  *offset = 0;
  *bytes = function->library->params_bytes;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int, size_t) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  *blocks = 1;
  return current == function->context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void** arguments, void**) {
  ENTER(cuLaunchKernelEx);
  STREAM(config->hStream);
  if (function->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  CUlib_st* const library = function->library;
  if (library->unloaded) violation("a launch of an unloaded kernel");
  auto const* begin = static_cast<unsigned char const*>(arguments[0]);
  std::vector<unsigned char> params(begin, begin + library->params_bytes);
  push(stream, [params, library] {
    if (library->unloaded) violation("a kernel runs that has been unloaded");
    auto run = reinterpret_cast<void (*const*)(void const*)>(params.data());
    (*run)(params.data());
    state().clock += 0.005;
  });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, void const* source, size_t bytes, CUstream handle) {
  ENTER(cuMemcpyHtoDAsync);
  STREAM(handle);
  if (!reachable(target, bytes, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  if (page_locked(source)) {
    push(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), source, bytes); });
  } else {
    auto const* begin = static_cast<unsigned char const*>(source);
    std::vector<unsigned char> taken(begin, begin + bytes);
    push(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), taken.data(), taken.size()); });
  }
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream handle) {
  ENTER(cuMemcpyDtoDAsync);
  STREAM(handle);
  int const ordinal = stream->context->ordinal;
  if (!reachable(target, bytes, ordinal) || !reachable(source, bytes, ordinal)) return CUDA_ERROR_INVALID_VALUE;
  push(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void const*>(source), bytes); });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, size_t bytes, CUstream handle) {
  ENTER(cuMemcpyDtoHAsync);
  STREAM(handle);
  if (!reachable(source, bytes, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  push(stream, [=] { std::memcpy(target, reinterpret_cast<void const*>(source), bytes); });
  if (!page_locked(target)) drain(stream);
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream handle) {
  ENTER(cuMemsetD8Async);
  STREAM(handle);
  if (!reachable(target, bytes, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  push(stream, [=] {
    std::memset(reinterpret_cast<void*>(target), value, bytes);
    state().clock += 1e-6 * static_cast<double>(bytes);
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  ENTER(cuStreamSynchronize);
  STREAM(handle);
  if (stream->capturing) {
    stream->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  drain(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  ENTER(cuStreamGetCtx);
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    *context = current;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!state().streams.count(handle)) return CUDA_ERROR_INVALID_HANDLE;
  *context = handle->context;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  ENTER(cuStreamIsCapturing);
  STREAM(handle);
  *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* exchanged) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*exchanged, mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* handle, unsigned) {
  ENTER(cuStreamCreate);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *handle = new CUstream_st{current, {}, false, false, {}};
  state().streams.insert(*handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  ENTER(cuStreamDestroy);
  drain(handle);
  state().streams.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  ENTER(cuStreamWaitEvent);
  STREAM(handle);
  if (event->captured != stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  std::shared_ptr<Point> const point = event->point;
  if (point) push(stream, [point] { reach(*point); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  ENTER(cuEventCreate);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *event = new CUevent_st{current, nullptr, false, !(flags & CU_EVENT_DISABLE_TIMING)};
  ++state().events;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  ENTER(cuEventRecord);
  STREAM(handle);
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  auto const point = std::make_shared<Point>(Point{stream});
  event->captured = stream->capturing;
  event->point = point;
  push(stream, [point] {
    point->reached = true;
    point->at = state().clock;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  ENTER(cuEventQuery);
  if (current != event->context) return CUDA_ERROR_INVALID_CONTEXT;
  REFUSED_UNDER_CAPTURE();
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  return event->point && !event->point->reached ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
  ENTER(cuEventSynchronize);
  if (current != event->context) return CUDA_ERROR_INVALID_CONTEXT;
  REFUSED_UNDER_CAPTURE();
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (event->point) reach(*event->point);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent first, CUevent last) {
  ENTER(cuEventElapsedTime);
  if (!first->timed || !last->timed || !first->point || !last->point) return CUDA_ERROR_INVALID_HANDLE;
  if (first->context != last->context || current != last->context) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->point->reached || !last->point->reached) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(last->point->at - first->point->at);
  return CUDA_SUCCESS;
}

/// Time passes for what is on a stream while the host lets it wait.
CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  ENTER(cuLaunchHostFunc);
  STREAM(handle);
  push(stream, [=] {
    function(data);
    state().clock += 1;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  ENTER(cuEventDestroy);
  --state().events;
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, cuuint64_t const*,
                                cuuint64_t const*, cuuint32_t const*, cuuint32_t const*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, cuuint64_t const*,
                                 cuuint64_t const*, int const*, int const*, cuuint32_t, cuuint32_t, cuuint32_t const*,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill) {
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// For the tests

/// Frees memory in the order of a stream of the current context, as a pool does.
int fake_free_on(CUdeviceptr address, CUstream handle) {
  Guard guard(state().lock);
  STREAM(handle);
  if (!reachable(address, 1, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capturing) violation("memory is given back on a stream that is captured");
  push(stream, [address] { state().blocks.erase(address); });
  return CUDA_SUCCESS;
}

/// Runs everything that is on any stream.
void fake_run() {
  Guard guard(state().lock);
  run_all();
}

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

void fake_begin_capture(CUstream_st* stream) {
  Guard guard(state().lock);
  stream->capturing = true;
  stream->broken = false;
  stream->captured.clear();
}

/// The number of the graph, or -1 where the capture was broken.
int fake_end_capture(CUstream_st* stream) {
  Guard guard(state().lock);
  stream->capturing = false;
  if (stream->broken) return -1;
  state().graphs.push_back(stream->captured);
  return static_cast<int>(state().graphs.size()) - 1;
}

void fake_replay(int graph, CUstream_st* stream) {
  Guard guard(state().lock);
  for (auto const& work : state().graphs.at(static_cast<size_t>(graph))) push(stream, work);
}

int fake_libraries() { return state().libraries; }
int fake_events() { return state().events; }

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
