#include "driver.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>

namespace py = pybind11;

namespace pycutlass {
namespace {

struct Loaded {
  Driver driver{};
  std::string problem;
};

/// cuda.h renames functions to their newest version by macro (cuMemGetInfo -> cuMemGetInfo_v2): naming each function
/// through a macro argument that is expanded first makes the symbol that is looked up the one that was declared.
#define PYCUTLASS_STRING(name) #name
#define PYCUTLASS_SYMBOL(name) PYCUTLASS_STRING(name)

Loaded load() {
  Loaded loaded;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    loaded.problem = std::string("the CUDA driver could not be loaded (") + dlerror() + ")";
    return loaded;
  }
#define PYCUTLASS_LOAD(name)                                                                                   \
  loaded.driver.name = reinterpret_cast<decltype(loaded.driver.name)>(dlsym(library, PYCUTLASS_SYMBOL(name))); \
  if (!loaded.driver.name) {                                                                                   \
    loaded.problem = "the CUDA driver is too old: it has no " PYCUTLASS_SYMBOL(name);                          \
    return loaded;                                                                                             \
  }
  PYCUTLASS_LOAD(cuInit)
  PYCUTLASS_LOAD(cuDriverGetVersion)
  PYCUTLASS_LOAD(cuGetErrorString)
  PYCUTLASS_LOAD(cuDeviceGet)
  PYCUTLASS_LOAD(cuDeviceGetCount)
  PYCUTLASS_LOAD(cuDeviceGetName)
  PYCUTLASS_LOAD(cuDeviceGetAttribute)
  PYCUTLASS_LOAD(cuDevicePrimaryCtxRetain)
  PYCUTLASS_LOAD(cuCtxGetCurrent)
  PYCUTLASS_LOAD(cuCtxSetCurrent)
  PYCUTLASS_LOAD(cuCtxGetDevice)
  PYCUTLASS_LOAD(cuMemGetInfo)
  PYCUTLASS_LOAD(cuPointerGetAttributes)
  PYCUTLASS_LOAD(cuLibraryLoadData)
  PYCUTLASS_LOAD(cuLibraryUnload)
  PYCUTLASS_LOAD(cuLibraryGetKernel)
  PYCUTLASS_LOAD(cuKernelGetFunction)
  PYCUTLASS_LOAD(cuFuncGetAttribute)
  PYCUTLASS_LOAD(cuFuncSetAttribute)
  PYCUTLASS_LOAD(cuFuncGetParamInfo)
  PYCUTLASS_LOAD(cuOccupancyMaxActiveBlocksPerMultiprocessor)
  PYCUTLASS_LOAD(cuLaunchKernelEx)
  PYCUTLASS_LOAD(cuMemHostAlloc)
  PYCUTLASS_LOAD(cuMemcpyHtoDAsync)
  PYCUTLASS_LOAD(cuMemcpyDtoHAsync)
  PYCUTLASS_LOAD(cuMemsetD8Async)
  PYCUTLASS_LOAD(cuStreamSynchronize)
  PYCUTLASS_LOAD(cuStreamIsCapturing)
  PYCUTLASS_LOAD(cuThreadExchangeStreamCaptureMode)
  PYCUTLASS_LOAD(cuStreamWaitEvent)
  PYCUTLASS_LOAD(cuEventCreate)
  PYCUTLASS_LOAD(cuEventRecord)
  PYCUTLASS_LOAD(cuEventQuery)
  PYCUTLASS_LOAD(cuEventDestroy)
  PYCUTLASS_LOAD(cuTensorMapEncodeTiled)
  PYCUTLASS_LOAD(cuTensorMapEncodeIm2col)
#undef PYCUTLASS_LOAD
  CUresult code = loaded.driver.cuInit(0);
  if (code != CUDA_SUCCESS) {
    char const* meaning = nullptr;
    loaded.driver.cuGetErrorString(code, &meaning);
    loaded.problem = std::string("the CUDA driver cannot start: ") + (meaning ? meaning : "unknown error");
  }
  return loaded;
}

/// Loaded once, at first need: the driver cannot change while the process lives.
Loaded const& loaded() {
  static Loaded const instance = load();
  return instance;
}

int device_count() {
  if (!driver_problem().empty()) return 0;
  int count = 0;
  return driver().cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

/// Whether the driver knows host memory: it is page-locked then.
bool is_known(void const* memory) {
  unsigned kind = 0;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* answer = &kind;
  auto address = reinterpret_cast<CUdeviceptr>(memory);
  return driver().cuPointerGetAttributes(1, &asked, &answer, address) == CUDA_SUCCESS && kind != 0;
}

CUdevice device_handle(int ordinal) {
  CUdevice device = 0;
  check(driver().cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

}  // namespace

std::string const& driver_problem() { return loaded().problem; }

Driver const& driver() {
  if (!driver_problem().empty()) {
    raise_error("DeviceError", driver_problem() + ". Install an NVIDIA driver of release 580 or later for CUDA 13.");
  }
  return loaded().driver;
}

void raise_error(char const* type, std::string const& message) {
  py::object error = py::module_::import("pycutlass.errors").attr(type);
  PyErr_SetObject(error.ptr(), error(message).ptr());
  throw py::error_already_set();
}

void check(CUresult code, char const* call) {
  if (code == CUDA_SUCCESS) return;
  char const* meaning = nullptr;
  loaded().driver.cuGetErrorString(code, &meaning);
  py::object error = py::module_::import("pycutlass.errors").attr("DriverError");
  PyErr_SetObject(error.ptr(), error(call, static_cast<int>(code), meaning ? meaning : "unknown error").ptr());
  throw py::error_already_set();
}

CUcontext primary_context(int ordinal) {
  // Retained for the life of the process, as torch and cupy do: releasing it would tear down their state as well.
  static std::mutex mutex;
  static std::map<int, CUcontext> contexts;
  std::lock_guard<std::mutex> guard(mutex);
  auto found = contexts.find(ordinal);
  if (found != contexts.end()) return found->second;
  CUcontext context = nullptr;
  check(driver().cuDevicePrimaryCtxRetain(&context, device_handle(ordinal)), "cuDevicePrimaryCtxRetain");
  return contexts[ordinal] = context;
}

ContextScope::ContextScope(CUcontext context) {
  driver().cuCtxGetCurrent(&previous_);
  if (previous_ == context) return;
  check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
  changed_ = true;
}

ContextScope::~ContextScope() {
  if (changed_) driver().cuCtxSetCurrent(previous_);
}

Event::Event() { check(driver().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate"); }

void Event::record(CUstream stream) { check(driver().cuEventRecord(event_, stream), "cuEventRecord"); }

Event::~Event() { driver().cuEventDestroy(event_); }

bool Event::done() const {
  CUresult const code = driver().cuEventQuery(event_);
  return code != CUDA_ERROR_NOT_READY &&
         code != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // while another thread captures
}

bool is_capturing(CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return false;  // these cannot be captured
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(driver().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void bind_driver(py::module_& m) {
  py::class_<Event, std::shared_ptr<Event>>(m, "Event", "A point on a stream.")
      .def_property_readonly("done", &Event::done, "Whether everything before it has run.");
  m.def("driver_problem", &driver_problem, "Why there is no CUDA driver, or '' where there is one.");
  m.def("device_count", &device_count, "Number of GPUs; 0 without a driver.");
  m.def(
      "driver_version",
      [] {
        int version = 0;
        check(driver().cuDriverGetVersion(&version), "cuDriverGetVersion");
        return version;
      },
      "CUDA version of the driver, for example 13000.");
  m.def(
      "device_name",
      [](int ordinal) {
        char name[256] = {};
        check(driver().cuDeviceGetName(name, sizeof(name), device_handle(ordinal)), "cuDeviceGetName");
        return std::string(name);
      },
      py::arg("ordinal"), "Name of a GPU.");
  m.def(
      "device_attribute",
      [](int ordinal, int attribute) {
        int value = 0;
        check(driver().cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device_handle(ordinal)),
              "cuDeviceGetAttribute");
        return value;
      },
      py::arg("ordinal"), py::arg("attribute"), "A CUdevice_attribute of a GPU.");
  m.def(
      "current_device",
      [] {
        CUcontext context = nullptr;
        CUdevice device = 0;
        check(driver().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
        if (context) check(driver().cuCtxGetDevice(&device), "cuCtxGetDevice");
        return static_cast<int>(device);
      },
      "Ordinal of the calling thread's current GPU; 0 where none is current.");
  m.def(
      "activate", [](int ordinal) { check(driver().cuCtxSetCurrent(primary_context(ordinal)), "cuCtxSetCurrent"); },
      py::arg("ordinal"), "Make a GPU's primary context current in the calling thread.");
  m.def(
      "memory_info",
      [](int ordinal) {
        ContextScope scope(primary_context(ordinal));
        size_t free = 0, total = 0;
        check(driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
        return py::make_tuple(free, total);
      },
      py::arg("ordinal"), "Free and total bytes of a GPU.");
  m.def(
      "pointer_device",
      [](uintptr_t pointer) {
        int ordinal = -1;
        unsigned kind = 0;  // stays 0 where the driver does not know the pointer, which is no error to this call
        std::array<CUpointer_attribute, 2> asked = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
        std::array<void*, 2> answers = {&kind, &ordinal};
        check(driver().cuPointerGetAttributes(2, asked.data(), answers.data(), static_cast<CUdeviceptr>(pointer)),
              "cuPointerGetAttributes");
        return kind ? ordinal : -1;
      },
      py::arg("pointer"), "Ordinal of the GPU that knows `pointer`, or -1 where the driver does not know it.");
  m.def(
      "copy_to_device",
      [](uintptr_t target, py::buffer source, uintptr_t stream) {
        py::buffer_info info = source.request();
        auto bytes = static_cast<size_t>(info.size) * static_cast<size_t>(info.itemsize);
        auto on = reinterpret_cast<CUstream>(stream);
        // From page-locked memory, which the driver knows, it reads on after this call.
        bool const waits = is_known(info.ptr) && !is_capturing(on);
        CUresult code;
        {
          py::gil_scoped_release release;  // a host callback ahead on the stream may want the interpreter
          code = driver().cuMemcpyHtoDAsync(static_cast<CUdeviceptr>(target), info.ptr, bytes, on);
          if (code == CUDA_SUCCESS && waits) code = driver().cuStreamSynchronize(on);
        }
        check(code, "cuMemcpyHtoDAsync");
      },
      py::arg("target"), py::arg("source"), py::arg("stream"),
      "Copy a contiguous host buffer to device memory; it may change when this returns, but under capture.");
  m.def(
      "copy_to_host",
      [](py::buffer target, uintptr_t source, uintptr_t stream) {
        py::buffer_info info = target.request(/*writable=*/true);
        auto bytes = static_cast<size_t>(info.size) * static_cast<size_t>(info.itemsize);
        CUresult code;
        {
          py::gil_scoped_release release;  // into pageable memory it waits for the stream
          code = driver().cuMemcpyDtoHAsync(info.ptr, static_cast<CUdeviceptr>(source), bytes,
                                            reinterpret_cast<CUstream>(stream));
        }
        check(code, "cuMemcpyDtoHAsync");
      },
      py::arg("target"), py::arg("source"), py::arg("stream"), "Copy device memory to a contiguous host buffer.");
  m.def(
      "fill",
      [](uintptr_t target, int value, size_t bytes, uintptr_t stream) {
        check(driver().cuMemsetD8Async(static_cast<CUdeviceptr>(target), static_cast<unsigned char>(value), bytes,
                                       reinterpret_cast<CUstream>(stream)),
              "cuMemsetD8Async");
      },
      py::arg("target"), py::arg("value"), py::arg("bytes"), py::arg("stream"), "Set bytes of device memory.");
  m.def(
      "synchronize",
      [](uintptr_t stream) {
        CUresult code;
        {
          py::gil_scoped_release release;
          code = driver().cuStreamSynchronize(reinterpret_cast<CUstream>(stream));
        }
        check(code, "cuStreamSynchronize");
      },
      py::arg("stream"), "Wait for everything on one stream.");
  m.def(
      "is_capturing",
      [](uintptr_t stream) {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        CUresult code = driver().cuStreamIsCapturing(reinterpret_cast<CUstream>(stream), &status);
        return code == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;  // one that is gone is not captured
      },
      py::arg("stream"), "Whether a stream is being captured into a graph.");
  m.def(
      "order",
      [](uintptr_t first, uintptr_t second) {
        Event event;  // the driver keeps it until the wait has been served
        event.record(reinterpret_cast<CUstream>(first));
        check(driver().cuStreamWaitEvent(reinterpret_cast<CUstream>(second), event.handle(), 0), "cuStreamWaitEvent");
      },
      py::arg("first"), py::arg("second"), "Make stream `second` wait for what is on stream `first` now.");
}

}  // namespace pycutlass
