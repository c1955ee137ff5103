#include "kernel.h"

#include <dlfcn.h>
#include <pybind11/typing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace py = pybind11;

namespace pycutlass {
namespace {

/// Threadblocks of a cluster that every GPU with clusters can run.
constexpr int kPortableCluster = 8;

int get_device(int* ordinal) {
  CUdevice device = 0;
  CUresult code = driver().cuCtxGetDevice(&device);
  *ordinal = device;
  return code;
}

int get_attribute(int* value, int attribute, int ordinal) {
  // The runtime's cudaDeviceAttr and the driver's CUdevice_attribute share their numbers.
  return driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), ordinal);
}

/// What the driver said of the last tensor map that it refused: CUTLASS prints that, and goes on without the map.
thread_local CUresult refused_map = CUDA_SUCCESS;

template <auto encode, typename... Arguments>
CUresult encode_map(Arguments... arguments) {
  CUresult const code = (driver().*encode)(arguments...);
  if (code != CUDA_SUCCESS) refused_map = code;
  return code;
}

template <auto encode, typename... Arguments>
void* encoder(CUresult (*Driver::*)(Arguments...)) {
  return reinterpret_cast<void*>(&encode_map<encode, Arguments...>);
}

int get_entry_point(char const* symbol, void** function, unsigned int) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
    *function = encoder<&Driver::cuTensorMapEncodeTiled>(&Driver::cuTensorMapEncodeTiled);
  } else if (std::strcmp(symbol, "cuTensorMapEncodeIm2col") == 0) {
    *function = encoder<&Driver::cuTensorMapEncodeIm2col>(&Driver::cuTensorMapEncodeIm2col);
  } else if (std::strcmp(symbol, "cuDriverGetVersion") == 0) {
    *function = reinterpret_cast<void*>(driver().cuDriverGetVersion);
  } else {
    return CUDA_ERROR_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

/// Whether a library is loaded by this very path, which need not be the file that the path names now.
bool is_loaded(std::string const& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != nullptr;
}

/// A path that names file descriptor `fd` and that nothing is loaded by: dlopen compares paths as text before it looks
/// at the file, and would hand out another library once the number of a closed descriptor comes back. Exported
/// libraries load their kernels likewise (pycutlass/exports/c/kernel.c), so a count of one's own is not enough. While
/// `fd` is open, no other thread can take the path.
std::string unique_path(int fd) {
  static std::atomic<unsigned> counter{0};
  for (;;) {
    std::string path = "/proc/self/fd";
    for (unsigned rest = ++counter; rest != 0; rest >>= 1) path += (rest & 1) ? "/." : "//.";
    path += "/" + std::to_string(fd);
    if (!is_loaded(path)) return path;
  }
}

void* load_shared_object(std::string_view image) {
  int fd = memfd_create("pycutlass-host", MFD_CLOEXEC);
  if (fd < 0)
    raise_error("CacheError", std::string("no memory file for a kernel's host side: ") + std::strerror(errno));
  size_t written = 0;
  while (written < image.size()) {
    ssize_t step = write(fd, image.data() + written, image.size() - written);
    if (step <= 0) break;
    written += static_cast<size_t>(step);
  }
  void* handle = written == image.size() ? dlopen(unique_path(fd).c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  std::string problem = handle ? "" : (written == image.size() ? dlerror() : "it could not be written to memory");
  close(fd);
  if (!handle) raise_error("CacheError", "the host side of a kernel cannot be loaded: " + problem);
  return handle;
}

template <typename Function>
Function symbol(void* handle, char const* name) {
  void* address = dlsym(handle, name);
  if (!address) raise_error("CacheError", std::string("the host side of a kernel has no function ") + name);
  return reinterpret_cast<Function>(address);
}

/// By pycutlass_element, as pycutlass/types.py calls them.
constexpr std::array<char const*, 12> kElements = {"none", "f64", "f32", "tf32", "f16",  "bf16",
                                                   "s32",  "s8",  "s64", "e4m3", "e5m2", "u8"};
constexpr std::array<char const*, PYCUTLASS_ROLES> kRoles = {"A", "B", "C", "D", "scale_A", "scale_B"};

char const* element_name(int element) {
  bool const known = element >= 0 && static_cast<size_t>(element) < kElements.size();
  return known ? kElements[static_cast<size_t>(element)] : "unknown";
}

}  // namespace

char const* role_name(int role) {
  if (role < 0 || role >= PYCUTLASS_ROLES) raise_error("CacheError", "no operand has number " + std::to_string(role));
  return kRoles[static_cast<size_t>(role)];
}

HostLibrary::HostLibrary(py::bytes const& image) {
  handle_ = load_shared_object(std::string_view(image));
  symbol<pycutlass_describe_function>(handle_, "pycutlass_describe")(&info_);
  if (info_.abi_version != PYCUTLASS_ABI_VERSION) {
    raise_error("CacheError", "the kernel was built for call record version " + std::to_string(info_.abi_version) +
                                  ", this PyCUTLASS has version " + std::to_string(PYCUTLASS_ABI_VERSION) +
                                  ". Remove it with 'pycutlass cache rm'.");
  }
  auto const describe_epilogue = symbol<pycutlass_describe_epilogue_function>(handle_, "pycutlass_describe_epilogue");
  epilogue_.resize(describe_epilogue(nullptr, 0));
  describe_epilogue(epilogue_.data(), static_cast<uint32_t>(epilogue_.size()));
  plan_ = symbol<pycutlass_plan_function>(handle_, "pycutlass_plan");
  if (driver_problem().empty()) {
    static pycutlass_driver const functions = {&get_device, &get_attribute, &get_entry_point};
    symbol<pycutlass_bind_function>(handle_, "pycutlass_bind")(&functions);
  }
}

void HostLibrary::check_element(int role, int element) const {
  std::string const name = role_name(role);
  int const compiled = info_.elements[role];
  if (compiled == element) return;
  std::string const made = compiled ? std::string("was compiled for one of ") + element_name(compiled) : "has none";
  raise_error("CacheError", "operand " + name + " is of " + element_name(element) + ", and the kernel " + made +
                                ": description and kernel do not belong together");
}

int HostLibrary::plan(void const* call, void* params, pycutlass_plan_result* result) const {
  refused_map = CUDA_SUCCESS;
  int const status = plan_(call, params, result);
  return refused_map == CUDA_SUCCESS ? status : -static_cast<int>(refused_map);
}

HostLibrary::~HostLibrary() {
  if (handle_) dlclose(handle_);
}

Library::Library(py::bytes const& cubin, CUcontext context) : context_(context) {
  ContextScope scope(context);
  char const* const image = std::string_view(cubin).data();
  auto load = [&] { return driver().cuLibraryLoadData(&library_, image, nullptr, nullptr, 0, nullptr, nullptr, 0); };
  check(unlocked(load), "cuLibraryLoadData");
}

Library::~Library() { unload(); }

bool Library::unload() {
  if (!library_) return true;
  ContextScope scope(context_, std::nothrow);
  RelaxedCapture relaxed;
  CUlibrary const library = std::exchange(library_, nullptr);  // while the interpreter's lock is let go
  CUresult const code = unlocked([=] { return driver().cuLibraryUnload(library); });
  bool const later = code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (later) library_ = library;
  return !later;  // any other error is that of a driver that has ended
}

DeviceKernel::DeviceKernel(std::shared_ptr<HostLibrary> host, py::bytes const& cubin, std::string const& name,
                           int ordinal)
    : host_(std::move(host)),
      context_(primary_context(ordinal)),
      library_(std::make_shared<Library>(cubin, context_)),
      ordinal_(ordinal) {
  ContextScope scope(context_);
  prepare(name);
}

void DeviceKernel::pin(std::shared_ptr<DeviceKernel> const& kernel) {
  if (std::exchange(kernel->pinned_, true)) return;
  py::cast(kernel).release();  // the object of Python, which others find and share
}

void DeviceKernel::prepare(std::string const& name) {
  CUkernel kernel = nullptr;
  check(driver().cuLibraryGetKernel(&kernel, library_->handle(), name.c_str()), "cuLibraryGetKernel");
  // Resolving the function for this context loads the code now, not at the first launch, which may be under capture.
  check(unlocked([&] { return driver().cuKernelGetFunction(&function_, kernel); }), "cuKernelGetFunction");

  size_t offset = 0, bytes = 0;
  check(driver().cuFuncGetParamInfo(function_, 0, &offset, &bytes), "cuFuncGetParamInfo");
  pycutlass_kernel_info const& info = host_->info();
  if (bytes != info.params_bytes) {
    raise_error("CacheError", "kernel " + name + " takes " + std::to_string(bytes) +
                                  " bytes of parameters on the device, its host side makes " +
                                  std::to_string(info.params_bytes) + ": the two were compiled from different headers");
  }

  CUdevice device = 0;
  check(driver().cuDeviceGet(&device, ordinal_), "cuDeviceGet");
  check(driver().cuDeviceGetAttribute(&sm_count_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
        "cuDeviceGetAttribute");
  int most_shared = 0;
  check(driver().cuDeviceGetAttribute(&most_shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device),
        "cuDeviceGetAttribute");
  if (static_cast<int>(info.shared_bytes) > most_shared) {
    raise_error("DeviceError", "kernel " + name + " needs " + std::to_string(info.shared_bytes) +
                                   " bytes of shared memory, this GPU has " + std::to_string(most_shared) +
                                   " for one threadblock. Use fewer stages or a smaller threadblock.");
  }
  check(driver().cuFuncSetAttribute(function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    static_cast<int>(info.shared_bytes)),
        "cuFuncSetAttribute");
  check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &occupancy_, function_, static_cast<int>(info.threads[0] * info.threads[1]), info.shared_bytes),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  if (occupancy_ < 1) {
    raise_error("DeviceError", "kernel " + name + " does not fit on this GPU: not one threadblock can be resident");
  }
  auto const threadblocks = static_cast<int>(info.cluster[0] * info.cluster[1] * info.cluster[2]);
  if (threadblocks > kPortableCluster) count_clusters(name, threadblocks);
}

/// Every GPU of compute capability 9.0 runs clusters of 8 threadblocks. Larger ones have to be asked for, and how many
/// fit differs from one GPU to the next: not all of its parts have as many multiprocessors. The threadblocks of a
/// launch are to be resident at the same time, so a kernel is told of those multiprocessors alone.
void DeviceKernel::count_clusters(std::string const& name, int threadblocks) {
  pycutlass_kernel_info const& info = host_->info();
  check(driver().cuFuncSetAttribute(function_, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
        "cuFuncSetAttribute");
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {info.cluster[0], info.cluster[1], info.cluster[2]};
  CUlaunchConfig config{};
  config.gridDimX = info.cluster[0];
  config.gridDimY = info.cluster[1];
  config.gridDimZ = info.cluster[2];
  config.blockDimX = info.threads[0];
  config.blockDimY = info.threads[1];
  config.blockDimZ = 1;
  config.sharedMemBytes = info.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  CUresult const asked = driver().cuOccupancyMaxActiveClusters(&clusters, function_, &config);
  if (asked != CUDA_ERROR_INVALID_CLUSTER_SIZE) check(asked, "cuOccupancyMaxActiveClusters");
  if (clusters < 1) {
    raise_error("DeviceError", "kernel " + name + " has clusters of " + std::to_string(threadblocks) +
                                   " threadblocks, and this GPU cannot hold one of them: it guarantees " +
                                   std::to_string(kPortableCluster) + ". Use a cluster_shape of at most " +
                                   std::to_string(kPortableCluster) + " threadblocks.");
  }
  sm_count_ = std::min(sm_count_, clusters * threadblocks);
}

int DeviceKernel::attribute(CUfunction_attribute which) const {
  ContextScope scope(context_);
  int value = 0;
  check(driver().cuFuncGetAttribute(&value, which, function_), "cuFuncGetAttribute");
  return value;
}

namespace {

py::typing::Dict<py::str, py::str> elements(HostLibrary const& host) {
  py::typing::Dict<py::str, py::str> elements;
  for (int role = 0; role < PYCUTLASS_ROLES; ++role) {
    if (int const element = host.info().elements[role]) elements[role_name(role)] = element_name(element);
  }
  return elements;
}

using EpilogueField = py::typing::Tuple<py::str, py::str, py::str, int, int, int, bool>;

py::typing::Tuple<EpilogueField, py::ellipsis> epilogue_fields(HostLibrary const& host) {
  static constexpr std::array<char const*, 3> kKinds = {"value", "address", "stride"};
  py::list fields;
  for (pycutlass_epilogue_field const& field : host.epilogue()) {
    fields.append(py::make_tuple(field.name, kKinds.at(field.kind), element_name(field.element), field.offset,
                                 field.bytes, field.index, field.written != 0));
  }
  return py::tuple(fields);
}

}  // namespace

void bind_kernel(py::module_& m) {
  py::dict codes, roles;
  for (size_t code = 1; code < kElements.size(); ++code) codes[kElements[code]] = code;
  for (int role = 0; role < PYCUTLASS_ROLES; ++role) roles[role_name(role)] = role;
  py::dict forms;
  forms["tensor"] = static_cast<int>(PYCUTLASS_TENSOR);
  forms["vector"] = static_cast<int>(PYCUTLASS_VECTOR);
  forms["scalar"] = static_cast<int>(PYCUTLASS_SCALAR);
  forms["addresses"] = static_cast<int>(PYCUTLASS_ADDRESSES);
  m.attr("FORMS") = forms;
  m.attr("ELEMENTS") = codes;
  m.attr("ROLES") = roles;

  py::class_<HostLibrary, std::shared_ptr<HostLibrary>>(m, "HostLibrary",
                                                        "Host side of a compiled kernel, loaded from bytes.")
      .def(py::init<py::bytes const&>(), py::arg("image"))
      .def_property_readonly("params_bytes", [](HostLibrary const& self) { return self.info().params_bytes; })
      .def_property_readonly("shared_bytes", [](HostLibrary const& self) { return self.info().shared_bytes; })
      .def_property_readonly("threads",
                             [](HostLibrary const& self) { return self.info().threads[0] * self.info().threads[1]; })
      .def_property_readonly("cluster",
                             [](HostLibrary const& self) {
                               auto const& cluster = self.info().cluster;
                               return py::make_tuple(cluster[0], cluster[1], cluster[2]);
                             })
      .def_property_readonly("elements", &elements)
      .def_property_readonly("epilogue_bytes", [](HostLibrary const& self) { return self.info().epilogue_bytes; })
      .def_property_readonly("epilogue_fields", &epilogue_fields);

  py::class_<Library, std::shared_ptr<Library>>(m, "Library", "Code of a GPU, loaded.")
      .def("unload", &Library::unload, "Unload it; False where the driver refuses that for now.");

  py::class_<DeviceKernel, std::shared_ptr<DeviceKernel>>(m, "DeviceKernel", "A compiled kernel, loaded on one GPU.")
      .def(py::init<std::shared_ptr<HostLibrary>, py::bytes const&, std::string const&, int>(), py::arg("host"),
           py::arg("cubin"), py::arg("name"), py::arg("ordinal"))
      .def_property_readonly("function",
                             [](DeviceKernel const& self) { return reinterpret_cast<uintptr_t>(self.function()); })
      .def_property_readonly("library", &DeviceKernel::library)
      .def_property_readonly("host", &DeviceKernel::shared_host)
      .def_property_readonly("ordinal", &DeviceKernel::ordinal)
      .def_property_readonly("occupancy", &DeviceKernel::occupancy)
      .def_property_readonly("sm_count", &DeviceKernel::sm_count)
      .def_property_readonly("registers",
                             [](DeviceKernel const& self) { return self.attribute(CU_FUNC_ATTRIBUTE_NUM_REGS); })
      .def_property_readonly(
          "local_bytes", [](DeviceKernel const& self) { return self.attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES); });
}

}  // namespace pycutlass
