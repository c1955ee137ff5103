// Operators of torch that run plans of a library of kernels (library.h), without Python: for AOTInductor, for programs
// in C++, and for graphs that are exported.
//
// Built on torch's stable ABI, so that one binary is for torch 2.10 and all that come after it. Namespace
// pycutlass_kernels, apart from the operators that pycutlass.pytorch defines in Python.
#define TORCH_TARGET_VERSION (((0ULL + 2) << 56) | ((0ULL + 10) << 48))

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "embedded.h"
#include "library.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Returns what a shared object has to say of its kernels.
pycutlass_library const* library_in(void* handle, std::string const& name) {
  auto get = reinterpret_cast<pycutlass_get_library_function>(dlsym(handle, "pycutlass_get_library"));
  STD_TORCH_CHECK(get, name,
                  " is no library of kernels: it lacks pycutlass_get_library. Write one by pycutlass export");
  pycutlass_library const* library = get();
  STD_TORCH_CHECK(pycutlass_is_compatible(library), name, " has version ", library->version,
                  " of the interface, and these operators are for version ", PYCUTLASS_LIBRARY_VERSION,
                  ": export it again, or build the operators of the release that it comes from");
  return library;
}

/// A library, and by what name errors call it.
struct Library {
  pycutlass_library const* functions;
  std::string name;
  pycutlass_library const* operator->() const { return functions; }
};

/// Returns what is kept by a key, and `make`s it where that has not been asked for before. Libraries stay open: graphs
/// have their kernels.
template <typename Make>
Library kept(std::string const& key, Make make) {
  static std::mutex mutex;
  static std::map<std::string, Library> opened;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = opened.find(key);
  return found != opened.end() ? found->second : opened.emplace(key, make()).first->second;
}

/// Returns the library in a file.
Library library_of(std::string const& path) {
  return kept("file " + path, [&] {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    STD_TORCH_CHECK(handle, "the library of kernels ", path, " cannot be opened: ", dlerror());
    return Library{library_in(handle, path), path};
  });
}

/// Returns the bytes of a tensor, which may be on a GPU: packages of AOTInductor may move what they carry there.
std::vector<uint8_t> bytes_of(Tensor const& tensor) {
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Byte && tensor.dim() == 1 && tensor.is_contiguous(),
                  "library must be the bytes that pycutlass.pytorch.embedded returns: a contiguous vector of uint8");
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor.numel()));
  if (bytes.empty()) return bytes;
  if (!tensor.is_cuda()) {
    std::memcpy(bytes.data(), tensor.data_ptr(), bytes.size());
    return bytes;
  }
  constexpr int kToHost = 2;
  auto copy = reinterpret_cast<int (*)(void*, void const*, size_t, int)>(dlsym(RTLD_DEFAULT, "cudaMemcpy"));
  STD_TORCH_CHECK(copy, "this build of torch is without CUDA");
  int code = copy(bytes.data(), tensor.data_ptr(), bytes.size(), kToHost);
  STD_TORCH_CHECK(code == 0, "the library cannot be copied from its GPU: cudaMemcpy returned ", code);
  return bytes;
}

/// Returns the library that a program carries, of which `digest` is the SHA-256. It is read once.
Library library_of(Tensor const& tensor, std::string const& digest) {
  return kept("SHA-256 " + digest, [&] {
    std::vector<uint8_t> const bytes = bytes_of(tensor);
    std::string const found = embedded::sha256(bytes.data(), bytes.size()), name = "library " + digest.substr(0, 16);
    STD_TORCH_CHECK(found == digest, "the bytes of library have the SHA-256 ", found, ", and digest is ", digest,
                    ": pass both as pycutlass.pytorch.embedded returns them");
    std::string wrong;
    void* handle = embedded::opened(bytes.data(), bytes.size(), wrong);
    STD_TORCH_CHECK(handle, name, ", which the program carries, cannot be opened: ", wrong,
                    ". Write it to a file, and name that by pycutlass_kernels.run");
    try {
      return Library{library_in(handle, name), name};
    } catch (...) {
      dlclose(handle);
      throw;
    }
  });
}

/// Returns the index of a plan.
int32_t plan_of(Library const& library, std::string const& name) {
  int32_t plan = library->find(name.c_str());
  if (plan >= 0) return plan;
  std::string names;
  for (uint32_t i = 0; i < library->plan_count; ++i) names += (i ? ", " : "") + std::string(library->plans[i].name);
  STD_TORCH_CHECK(false, library.name, " has no plan ", name, ": it has ", names);
}

pycutlass_element element_of(ScalarType type, char const* name) {
  switch (type) {
    case ScalarType::Double:
      return PYCUTLASS_F64;
    case ScalarType::Float:
      return PYCUTLASS_F32;
    case ScalarType::Half:
      return PYCUTLASS_F16;
    case ScalarType::BFloat16:
      return PYCUTLASS_BF16;
    case ScalarType::Int:
      return PYCUTLASS_S32;
    case ScalarType::Long:
      return PYCUTLASS_S64;
    case ScalarType::Char:
      return PYCUTLASS_S8;
    case ScalarType::Byte:
    case ScalarType::Bool:
      return PYCUTLASS_U8;  // truth values are bytes of 0 and 1
    case ScalarType::Float8_e4m3fn:
      return PYCUTLASS_E4M3;
    case ScalarType::Float8_e5m2:
      return PYCUTLASS_E5M2;
    default:
      STD_TORCH_CHECK(false, name, " is of a type that no kernel takes");
  }
}

/// Returns a tensor as a library takes it: images of (N, C, H, W) as (N, H, W, C).
pycutlass_tensor given(Tensor const& tensor, pycutlass_tensor_info const& info, std::string const& plan) {
  int64_t rank = tensor.dim();
  STD_TORCH_CHECK(rank <= PYCUTLASS_MAX_RANK, info.name, " of ", plan, " has ", rank, " dimensions, and may have ",
                  PYCUTLASS_MAX_RANK, " at most");
  bool is_image = info.layout == PYCUTLASS_PIXELS && rank == 4;
  static constexpr int kPixels[] = {0, 2, 3, 1};
  pycutlass_tensor made{};
  made.data = tensor.data_ptr();
  made.rank = static_cast<uint8_t>(rank);
  made.element = element_of(tensor.scalar_type(), info.name);
  for (int i = 0; i < rank; ++i) {
    int from = is_image ? kPixels[i] : i;
    made.shape[i] = tensor.size(from);
    made.strides[i] = tensor.stride(from);
  }
  return made;
}

/// Raises what a library has to say of a call that did not succeed.
void check(Library const& library, int code) {
  STD_TORCH_CHECK(code == PYCUTLASS_SUCCESS, library.name, ": ", library->message());
}

/// Returns the GPU of all tensors.
int32_t device_of(std::vector<Tensor> const& read, std::vector<Tensor> const& written, std::string const& plan) {
  Tensor const* first = nullptr;
  for (auto const* tensors : {&read, &written}) {
    for (auto const& tensor : *tensors) {
#ifndef PYCUTLASS_HOST_TENSORS  // which only tests of this file define
      STD_TORCH_CHECK(tensor.is_cuda(), plan, " runs on GPUs, and one of its tensors is on another device: move it");
#endif
      if (!first) first = &tensor;
      STD_TORCH_CHECK(tensor.get_device_index() == first->get_device_index(), plan,
                      " is given tensors on several GPUs, ", first->get_device_index(), " and ",
                      tensor.get_device_index(), ": move them to one");
    }
  }
  STD_TORCH_CHECK(first, plan, " is given no tensors");
  return first->get_device_index();
}

/// Returns what `run` is given in the order of the plan, of a group that of each problem in turn.
std::vector<pycutlass_tensor> placed(pycutlass_plan_info const& plan, std::vector<Tensor> const& read,
                                     std::vector<Tensor> const& written) {
  size_t writes = 0;
  for (uint32_t i = 0; i < plan.tensor_count; ++i) writes += plan.tensors[i].written;
  size_t reads = plan.tensor_count - writes, problems = plan.is_group && writes ? written.size() / writes : 1;
  std::string each = plan.is_group ? " for each problem" : "";
  STD_TORCH_CHECK(read.size() == problems * reads && written.size() == problems * writes && problems, plan.name,
                  " reads ", reads, " and writes ", writes, " tensors", each, ", and ", read.size(), " and ",
                  written.size(), " are given: ", plan.description);
  std::vector<pycutlass_tensor> tensors;
  auto next_read = read.begin(), next_written = written.begin();
  for (size_t problem = 0; problem < problems; ++problem) {
    for (uint32_t i = 0; i < plan.tensor_count; ++i) {
      auto const& info = plan.tensors[i];
      tensors.push_back(given(info.written ? *next_written++ : *next_read++, info, plan.name));
    }
  }
  return tensors;
}

#ifndef PYCUTLASS_HOST_TENSORS
/// What is asked of torch's build with CUDA and of the runtime that it has loaded. They are looked up and not linked:
/// other builds lack them, and have no tensors that come so far.
struct Cuda {
  int (*get_device)(int* device);
  int (*set_device)(int device);
  AOTITorchError (*current_stream)(int32_t device, void** stream);
};

template <typename Function>
void look_up(Function*& function, char const* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

Cuda find_cuda() {
  Cuda found{};
  look_up(found.get_device, "cudaGetDevice");
  look_up(found.set_device, "cudaSetDevice");
  look_up(found.current_stream, "aoti_torch_get_current_cuda_stream");
  STD_TORCH_CHECK(found.get_device && found.set_device && found.current_stream, "this build of torch is without CUDA");
  return found;
}

Cuda const& cuda() {
  static Cuda const found = find_cuda();
  return found;
}

/// Makes the context of a GPU current, which libraries ask the driver for. Of a thread that has called nothing of the
/// runtime yet it is not, whatever torch's current device is.
void use_context_of(int32_t device) {
  int code = cuda().set_device(device);
  STD_TORCH_CHECK(code == 0, "GPU ", device, " cannot be used: cudaSetDevice returned ", code);
}
#endif

/// Runs a plan on the current stream, or raises.
void run_plan(Library const& library, std::string const& name, std::vector<Tensor> const& read,
              std::vector<Tensor> const& written, std::vector<double> const& scalars) {
  int32_t number = plan_of(library, name);
  pycutlass_plan_info const& plan = library->plans[number];
  [[maybe_unused]] int32_t device = device_of(read, written, name);
  std::vector<pycutlass_tensor> tensors = placed(plan, read, written);
  STD_TORCH_CHECK(scalars.empty() || scalars.size() == plan.scalar_count, name, " has ", plan.scalar_count,
                  " scalars, and ", scalars.size(),
                  " are given: give all, or none for those that it was exported with");
  std::vector<pycutlass_scalar> values;
  for (double scalar : scalars) values.push_back({scalar, nullptr});
  pycutlass_launch launch{};
  launch.struct_size = sizeof launch;
  launch.problems = plan.is_group ? static_cast<uint32_t>(tensors.size() / plan.tensor_count) : 1;
  launch.tensors = tensors.data();
  launch.scalars = values.empty() ? nullptr : values.data();
#ifndef PYCUTLASS_HOST_TENSORS
  torch::stable::accelerator::DeviceGuard guard(device);
  use_context_of(device);
  STD_TORCH_CHECK(cuda().current_stream(device, &launch.stream) == TORCH_SUCCESS, "torch has no current stream of GPU ",
                  device);
#endif
  check(library, library->workspace_size(number, &launch, &launch.workspace_bytes));
  Tensor workspace;  // whose memory torch hands to work that is behind the launch on the same stream
  if (launch.workspace_bytes) {
    std::vector<int64_t> size{static_cast<int64_t>(launch.workspace_bytes)};
    workspace = torch::stable::new_empty(written.at(0), size, ScalarType::Byte);
    launch.workspace = workspace.data_ptr();
  }
  check(library, library->run(number, &launch));
}

bool is_float(ScalarType type) {
  return type == ScalarType::Double || type == ScalarType::Float || type == ScalarType::Half ||
         type == ScalarType::BFloat16 || type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2;
}

/// Makes all floats NaN, where torch can.
void fill_with_nan(std::vector<Tensor> const& tensors) noexcept {
  try {
    for (auto const& tensor : tensors) {
      if (is_float(tensor.scalar_type())) torch::stable::fill_(tensor, std::numeric_limits<double>::quiet_NaN());
    }
  } catch (...) {  // an error behind another one, which is told
  }
}

/// Calls what runs a plan. In a package of AOTInductor, torch before 2.13 prints what an operator raises and goes on
/// with what is in memory: there all floats that were to be written are NaN.
template <typename Run>
void run_or_fill(std::vector<Tensor> const& written, Run run) {
  constexpr uint64_t kRaises = ((0ULL + 2) << 56) | ((0ULL + 13) << 48);
  try {
    run();
  } catch (...) {
    if (aoti_torch_abi_version() < kRaises) fill_with_nan(written);
    throw;
  }
}

/// Runs a plan of a library in a file on the current stream.
void run(std::string path, std::string name, std::vector<Tensor> read, std::vector<Tensor> written,
         std::vector<double> scalars) {
  run_or_fill(written, [&] { run_plan(library_of(path), name, read, written, scalars); });
}

/// The same of one that the program carries.
void run_embedded(Tensor library, std::string digest, std::string name, std::vector<Tensor> read,
                  std::vector<Tensor> written, std::vector<double> scalars) {
  run_or_fill(written, [&] { run_plan(library_of(library, digest), name, read, written, scalars); });
}

/// Loads the kernels of a plan for the current GPU, which a launch does otherwise, and a graph's capture cannot.
void load(std::string path, std::string name) {
  Library const library = library_of(path);
#ifndef PYCUTLASS_HOST_TENSORS
  int device = 0, code = cuda().get_device(&device);
  STD_TORCH_CHECK(code == 0, "no GPU can be used: cudaGetDevice returned ", code);
  use_context_of(device);
#endif
  check(library, library->load(plan_of(library, name)));
}

/// Returns what is in a library, as JSON.
std::string manifest(std::string path) { return library_of(path)->manifest; }

}  // namespace

STABLE_TORCH_LIBRARY(pycutlass_kernels, library) {
  library.def("run(str library, str plan, Tensor[] read, Tensor(a!)[] written, float[] scalars=[]) -> ()");
  library.def(
      "run_embedded(Tensor library, str digest, str plan, Tensor[] read, Tensor(a!)[] written, float[] scalars=[]) -> "
      "()");
  library.def("load(str library, str plan) -> ()");
  library.def("manifest(str library) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(pycutlass_kernels, CUDA, library) {
  library.impl("run", TORCH_BOX(&run));
  library.impl("run_embedded", TORCH_BOX(&run_embedded));
}

// Which says where tensors have to be.
STABLE_TORCH_LIBRARY_IMPL(pycutlass_kernels, CPU, library) {
  library.impl("run", TORCH_BOX(&run));
  library.impl("run_embedded", TORCH_BOX(&run_embedded));
}

// These take no tensors.
STABLE_TORCH_LIBRARY_IMPL(pycutlass_kernels, CompositeExplicitAutograd, library) {
  library.impl("load", TORCH_BOX(&load));
  library.impl("manifest", TORCH_BOX(&manifest));
}
