#include "launch.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "bindings.h"
#include "gate.h"
#include "recording.h"

namespace py = pybind11;

namespace pycutlass {

Call::Call(std::shared_ptr<DeviceKernel> kernel, pycutlass_call* record, uint32_t record_bytes)
    : kernel_(std::move(kernel)),
      record_(record),
      epilogue_(kernel_->host().info().epilogue_bytes),
      stream_(kernel_->context(), kernel_->ordinal()),
      launch_stream_(kernel_->context(), nullptr),
      params_(kernel_->host().info().params_bytes) {
  record_->struct_size = record_bytes;
  record_->device = kernel_->ordinal();
  record_->sm_count = kernel_->sm_count();
  record_->sm_occupancy = kernel_->occupancy();
  record_->epilogue = epilogue_.data();
  slots_.reserve(4);
  for (int role : {PYCUTLASS_A, PYCUTLASS_B, PYCUTLASS_C, PYCUTLASS_D}) {
    slots_.emplace_back(role_name(role), &record_->operands[role].data, role == PYCUTLASS_D);
  }

  pycutlass_kernel_info const& info = kernel_->host().info();
  if (info.call_bytes != record_bytes) raise_error("CacheError", "the kernel takes another family's call record");
  config_.blockDimX = info.threads[0];
  config_.blockDimY = info.threads[1];
  config_.blockDimZ = 1;
  config_.sharedMemBytes = info.shared_bytes;
  config_.attrs = attributes_;
  arguments_[0] = params_.data();
}

namespace {

/// Whether an operand is among those of some bits; there are no more than that.
bool is_taken(uint32_t taken, size_t operand) { return operand < 32 && taken >> operand & 1; }

/// As many strides as a record has for an operand, with 0 for those that are not given.
OperandSlot::Strides all_strides(std::vector<int64_t> const& given) {
  OperandSlot::Strides strides{};
  if (given.size() > strides.size()) raise_error("ArgumentTypeError", "an operand has at most 4 strides");
  std::copy(given.begin(), given.end(), strides.begin());
  return strides;
}

}  // namespace

void Call::set_operand(int role, uintptr_t pointer, std::vector<int64_t> const& strides, uint64_t bytes,
                       uint64_t alignment, int element, int form) {
  kernel_->host().check_element(role, element);
  OperandSlot::Strides const padded = all_strides(strides);
  pycutlass_operand& operand = record_->operands[role];
  std::copy(padded.begin(), padded.end(), operand.stride);
  operand.element = static_cast<uint8_t>(element);
  operand.form = static_cast<uint8_t>(form);
  slot(role_name(role), &operand.data, role == PYCUTLASS_D).set(pointer, padded, bytes, alignment);
}

void Call::set_tensor(int role, OperandRule const& rule, int element, PlacedOperand const& placed,
                      TorchKind const& kind, TensorView const& view, py::handle tensor) {
  pycutlass_operand& operand = record_->operands[role];
  operand.stride[0] = placed.ld;
  operand.stride[1] = placed.batch_stride;
  operand.element = static_cast<uint8_t>(element);
  operand.form = placed.ld ? PYCUTLASS_TENSOR : PYCUTLASS_VECTOR;
  OperandSlot& slot = slots_[static_cast<size_t>(role)];
  slot.set(placed.span.begin, {placed.ld, placed.batch_stride}, placed.span.bytes, rule.alignment_bytes());
  slot.remember(py::reinterpret_borrow<py::object>(tensor), kind.form_of(view), kind.guard(slot.written()));
}

/// The slot of operand `name`, made at first use.
OperandSlot& Call::slot(std::string const& name, void** address, bool written) {
  for (OperandSlot& each : slots_) {
    if (each.name() == name) return each;
  }
  return slots_.emplace_back(name, address, written);
}

void Call::set_epilogue(py::bytes const& arguments) {
  std::string_view const given(arguments);
  if (given.size() != epilogue_.size()) {
    raise_error("CacheError", "the epilogue takes " + std::to_string(epilogue_.size()) + " bytes of arguments, got " +
                                  std::to_string(given.size()));
  }
  std::memcpy(epilogue_.data(), given.data(), given.size());
}

void Call::set_epilogue_tensor(std::string const& name, size_t offset, std::vector<int64_t> const& strides,
                               uint64_t bytes, uint64_t alignment, bool written) {
  for (pycutlass_epilogue_field const& field : kernel_->host().epilogue()) {
    if (field.kind != PYCUTLASS_ADDRESS || field.offset != offset || field.name != name) continue;
    auto** address = reinterpret_cast<void**>(epilogue_.data() + offset);
    slot(name, address, written).set(reinterpret_cast<uintptr_t>(*address), all_strides(strides), bytes, alignment);
    return;
  }
  raise_error("CacheError", "the epilogue has no address of " + name);
}

void Call::remember(std::string const& name, py::object tensor, std::string shown_name) {
  for (OperandSlot& each : slots_) {
    if (each.name() == name) return each.remember(std::move(tensor), std::move(shown_name));
  }
  raise_error("CacheError", "the call has no operand " + name);
}

void Call::watch(py::object const& tensor, std::string name, bool written) {
  TensorGuard guard;
  guard.watch(tensor, written);
  watched_.push_back({std::move(name), tensor, std::move(guard)});
}

void Call::check_unmoved() const {
  for (OperandSlot const& slot : slots_) slot.check_unmoved();
  for (Watched const& each : watched_) {
    if (!each.guard.unmoved()) each.guard.raise_moved(each.name);
  }
}

void Call::count_writes() const {
  for (OperandSlot const& slot : slots_) {
    if (slot.written()) slot.guard().count_write();
  }
  for (Watched const& each : watched_) each.guard.count_write();
}

py::list Call::storages() const {
  py::list storages;
  for (OperandSlot const& slot : slots_) storages.append(slot.guard().storage());
  for (Watched const& each : watched_) storages.append(each.guard.storage());
  for (DeviceScalar const& each : scalars_) storages.append(each.storage());
  return storages;
}

void Call::set_sm_count(int most) {
  uint32_t const(&cluster)[3] = kernel_->host().info().cluster;
  int const together = static_cast<int>(cluster[0] * cluster[1]);
  record_->sm_count = std::min(most, kernel_->sm_count()) / together * together;
  record_->sm_occupancy = 1;
}

void Call::set_workspace(uintptr_t pointer) { record_->workspace = reinterpret_cast<void*>(pointer); }

void Call::follow_library(py::object const& tensor_type) {
  dlpack::ExchangeApi const* api = exchange_api(tensor_type);
  if (!api) raise_error("ArgumentTypeError", "the tensor type has no __dlpack_c_exchange_api__");
  stream_.follow_library(api);
}

void Call::adopt(Call& other) noexcept {
  std::memcpy(record_, other.record_, record_->struct_size);
  record_->epilogue = epilogue_.data();
  epilogue_.assign(other.epilogue_);
  slots_.swap(other.slots_);
  for (OperandSlot& slot : slots_) slot.attach(counterpart(slot.address(), other));
  for (OperandSlot& slot : other.slots_) slot.attach(other.counterpart(slot.address(), *this));
  scalars_.swap(other.scalars_);
  for (DeviceScalar& scalar : scalars_) scalar.attach(counterpart(scalar.address(), other));
  for (DeviceScalar& scalar : other.scalars_) scalar.attach(other.counterpart(scalar.address(), *this));
  std::swap(scalars_moved_, other.scalars_moved_);
  watched_ = std::move(other.watched_);
  stream_ = std::move(other.stream_);
  result_ = other.result_;
  config_.gridDimX = other.config_.gridDimX;
  config_.gridDimY = other.config_.gridDimY;
  config_.gridDimZ = other.config_.gridDimZ;
  pdl_allowed_ = other.pdl_allowed_;
  priority_ = other.priority_;
  in_place_allowed_ = other.in_place_allowed_;
  set_attributes();
  params_.assign(other.params_);
}

void Call::check_unused() const {
  if (!looking_) return;
  raise_error(
      "ArgumentError",
      "these arguments cannot be updated now: an update or a launch of them is under way, and this update comes "
      "from another thread or from the code of one of their tensors (such as __torch_function__). Nothing has "
      "changed: update them again when that has returned.");
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

int Call::status_of(int planned) {
  if (planned < 0) check(static_cast<CUresult>(-planned), "cuTensorMapEncode");
  return planned;
}

void Call::go_back_to(Planned const& planned) noexcept {
  result_ = planned.result;
  config_ = planned.config;
  std::copy(planned.params.begin(), planned.params.end(), params_.data());
  set_attributes();
}

/// The place in this call of what `address` is in `other`: both are of one class and kernel.
void** Call::counterpart(void** address, Call const& other) const noexcept {
  auto const at = reinterpret_cast<uintptr_t>(address);
  auto within = [at](void const* begin, size_t bytes) {
    auto const first = reinterpret_cast<uintptr_t>(begin);
    return at >= first && at < first + bytes ? static_cast<ptrdiff_t>(at - first) : -1;
  };
  ptrdiff_t const in_record = within(other.record_, record_->struct_size);
  if (in_record >= 0) return reinterpret_cast<void**>(reinterpret_cast<char*>(record_) + in_record);
  return reinterpret_cast<void**>(epilogue_.data() + within(other.epilogue_.data(), epilogue_.size()));
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
  if (priority_) {
    CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attribute.value.priority = *priority_;
  }
}

/// Points the slots that were given a tensor to it, unless the kernel cannot be launched so.
template <typename ForEach>
bool Call::try_exchange(ForEach for_each_given) {
  auto exchange = [](OperandSlot& slot, PyObject*) { slot.exchange(); };
  for_each_given(exchange);
  try {
    if (writes_apart() && plan() == 0) return true;
  } catch (...) {  // the driver has failed: nothing has changed
    for_each_given(exchange);
    throw;
  }
  for_each_given(exchange);
  plan();
  return false;
}

bool Call::update(PyObject* const* tensors, size_t count) {
  check_unused();
  if (explicit_end_) return false;  // what is given up may be in use on a stream of the caller's: the slow path waits
  if (count > slots_.size()) return false;
  auto for_each_given = [&](auto what) {
    for (size_t i = 0; i < count; ++i) {
      if (tensors[i] != Py_None) what(slots_[i], tensors[i]);
    }
  };
  bool fits = true;
  try {
    Looking const looking = look();
    for_each_given([&](OperandSlot& slot, PyObject* tensor) { fits = fits && slot.read(tensor); });
  } catch (py::error_already_set const&) {  // what a tensor raises when it is asked: the slow path explains
    fits = false;
  }
  bool const launching = looking_ != 0;  // since then, in another thread
  if (fits && !launching && try_exchange(for_each_given)) {
    for_each_given([](OperandSlot& slot, PyObject* tensor) { slot.keep(tensor); });
    return true;
  }
  for_each_given([](OperandSlot& slot, PyObject*) { slot.forget(); });
  if (launching) check_unused();
  return false;
}

/// Whether nothing that is written lies over anything else. C may be D itself.
bool Call::writes_apart() const {
  OperandSlot const &source = slots_[PYCUTLASS_C], &target = slots_[PYCUTLASS_D];
  for (OperandSlot const& written : slots_) {
    if (!written.written()) continue;
    for (OperandSlot const& other : slots_) {
      if (&other == &written || !written.overlaps(other)) continue;
      bool const in_place = in_place_allowed_ && &written == &target && &other == &source;
      if (!in_place || !target.same_place(source)) return false;
    }
  }
  return true;
}

void Call::run(py::handle given) {
  bool const named = !given.is_none();
  Stream const stream = named ? named_stream(given, kernel_->context(), kernel_->ordinal()) : stream_.current();
  ContextScope scope(stream.context());
  bool const capturing = is_capturing(stream.handle());
  if (capturing) DeviceKernel::pin(kernel_);
  launch(stream, named, capturing);
}

bool Call::can_wait(PyObject* const* tensors, size_t count, uint32_t taken) const {
  if (looking_ || explicit_end_) return false;
  for (size_t i = 0; i < std::max(count, slots_.size()); ++i) {
    if (!is_taken(taken, i)) continue;
    bool const given = i < count && tensors[i] != Py_None;
    if (i >= slots_.size() ? given : given != slots_[i].has_tensor()) return false;
    if (given && !slots_[i].direct()) return false;
  }
  return std::all_of(scalars_.begin(), scalars_.end(), [](DeviceScalar const& each) { return each.direct(); });
}

void Call::forget_tensors(uint32_t taken) noexcept {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (is_taken(taken, i)) slots_[i].forget_tensor();
  }
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
  Turn const turn(launching_thread_);
  Looking const looking = look();  // also without the interpreter's lock: an update would change what the driver reads
  follow_scalars();
  check_unmoved();
  prepare(stream, capturing);
  if (result_.clear_bytes) {
    launch_stream_ = stream;  // where memory is used last, whatever comes of the launch
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
  Recording::count_launch();
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

pycutlass_operand const& Call::operand(int role) const {
  role_name(role);  // throws where there is none
  return record_->operands[role];
}

std::string Call::record_bytes() const {
  std::string bytes(reinterpret_cast<char const*>(record_), record_->struct_size);
  void const* const nowhere = nullptr;
  std::memcpy(bytes.data() + offsetof(pycutlass_call, epilogue), &nowhere, sizeof nowhere);
  return bytes.append(reinterpret_cast<char const*>(epilogue_.data()), epilogue_.size());
}

uint32_t Call::written_operands() const {
  uint32_t written = 0;
  for (size_t i = 0; i < slots_.size() && i < 32; ++i) written |= uint32_t{slots_[i].written()} << i;
  return written;
}

std::vector<std::string> Call::operands() const {
  std::vector<std::string> names;
  for (OperandSlot const& slot : slots_) names.push_back(slot.name());
  return names;
}

}  // namespace pycutlass
