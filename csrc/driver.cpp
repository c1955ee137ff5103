#include "driver.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <array>
#include <map>
#include <optional>
#include <string>

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
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
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
  PYCUTLASS_LOAD(cuDevicePrimaryCtxGetState)
  PYCUTLASS_LOAD(cuCtxGetCurrent)
  PYCUTLASS_LOAD(cuCtxSetCurrent)
  PYCUTLASS_LOAD(cuCtxGetDevice)
  PYCUTLASS_LOAD(cuCtxGetStreamPriorityRange)
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
  PYCUTLASS_LOAD(cuOccupancyMaxActiveClusters)
  PYCUTLASS_LOAD(cuLaunchKernelEx)
  PYCUTLASS_LOAD(cuMemHostAlloc)
  PYCUTLASS_LOAD(cuMemcpyHtoDAsync)
  PYCUTLASS_LOAD(cuMemcpyDtoDAsync)
  PYCUTLASS_LOAD(cuMemcpyDtoHAsync)
  PYCUTLASS_LOAD(cuMemsetD8Async)
  PYCUTLASS_LOAD(cuStreamSynchronize)
  PYCUTLASS_LOAD(cuStreamGetCtx)
  PYCUTLASS_LOAD(cuStreamIsCapturing)
  PYCUTLASS_LOAD(cuThreadExchangeStreamCaptureMode)
  PYCUTLASS_LOAD(cuStreamWaitEvent)
  PYCUTLASS_LOAD(cuEventCreate)
  PYCUTLASS_LOAD(cuEventRecord)
  PYCUTLASS_LOAD(cuEventQuery)
  PYCUTLASS_LOAD(cuEventSynchronize)
  PYCUTLASS_LOAD(cuEventElapsedTime)
  PYCUTLASS_LOAD(cuEventDestroy)
  PYCUTLASS_LOAD(cuLaunchHostFunc)
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

CUdevice device_handle(int ordinal) {
  CUdevice device = 0;
  check(driver().cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

}  // namespace

std::string const& driver_problem() { return loaded().problem; }

std::atomic<Driver const*> loaded_driver{nullptr};

Driver const& load_driver() {
  if (!driver_problem().empty()) {
    raise_error("DeviceError", driver_problem() + ". Install an NVIDIA driver of release 580 or later for CUDA 13.");
  }
  loaded_driver.store(&loaded().driver, std::memory_order_release);  // several threads store the same
  return loaded().driver;
}

void raise_error(char const* type, std::string const& message) {
  py::object error = py::module_::import("pycutlass.errors").attr(type);
  PyErr_SetObject(error.ptr(), error(message).ptr());
  throw py::error_already_set();
}

void raise_failed(CUresult code, char const* call) {
  char const* meaning = nullptr;
  loaded().driver.cuGetErrorString(code, &meaning);
  py::object error = py::module_::import("pycutlass.errors").attr("DriverError");
  PyErr_SetObject(error.ptr(), error(call, static_cast<int>(code), meaning ? meaning : "unknown error").ptr());
  throw py::error_already_set();
}

CUcontext primary_context(int ordinal) {
  // Retained for the life of the process, as torch and cupy do: releasing it would tear down their state as well.
  static std::map<int, CUcontext> contexts;
  auto found = contexts.find(ordinal);
  if (found != contexts.end()) return found->second;
  CUcontext context = nullptr;
  CUdevice const device = device_handle(ordinal);
  // Two threads that come here at the same time get the same one, retained twice.
  check(unlocked([&] { return driver().cuDevicePrimaryCtxRetain(&context, device); }), "cuDevicePrimaryCtxRetain");
  return contexts[ordinal] = context;
}

ContextScope::ContextScope(CUcontext context) { check(enter(context), "cuCtxSetCurrent"); }

CUresult ContextScope::enter(CUcontext context) noexcept {
  CUresult const code = driver().cuCtxGetCurrent(&previous_);
  if (code != CUDA_SUCCESS || previous_ == context) return code;
  CUresult const entered = driver().cuCtxSetCurrent(context);
  changed_ = entered == CUDA_SUCCESS;
  return entered;
}

ContextScope::~ContextScope() {
  if (changed_) driver().cuCtxSetCurrent(previous_);
}

namespace {

/// A ContextScope for a `with` statement of Python.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal) : ordinal_(ordinal) {}
  void enter() { scope_.emplace(primary_context(ordinal_)); }
  void exit(py::args const&) { scope_.reset(); }

 private:
  int ordinal_;
  std::optional<ContextScope> scope_;
};

CUresult ask_pointer(uintptr_t pointer, int& ordinal, unsigned& kind) {
  std::array<CUpointer_attribute, 2> asked = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 2> answers = {&kind, &ordinal};
  return driver().cuPointerGetAttributes(2, asked.data(), answers.data(), static_cast<CUdeviceptr>(pointer));
}

/// Ordinal of the GPU that knows `pointer`, or -1. Any context will do to ask in. Where none is current it is one that
/// exists: without one there is no memory that could be known.
int pointer_device(uintptr_t pointer) {
  int ordinal = -1;
  unsigned kind = 0;  // stays 0 where the driver does not know the pointer, which is no error to this call
  CUcontext current = nullptr;
  check(driver().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  for (int device = 0; !current && device < device_count(); ++device) {
    unsigned flags = 0;
    int active = 0;
    check(driver().cuDevicePrimaryCtxGetState(device_handle(device), &flags, &active), "cuDevicePrimaryCtxGetState");
    if (active) current = primary_context(device);
  }
  if (!current) return -1;
  ContextScope scope(current);
  check(ask_pointer(pointer, ordinal, kind), "cuPointerGetAttributes");
  return kind ? ordinal : -1;
}

}  // namespace

void bind_driver(py::module_& m) {
  py::class_<DeviceScope>(m, "DeviceScope", "With it, a GPU's primary context is current in the calling thread.")
      .def(py::init<int>(), py::arg("ordinal"))
      .def("__enter__", &DeviceScope::enter)
      .def("__exit__", &DeviceScope::exit);
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
      [](int ordinal, std::string const& attribute) {
        static std::map<std::string, CUdevice_attribute, std::less<>> const kKnown = {
            {"compute_capability_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
            {"compute_capability_minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
            {"multiprocessor_count", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
            {"l2_cache_size", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
        };
        int value = 0;
        CUresult const asked = driver().cuDeviceGetAttribute(&value, kKnown.at(attribute), device_handle(ordinal));
        check(asked, "cuDeviceGetAttribute");
        return value;
      },
      py::arg("ordinal"), py::arg("attribute"),
      "A CUdevice_attribute of a GPU: compute_capability_major, compute_capability_minor, multiprocessor_count or "
      "l2_cache_size.");
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
      "memory_info",
      [](int ordinal) {
        ContextScope scope(primary_context(ordinal));
        RelaxedCapture relaxed;  // workspaces may be made while a graph is captured
        size_t free = 0, total = 0;
        check(driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
        return py::make_tuple(free, total);
      },
      py::arg("ordinal"), "Free and total bytes of a GPU.");
  m.def(
      "priority_range",
      [](int ordinal) {
        ContextScope scope(primary_context(ordinal));
        int least = 0, greatest = 0;
        check(driver().cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
        return py::make_tuple(least, greatest);
      },
      py::arg("ordinal"), "The least and the greatest priority of work on a GPU: greater is a lower number.");
  m.def("pointer_device", &pointer_device, py::arg("pointer"),
        "Ordinal of the GPU that knows `pointer`, or -1 where the driver does not know it.");
}

}  // namespace pycutlass
