#include "launch.h"

#include <cstring>

#include "bindings.h"
#include "bound_call.h"
#include "gate.h"

namespace py = pybind11;

namespace pycutlass {

namespace {

enum Operand { kA, kB, kC, kD };

}  // namespace

void StreamSource::follow_library(dlpack::ExchangeApi const* api) {
  api_ = api;
  callable_ = py::object();
}

void StreamSource::follow_callable(py::object callable) {
  api_ = nullptr;
  callable_ = std::move(callable);
}

CUstream StreamSource::current_handle() const {
  if (api_) {
    void* stream = nullptr;
    if (api_->current_work_stream(dlpack::kCUDA, ordinal_, &stream) != 0) throw py::error_already_set();
    return static_cast<CUstream>(stream);
  }
  if (callable_) return reinterpret_cast<CUstream>(callable_().cast<uintptr_t>());
  return nullptr;  // the legacy default stream
}

Call::Call(std::shared_ptr<DeviceKernel> kernel, pycutlass_call* record, uint32_t record_bytes)
    : kernel_(std::move(kernel)),
      record_(record),
      stream_(kernel_->context(), kernel_->ordinal()),
      launch_stream_(kernel_->context(), nullptr),
      params_(kernel_->host().info().params_bytes) {
  record_->struct_size = record_bytes;
  record_->device = kernel_->ordinal();
  record_->sm_count = kernel_->sm_count();
  record_->sm_occupancy = kernel_->occupancy();
  pycutlass_operand* operands[] = {&record_->A, &record_->B, &record_->C, &record_->D};
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].attach(operands[i], i == kD);

  pycutlass_kernel_info const& info = kernel_->host().info();
  if (info.call_bytes != record_bytes) raise_error("CacheError", "the kernel takes another family's call record");
  config_.blockDimX = info.threads[0];
  config_.blockDimY = info.threads[1];
  config_.blockDimZ = 1;
  config_.sharedMemBytes = info.shared_bytes;
  config_.attrs = attributes_;
  arguments_[0] = params_.data();
}

void Call::set_operand(int index, uintptr_t pointer, int64_t ld, int64_t batch_stride, uint64_t bytes,
                       uint64_t alignment) {
  slots_.at(static_cast<size_t>(index)).set(pointer, ld, batch_stride, bytes, alignment);
}

void Call::remember(int index, py::object tensor, std::string name) {
  slots_.at(static_cast<size_t>(index)).remember(std::move(tensor), std::move(name));
}

void Call::watch(py::object const& tensor, std::string name, bool written) {
  TensorGuard guard;
  guard.watch(tensor, written);
  watched_.push_back({std::move(name), std::move(guard)});
}

void Call::check_unmoved() const {
  for (OperandSlot const& slot : slots_) slot.check_unmoved();
  for (Watched const& each : watched_) {
    if (!each.guard.unmoved()) each.guard.raise_moved(each.name);
  }
}

void Call::count_writes() const {
  slots_[kD].guard().count_write();
  for (Watched const& each : watched_) each.guard.count_write();
}

py::list Call::storages() const {
  py::list storages;
  for (OperandSlot const& slot : slots_) storages.append(slot.guard().storage());
  for (Watched const& each : watched_) storages.append(each.guard.storage());
  return storages;
}

void Call::set_scalars(py::sequence const& values, py::sequence const& pointers) {
  for (size_t i = 0; i < PYCUTLASS_MAX_SCALARS; ++i) {
    record_->scalars.value[i] = i < values.size() ? values[i].cast<double>() : 0.0;
    record_->scalars.pointer[i] =
        i < pointers.size() ? reinterpret_cast<void const*>(pointers[i].cast<uintptr_t>()) : nullptr;
  }
}

void Call::set_workspace(uintptr_t pointer) { record_->workspace = reinterpret_cast<void*>(pointer); }

void Call::follow_library(py::object const& tensor_type) {
  dlpack::ExchangeApi const* api = exchange_api(tensor_type);
  if (!api) raise_error("ArgumentTypeError", "the tensor type has no __dlpack_c_exchange_api__");
  stream_.follow_library(api);
}

void Call::adopt(Call& other) noexcept {
  std::memcpy(record_, other.record_, record_->struct_size);
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].adopt(other.slots_[i]);
  watched_ = std::move(other.watched_);
  stream_ = std::move(other.stream_);
  result_ = other.result_;
  config_.gridDimX = other.config_.gridDimX;
  config_.gridDimY = other.config_.gridDimY;
  config_.gridDimZ = other.config_.gridDimZ;
  pdl_allowed_ = other.pdl_allowed_;
  set_attributes();
  params_.assign(other.params_);
}

int Call::plan() {
  ContextScope scope(kernel_->context());  // CUTLASS's host code asks for the current device, and makes tensor maps
  int const status = kernel_->host().plan(record_, params_.data(), &result_);
  config_.gridDimX = result_.grid[0];
  config_.gridDimY = result_.grid[1];
  config_.gridDimZ = result_.grid[2];
  set_attributes();
  return status;
}

void Call::set_attributes() {
  uint32_t const(&cluster)[3] = kernel_->host().info().cluster;
  config_.numAttrs = 0;
  if (cluster[0] * cluster[1] * cluster[2] > 1) {
    CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {cluster[0], cluster[1], cluster[2]};
  }
  if (launches_with_pdl()) {
    CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
  }
}

bool Call::update(py::handle a, py::handle b, py::handle c, py::handle d) {
  if (explicit_end_) return false;  // what is given up may be in use on a stream of the caller's: the slow path waits
  std::array<py::handle, 4> tensors = {a, b, c, d};
  size_t done = 0;
  bool fits = true;
  try {
    for (; fits && done < tensors.size(); ++done) {
      if (!tensors[done].is_none()) fits = slots_[done].try_exchange(tensors[done]);
    }
  } catch (py::error_already_set const&) {  // what a tensor raises when it is asked: the slow path explains
    fits = false;
  }
  OperandSlot const& target = slots_[kD];
  fits = fits && !target.overlaps(slots_[kA]) && !target.overlaps(slots_[kB]) &&
         (target.same_place(slots_[kC]) || !target.overlaps(slots_[kC])) && plan() == 0;
  if (!fits) {
    for (size_t i = 0; i < done; ++i) {
      if (!tensors[i].is_none()) slots_[i].restore();
    }
    plan();
  }
  for (OperandSlot& slot : slots_) slot.forget_previous();
  return fits;
}

void Call::run(py::handle given) {
  bool const named = !given.is_none();
  Stream const stream = named ? named_stream(given, kernel_->context(), kernel_->ordinal()) : stream_.current();
  ContextScope scope(stream.context());
  bool const capturing = is_capturing(stream.handle());
  if (capturing) DeviceKernel::pin(kernel_);
  launch(stream, named, capturing);
}

/// Two launches of one call write the same D, and the same semaphores of split-K. On a stream that the caller names,
/// which the tensors' library cannot order, and where there are semaphores, the later one waits for the earlier.
void Call::prepare(Stream const& stream, bool capturing) {
  marks_end_ = false;
  if (!explicit_end_ && !workspace_bytes()) return;
  if (has_last_ && last_ == stream && !last_was_named_ && !workspace_bytes()) return;  // it has waited already
  if (capturing) return;  // a graph cannot wait for what is outside it
  if (!has_last_ || last_ != stream) {
    if (explicit_end_ && explicit_stream_ != stream) stream.wait_for(*explicit_end_);
    if (end_) stream.wait_for(*end_);
  }
  last_ = stream;
  has_last_ = true;
  last_was_named_ = false;
  marks_end_ = workspace_bytes() != 0;
}

void Call::launch(Stream const& stream, bool named, bool capturing) {
  check_unmoved();
  prepare(stream, capturing);
  if (result_.clear_bytes) {
    stream.fill(reinterpret_cast<CUdeviceptr>(record_->workspace) + result_.clear_offset, 0, result_.clear_bytes);
  }
  // The tensors' library does not know of a stream that is named: an event after the launch tells when their memory may
  // go. What is captured belongs to whoever owns the graph.
  std::shared_ptr<Event> const explicit_end = named && !capturing ? next_explicit_end(stream) : nullptr;
  if (marks_end_ && !end_) end_ = std::make_shared<Event>(stream.context());
  std::array<Event const*, 2> const ends = {marks_end_ ? end_.get() : nullptr, explicit_end.get()};
  CUlaunchConfig config = config_;
  config.hStream = stream.handle();
  CUresult launched = CUDA_SUCCESS, recorded = CUDA_SUCCESS;
  unlocked([&] {
    launched = driver().cuLaunchKernelEx(&config, kernel_->function(), arguments_, nullptr);
    for (Event const* end : ends) {
      if (end && launched == CUDA_SUCCESS && recorded == CUDA_SUCCESS) {
        recorded = driver().cuEventRecord(end->handle(), stream.handle());
      }
    }
    return launched;
  });
  launched_ = true;
  launch_stream_ = stream;
  check(launched, "cuLaunchKernelEx");
  check(recorded, "cuEventRecord");
  count_writes();
  if (!explicit_end) return;
  if (storages_.is_none()) storages_ = storages();
  explicit_end_ = explicit_end;
  explicit_stream_ = last_ = stream;
  has_last_ = last_was_named_ = true;
}

/// What was given up waits for its own event; recording that one again would postpone it forever.
std::shared_ptr<Event> Call::next_explicit_end(Stream const& stream) const {
  return explicit_end_ && explicit_end_.use_count() == 1 ? explicit_end_ : std::make_shared<Event>(stream.context());
}

pycutlass_operand const& Call::operand(int index) const {
  pycutlass_operand const* const operands[] = {&record_->A, &record_->B, &record_->C, &record_->D};
  return *operands[index];
}

namespace {

class GemmCall : private Recorded<pycutlass_gemm_call>, public Call {
 public:
  explicit GemmCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_gemm_call)) {}

  void set_problem(int mode, int m, int n, int k, int batch_count) {
    record.mode = mode;
    record.m = m;
    record.n = n;
    record.k = k;
    record.batch_count = batch_count;
  }

  void set_schedule(int max_swizzle, int raster_order) {
    record.max_swizzle = max_swizzle;
    record.raster_order = raster_order;
  }
};

class ReductionCall : private Recorded<pycutlass_reduction_call>, public Call {
 public:
  explicit ReductionCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_reduction_call)) {}

  void set_problem(int rows, int columns, int partitions) {
    record.rows = rows;
    record.columns = columns;
    record.partitions = partitions;
  }
};

void bind_call(py::module_& m) {
  py::class_<Call>(m, "Call", "A kernel ready to be launched any number of times.")
      .def("set_operand", &Call::set_operand, py::arg("index"), py::arg("pointer"), py::arg("ld"),
           py::arg("batch_stride"), py::arg("bytes"), py::arg("alignment"))
      .def("remember", &Call::remember, py::arg("index"), py::arg("tensor"), py::arg("name"))
      .def(
          "adopt", [](Call& self, Call& other) { self.adopt(other); }, py::arg("other"),
          "Take over what was prepared in another call of the same kernel.")
      .def("watch", &Call::watch, py::arg("tensor"), py::arg("name"), py::arg("written"))
      .def("set_scalars", &Call::set_scalars, py::arg("values"), py::arg("pointers"))
      .def("set_workspace", &Call::set_workspace, py::arg("pointer"))
      .def("set_launch_with_pdl", &Call::set_launch_with_pdl, py::arg("allowed"))
      .def("follow_library", &Call::follow_library, py::arg("tensor_type"))
      .def("follow_callable", &Call::follow_callable, py::arg("callable"))
      .def("plan", &Call::plan)
      .def("update", &Call::update, py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"))
      .def("run", &Call::run, py::arg("stream") = py::none())
      .def_property_readonly("bound_update", [](py::object self) { return bound_update(std::move(self)); })
      .def_property_readonly("bound_run", [](py::object self) { return bound_run(std::move(self)); })
      .def_property_readonly("workspace_bytes", &Call::workspace_bytes)
      .def_property_readonly("launches_with_pdl", &Call::launches_with_pdl)
      .def_property_readonly("function", &Call::function)
      .def_property_readonly("params_address", &Call::params_address)
      .def_property_readonly("last_stream", &Call::last_stream)
      .def_property_readonly("current_stream", &Call::current_stream)
      .def_property_readonly("launched", &Call::launched)
      .def_property_readonly("was_named", &Call::was_named)
      .def_property_readonly("explicit_end", &Call::explicit_end)
      .def("take_storages", &Call::take_storages)
      .def(
          "operand",
          [](Call const& self, int index) {
            pycutlass_operand const& operand = self.operand(index);
            return py::make_tuple(reinterpret_cast<uintptr_t>(operand.data), operand.ld, operand.batch_stride);
          },
          py::arg("index"))
      .def_property_readonly("shared_bytes", [](Call const& self) { return self.config().sharedMemBytes; })
      .def_property_readonly(
          "block", [](Call const& self) { return py::make_tuple(self.config().blockDimX, self.config().blockDimY, 1); })
      .def_property_readonly("grid", [](Call const& self) {
        CUlaunchConfig const& config = self.config();
        return py::make_tuple(config.gridDimX, config.gridDimY, config.gridDimZ);
      });
}

}  // namespace
}  // namespace pycutlass

void bind_launch(py::module_& m) {
  using namespace pycutlass;
  bind_driver(m);
  bind_stream(m);
  bind_gate(m);
  bind_kernel(m);
  bind_tensor_form(m);
  bind_tensor_guard(m);
  bind_call(m);
  m.attr("MAX_SCALARS") = PYCUTLASS_MAX_SCALARS;
  m.attr("ABI_VERSION") = PYCUTLASS_ABI_VERSION;

  py::class_<GemmCall, Call>(m, "GemmCall", "A GEMM ready to be launched any number of times.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &GemmCall::set_problem, py::arg("mode"), py::arg("m"), py::arg("n"), py::arg("k"),
           py::arg("batch_count"))
      .def("set_schedule", &GemmCall::set_schedule, py::arg("max_swizzle"), py::arg("raster_order"));

  py::class_<ReductionCall, Call>(m, "ReductionCall", "A reduction of split-K partials, ready to be launched.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &ReductionCall::set_problem, py::arg("rows"), py::arg("columns"), py::arg("partitions"));

  bind_conv2d_call(m);
  bind_grouped_call(m);
}
