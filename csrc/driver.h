// The CUDA driver, found at run time. Nothing is linked: the extension imports on a machine without a driver, and says
// so only when a driver function is needed.
//
// Two rules hold for every call of it:
//
// - Locks. No lock, the interpreter's or one of ours, is held across a call that may wait for the device or for room in
//   the driver's queue: launches, copies, fills, records and waits of events, synchronize, the first use of a context,
//   page-locked memory, loading and unloading. What they wait for may be a host callback that wants the interpreter.
//   `unlocked` makes such calls. Calls that only read or write the driver's own tables keep the lock. So what C++ keeps
//   is guarded by the interpreter's lock alone, and is in order whenever that is let go.
// - Contexts. No call leaves another context current than it found, or any where there was none: `ContextScope`.
#pragma once

#include <cuda.h>
#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <string>

namespace pycutlass {

struct Driver {
  decltype(&::cuInit) cuInit;
  decltype(&::cuDriverGetVersion) cuDriverGetVersion;
  decltype(&::cuGetErrorString) cuGetErrorString;
  decltype(&::cuDeviceGet) cuDeviceGet;
  decltype(&::cuDeviceGetCount) cuDeviceGetCount;
  decltype(&::cuDeviceGetName) cuDeviceGetName;
  decltype(&::cuDeviceGetAttribute) cuDeviceGetAttribute;
  decltype(&::cuDevicePrimaryCtxRetain) cuDevicePrimaryCtxRetain;
  decltype(&::cuDevicePrimaryCtxGetState) cuDevicePrimaryCtxGetState;
  decltype(&::cuCtxGetCurrent) cuCtxGetCurrent;
  decltype(&::cuCtxSetCurrent) cuCtxSetCurrent;
  decltype(&::cuCtxGetDevice) cuCtxGetDevice;
  decltype(&::cuCtxGetStreamPriorityRange) cuCtxGetStreamPriorityRange;
  decltype(&::cuMemGetInfo) cuMemGetInfo;
  decltype(&::cuPointerGetAttributes) cuPointerGetAttributes;
  decltype(&::cuLibraryLoadData) cuLibraryLoadData;
  decltype(&::cuLibraryUnload) cuLibraryUnload;
  decltype(&::cuLibraryGetKernel) cuLibraryGetKernel;
  decltype(&::cuKernelGetFunction) cuKernelGetFunction;
  decltype(&::cuFuncGetAttribute) cuFuncGetAttribute;
  decltype(&::cuFuncSetAttribute) cuFuncSetAttribute;
  decltype(&::cuFuncGetParamInfo) cuFuncGetParamInfo;
  decltype(&::cuOccupancyMaxActiveBlocksPerMultiprocessor) cuOccupancyMaxActiveBlocksPerMultiprocessor;
  decltype(&::cuOccupancyMaxActiveClusters) cuOccupancyMaxActiveClusters;
  decltype(&::cuLaunchKernelEx) cuLaunchKernelEx;
  decltype(&::cuMemHostAlloc) cuMemHostAlloc;
  decltype(&::cuMemcpyHtoDAsync) cuMemcpyHtoDAsync;
  decltype(&::cuMemcpyDtoHAsync) cuMemcpyDtoHAsync;
  decltype(&::cuMemsetD8Async) cuMemsetD8Async;
  decltype(&::cuStreamSynchronize) cuStreamSynchronize;
  decltype(&::cuStreamGetCtx) cuStreamGetCtx;
  decltype(&::cuStreamIsCapturing) cuStreamIsCapturing;
  decltype(&::cuThreadExchangeStreamCaptureMode) cuThreadExchangeStreamCaptureMode;
  decltype(&::cuStreamWaitEvent) cuStreamWaitEvent;
  decltype(&::cuEventCreate) cuEventCreate;
  decltype(&::cuEventRecord) cuEventRecord;
  decltype(&::cuEventQuery) cuEventQuery;
  decltype(&::cuEventSynchronize) cuEventSynchronize;
  decltype(&::cuEventElapsedTime) cuEventElapsedTime;
  decltype(&::cuEventDestroy) cuEventDestroy;
  decltype(&::cuTensorMapEncodeTiled) cuTensorMapEncodeTiled;
  decltype(&::cuTensorMapEncodeIm2col) cuTensorMapEncodeIm2col;
  decltype(&::cuMemcpyDtoDAsync) cuMemcpyDtoDAsync;
  decltype(&::cuLaunchHostFunc) cuLaunchHostFunc;
};

/// The driver once it is loaded, null before: what every launch asks for several times needs no call.
extern std::atomic<Driver const*> loaded_driver;

/// Loads the driver; throws pycutlass.errors.DeviceError where there is none.
Driver const& load_driver();

/// The driver; throws pycutlass.errors.DeviceError where there is none.
inline Driver const& driver() {
  Driver const* const loaded = loaded_driver.load(std::memory_order_acquire);
  return loaded ? *loaded : load_driver();
}

/// Why there is no driver, or an empty string where there is one.
std::string const& driver_problem();

/// Throws pycutlass.errors.DriverError for `code`.
[[noreturn]] void raise_failed(CUresult code, char const* call);

/// Throws pycutlass.errors.DriverError unless `code` is CUDA_SUCCESS.
inline void check(CUresult code, char const* call) {
  if (code != CUDA_SUCCESS) raise_failed(code, call);
}

/// Throws pycutlass.errors.<type>(message).
[[noreturn]] void raise_error(char const* type, std::string const& message);

/// A scope without the interpreter's lock, which its maker holds.
///
/// Before Python 3.14, a daemon thread that asks for the lock while the interpreter ends is ended by pthread_exit,
/// whose unwinding aborts the process at the first noexcept function, such as a destructor. As in later versions, it
/// waits here for the end of the process instead.
class LockReleased {
 public:
  LockReleased() : state_(PyEval_SaveThread()) {}
  ~LockReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind const&) {
      for (;;) pause();
    }
  }
  LockReleased(LockReleased const&) = delete;
  LockReleased& operator=(LockReleased const&) = delete;

 private:
  PyThreadState* const state_;
};

/// Calls the driver without the interpreter's lock, which the caller holds.
template <typename Body>
CUresult unlocked(Body body) {
  LockReleased const released;
  return body();
}

/// The primary context of device `ordinal`, retained once for the life of the process.
CUcontext primary_context(int ordinal);

/// Makes a context current for a scope, and puts the former one back. Cheap where it is current already.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context);
  /// For destructors, and calls that do no harm in another context: an error leaves the present one current.
  ContextScope(CUcontext context, std::nothrow_t) noexcept { enter(context); }
  ~ContextScope();
  ContextScope(ContextScope const&) = delete;
  ContextScope& operator=(ContextScope const&) = delete;

 private:
  CUresult enter(CUcontext context) noexcept;

  CUcontext previous_ = nullptr;
  bool changed_ = false;
};

/// While a stream is captured, calls that might wait for the device end the capture with an error, whichever thread
/// makes them. Those in this scope do not touch what is captured, and are let through.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(RelaxedCapture const&) = delete;
  RelaxedCapture& operator=(RelaxedCapture const&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Adds the driver functions that Python calls to the module.
void bind_driver(pybind11::module_& m);

}  // namespace pycutlass
