// The CUDA driver, found at run time. Nothing is linked: the extension imports on a machine without a driver, and says
// so only when a driver function is needed.
#pragma once

#include <cuda.h>
#include <pybind11/pybind11.h>

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
  decltype(&::cuCtxGetCurrent) cuCtxGetCurrent;
  decltype(&::cuCtxSetCurrent) cuCtxSetCurrent;
  decltype(&::cuCtxGetDevice) cuCtxGetDevice;
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
  decltype(&::cuLaunchKernelEx) cuLaunchKernelEx;
  decltype(&::cuMemHostAlloc) cuMemHostAlloc;
  decltype(&::cuMemcpyHtoDAsync) cuMemcpyHtoDAsync;
  decltype(&::cuMemcpyDtoHAsync) cuMemcpyDtoHAsync;
  decltype(&::cuMemsetD8Async) cuMemsetD8Async;
  decltype(&::cuStreamSynchronize) cuStreamSynchronize;
  decltype(&::cuStreamIsCapturing) cuStreamIsCapturing;
  decltype(&::cuThreadExchangeStreamCaptureMode) cuThreadExchangeStreamCaptureMode;
  decltype(&::cuStreamWaitEvent) cuStreamWaitEvent;
  decltype(&::cuEventCreate) cuEventCreate;
  decltype(&::cuEventRecord) cuEventRecord;
  decltype(&::cuEventQuery) cuEventQuery;
  decltype(&::cuEventDestroy) cuEventDestroy;
  decltype(&::cuTensorMapEncodeTiled) cuTensorMapEncodeTiled;
  decltype(&::cuTensorMapEncodeIm2col) cuTensorMapEncodeIm2col;
};

/// The driver; throws pycutlass.errors.DeviceError where there is none.
Driver const& driver();

/// Why there is no driver, or an empty string where there is one.
std::string const& driver_problem();

/// Throws pycutlass.errors.DriverError unless `code` is CUDA_SUCCESS.
void check(CUresult code, char const* call);

/// Throws pycutlass.errors.<type>(message).
[[noreturn]] void raise_error(char const* type, std::string const& message);

/// The primary context of device `ordinal`, retained once for the life of the process.
CUcontext primary_context(int ordinal);

/// Makes a context current for a scope, and puts the former one back. Cheap where it is current already.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context);
  ~ContextScope();
  ContextScope(ContextScope const&) = delete;
  ContextScope& operator=(ContextScope const&) = delete;

 private:
  CUcontext previous_ = nullptr;
  bool changed_ = false;
};

/// Whether what is done on `stream` is captured into a graph, not run.
bool is_capturing(CUstream stream);

/// A point on a stream.
class Event {
 public:
  Event();
  ~Event();
  void record(CUstream stream);
  Event(Event const&) = delete;
  Event& operator=(Event const&) = delete;
  bool done() const;
  CUevent handle() const { return event_; }

 private:
  CUevent event_ = nullptr;
};

/// Adds the driver functions that Python calls to the module.
void bind_driver(pybind11::module_& m);

}  // namespace pycutlass
