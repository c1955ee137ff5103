// A compiled kernel, loaded: its host side as a shared library, its device side as a function of one GPU.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "driver.h"
#include "pycutlass/abi.h"

namespace pycutlass {

/// The host side: constants of the kernel, and the function that turns a call record into kernel parameters.
class HostLibrary {
 public:
  /// Loads a shared object from memory. Throws pycutlass.errors.CacheError where it is not one of ours.
  explicit HostLibrary(pybind11::bytes const& image);
  ~HostLibrary();
  HostLibrary(HostLibrary const&) = delete;
  HostLibrary& operator=(HostLibrary const&) = delete;

  pycutlass_kernel_info const& info() const { return info_; }
  /// The fields in the arguments of the epilogue.
  std::vector<pycutlass_epilogue_field> const& epilogue() const { return epilogue_; }
  /// Throws CacheError unless operand `role` is what the kernel was compiled for.
  void check_element(int role, int element) const;
  /// Makes parameters: 0, a cutlass::Status, or the negative CUresult of a tensor map that the driver refuses.
  int plan(void const* call, void* params, pycutlass_plan_result* result) const;

 private:
  void* handle_ = nullptr;
  pycutlass_kernel_info info_{};
  std::vector<pycutlass_epilogue_field> epilogue_;
  pycutlass_plan_function plan_ = nullptr;
};

/// Code of a GPU, loaded.
class Library {
 public:
  Library(pybind11::bytes const& cubin, CUcontext context);
  ~Library();
  Library(Library const&) = delete;
  Library& operator=(Library const&) = delete;

  CUlibrary handle() const { return library_; }
  /// Unloads it, and waits for what still runs of it. False where the driver refuses, as while a stream is captured.
  bool unload();

 private:
  CUcontext context_;
  CUlibrary library_ = nullptr;
};

/// The device side on one GPU.
class DeviceKernel {
 public:
  DeviceKernel(std::shared_ptr<HostLibrary> host, pybind11::bytes const& cubin, std::string const& name, int ordinal);
  DeviceKernel(DeviceKernel const&) = delete;
  DeviceKernel& operator=(DeviceKernel const&) = delete;

  HostLibrary const& host() const { return *host_; }
  std::shared_ptr<HostLibrary> shared_host() const { return host_; }
  CUfunction function() const { return function_; }
  CUcontext context() const { return context_; }
  int ordinal() const { return ordinal_; }
  int sm_count() const { return sm_count_; }
  int occupancy() const { return occupancy_; }
  int attribute(CUfunction_attribute which) const;
  std::shared_ptr<Library> library() const { return library_; }
  /// Keeps `kernel` loaded for the life of the process: graphs that have captured it may be replayed whenever.
  static void pin(std::shared_ptr<DeviceKernel> const& kernel);

 private:
  void prepare(std::string const& name);
  void count_clusters(std::string const& name, int threadblocks);

  std::shared_ptr<HostLibrary> host_;
  CUcontext context_ = nullptr;
  std::shared_ptr<Library> library_;
  bool pinned_ = false;
  CUfunction function_ = nullptr;
  int ordinal_ = 0;
  int sm_count_ = 0;
  int occupancy_ = 0;
};

/// What an operand is called that has this place in the table of a call record.
char const* role_name(int role);

/// Adds HostLibrary and DeviceKernel to the module.
void bind_kernel(pybind11::module_& m);

}  // namespace pycutlass
