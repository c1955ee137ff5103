// The launch fast path: a call record, the kernel parameters made from it, and one cuLaunchKernelEx.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aligned_bytes.h"
#include "device_scalar.h"
#include "kernel.h"
#include "operand_rule.h"
#include "operand_slot.h"
#include "stream.h"
#include "torch_kind.h"

namespace pycutlass {

/// The stream to launch on when the caller names none: what the tensors' library calls current, else the legacy
/// default stream.
class StreamSource {
 public:
  StreamSource(CUcontext context, int ordinal) : context_(context), ordinal_(ordinal) {}
  void follow_library(dlpack::ExchangeApi const* api);
  void follow_callable(pybind11::object callable);
  Stream current() const { return {context_, current_handle()}; }

 private:
  CUstream current_handle() const;

  CUcontext context_;
  int ordinal_;
  dlpack::ExchangeApi const* api_ = nullptr;
  pybind11::object callable_;
};

/// Counts those that look at the tensors of a call, which may call anything: tensors can be of classes of the user's.
/// And its launches, which let other threads go on.
class Looking {
 public:
  explicit Looking(int& count) : count_(count) { ++count_; }
  ~Looking() { --count_; }
  Looking(Looking const&) = delete;
  Looking& operator=(Looking const&) = delete;

 private:
  int& count_;
};

/// The turn of one launch of a call. Without the interpreter's lock the driver reads parameters and records events: a
/// launch by another thread waits until that is done, or two launches would not be ordered on the GPU.
class Turn {
 public:
  explicit Turn(unsigned long& thread);
  ~Turn() {
    if (taken_) thread_ = 0;
  }
  Turn(Turn const&) = delete;
  Turn& operator=(Turn const&) = delete;

 private:
  unsigned long& thread_;  // that launches, 0 for none; the interpreter's lock guards it
  bool const taken_;       // false where the same thread launches already, from the code of a tensor
};

/// A kernel ready to be launched any number of times. Each family of kernels derives a class that owns the record.
class Call {
 public:
  Call(std::shared_ptr<DeviceKernel> kernel, pycutlass_call* record, uint32_t record_bytes);
  virtual ~Call() = default;
  Call(Call const&) = delete;
  Call& operator=(Call const&) = delete;

  /// Points operand `role` of the record at memory. Strides count elements.
  void set_operand(int role, uintptr_t pointer, std::vector<int64_t> const& strides, uint64_t bytes, uint64_t alignment,
                   int element, int form);
  /// Points operand `role`, one of A, B, C and D, at a tensor of a known kind that was found to fit its rule.
  void set_tensor(int role, OperandRule const& rule, int element, PlacedOperand const& placed, TorchKind const& kind,
                  TensorView const& view, pybind11::handle tensor);
  /// Takes the arguments of the epilogue, as its functor has packed them.
  void set_epilogue(pybind11::bytes const& arguments);
  /// Knows of a tensor that the arguments of the epilogue point to, by the address that they have `offset` bytes behind
  /// their beginning.
  void set_epilogue_tensor(std::string const& name, size_t offset, std::vector<int64_t> const& strides, uint64_t bytes,
                           uint64_t alignment, bool written);
  /// Has `tensor` be what operand `name` points into.
  void remember(std::string const& name, pybind11::object tensor, std::string shown_name);
  /// Watches a tensor that the record points to in another way, by a table of addresses.
  void watch(pybind11::object const& tensor, std::string name, bool written);
  /// Has launches read scalar `name` of the epilogue where `tensor` is then, as `find` says: it may move between them.
  /// What the arguments of the epilogue had there is overwritten.
  void follow_scalar(std::string const& name, pybind11::object tensor, pybind11::object find);
  void set_workspace(uintptr_t pointer);
  /// Lets the kernel start while the one ahead of it on the stream ends, where it can (programmatic dependent launch).
  void set_launch_with_pdl(bool allowed) { pdl_allowed_ = allowed; }
  /// Keeps a persistent kernel to so many multiprocessors, each with one threadblock; a cluster needs as many as it has
  /// threadblocks.
  void set_sm_count(int most);
  /// The priority of launches among those that wait for multiprocessors: a lower number goes first.
  void set_launch_priority(int priority) { priority_ = priority; }
  /// Whether C may be D itself: not where their elements lie differently.
  void set_in_place(bool allowed) { in_place_allowed_ = allowed; }
  void follow_library(pybind11::object const& tensor_type);
  void follow_library(dlpack::ExchangeApi const* api) { stream_.follow_library(api); }
  void follow_callable(pybind11::object callable) { stream_.follow_callable(std::move(callable)); }

  /// Takes over what was prepared in `other`, a call of the same class and kernel. What was launched, and where, stays.
  virtual void adopt(Call& other) noexcept;
  /// Throws ArgumentError while anybody looks at the tensors of this call, or launches it: they must stay what they
  /// are until then.
  void check_unused() const;
  /// Throws ArgumentError where a tensor's memory was moved since it was given.
  virtual void check_unmoved() const;
  /// Makes grid and kernel parameters from the record; returns what `HostLibrary::plan` does.
  virtual int plan();
  /// The cutlass::Status that is `planned`; throws DriverError where the driver has refused a tensor map.
  static int status_of(int planned);
  /// Takes tensors of the remembered forms, in the order of `operands`: A, B, C, D, then further ones as they were set.
  /// None, or what is left out, stays. False leaves everything as it was.
  virtual bool update(PyObject* const* tensors, size_t count);
  virtual void run(pybind11::handle stream);
  /// Whether it can wait without its tensors for others: those of the operands `taken`, as bits, are all that it has of
  /// them, each is read from its objects, and no launch went to a stream that was named.
  bool can_wait(PyObject* const* tensors, size_t count, uint32_t taken) const;
  /// Whether autograd follows a scalar of a call that can wait.
  bool has_followed_scalar() const;
  /// Lets go of the tensors of operands `taken`, as bits. It must not be launched before `update` has given it others
  /// in the place of all.
  void forget_tensors(uint32_t taken) noexcept;

  uint64_t workspace_bytes() const { return result_.workspace_bytes; }
  uint64_t scratch_bytes() const { return result_.scratch_bytes; }
  bool launches_with_pdl() const { return pdl_allowed_ && result_.supports_pdl; }
  std::optional<int> launch_priority() const { return priority_; }
  CUlaunchConfig const& config() const { return config_; }
  uintptr_t params_address() const { return reinterpret_cast<uintptr_t>(params_.data()); }
  uintptr_t function() const { return reinterpret_cast<uintptr_t>(kernel_->function()); }
  Stream last_stream() const { return launch_stream_; }
  Stream current_stream() const { return stream_.current(); }
  bool launched() const { return launched_; }
  /// Whether the last launch went to a stream that the caller named; one that was captured is none.
  virtual bool was_named() const { return last_was_named_; }
  pycutlass_operand const& operand(int role) const;
  /// The record, but for where the arguments of its epilogue are, and these behind it. For tests.
  std::string record_bytes() const;
  /// Names of what launches read and write.
  std::vector<std::string> operands() const;
  /// Which of them launches write, as bits.
  uint32_t written_operands() const;
  /// Marks the end of the last launch on a stream that the caller named; null where there was none.
  std::shared_ptr<Event> explicit_end() const { return explicit_end_; }
  /// What keeps the memory alive that launches on such streams use, whatever becomes of the tensors. It is the caller's
  /// then.
  pybind11::object take_storages() { return std::exchange(storages_, pybind11::none()); }

 protected:
  DeviceKernel const& kernel() const { return *kernel_; }
  /// What is done on the stream of the coming launch, before it: that one waits for earlier launches elsewhere.
  virtual void prepare(Stream const& stream, bool capturing);
  /// Tells autograd what the launch writes to.
  virtual void count_writes() const;
  /// What keeps the memory of the tensors alive.
  virtual pybind11::list storages() const;
  /// What `plan` has made of the record. One that fails may leave half of another.
  struct Planned {
    pycutlass_plan_result result;
    CUlaunchConfig config;
    std::vector<unsigned char> params;
  };
  Planned planned() const { return {result_, config_, {params_.data(), params_.data() + params_.size()}}; }
  void go_back_to(Planned const& planned) noexcept;
  /// Held while tensors are looked at, and during a launch.
  Looking look() const { return Looking(looking_); }

 private:
  OperandSlot& slot(std::string const& name, void** address, bool written);
  template <typename ForEach>
  bool try_exchange(ForEach for_each_given);
  bool writes_apart() const;
  void** counterpart(void** address, Call const& other) const noexcept;
  void set_attributes();
  void follow_scalars();
  void launch(Stream const& stream, bool named, bool capturing);
  std::shared_ptr<Event> next_explicit_end(Stream const& stream) const;

  std::shared_ptr<DeviceKernel> kernel_;
  pycutlass_call* record_;
  AlignedBytes epilogue_;           // what the record points to
  std::vector<OperandSlot> slots_;  // A, B, C and D first
  struct Watched {
    std::string name;
    pybind11::object tensor;
    TensorGuard guard;
  };
  std::vector<Watched> watched_;
  std::vector<DeviceScalar> scalars_;
  bool scalars_moved_ = false;  // since parameters were made
  StreamSource stream_;
  pycutlass_plan_result result_{};
  CUlaunchConfig config_{};
  CUlaunchAttribute attributes_[3];  // cluster shape, programmatic dependent launch, priority: each may be absent
  bool pdl_allowed_ = false;
  std::optional<int> priority_;
  bool in_place_allowed_ = true;
  void* arguments_[1];
  bool launched_ = false;
  mutable int looking_ = 0;             // the interpreter's lock guards it
  unsigned long launching_thread_ = 0;  // as above
  Stream launch_stream_;                // of the last launch
  // Where the last launch that was no capture went, as far as somebody may have to wait for it.
  Stream last_;
  bool has_last_ = false, last_was_named_ = false;
  // Marks its end where it has a workspace: the stream may be gone when the next launch has to wait.
  std::shared_ptr<Event> end_;
  bool marks_end_ = false;  // whether the coming launch is to be marked
  Stream explicit_stream_;
  std::shared_ptr<Event> explicit_end_;
  pybind11::object storages_ = pybind11::none();
  AlignedBytes params_;
};

/// Record and call in one object: the record comes first, since the call's constructor fills it.
template <typename Record>
struct Recorded {
  Record record{};
};

}  // namespace pycutlass

// Families with a file of their own.
void bind_conv2d_call(pybind11::module_& m);
void bind_gemm_call(pybind11::module_& m);
void bind_grouped_call(pybind11::module_& m);
void bind_prepared_conv2d(pybind11::module_& m);
void bind_prepared_gemm(pybind11::module_& m);
void bind_prepared_grouped(pybind11::module_& m);
void bind_prepared_reduction(pybind11::module_& m);
