#include "given_tensor.h"

#include <pybind11/stl.h>

#include "bindings.h"
#include "integers.h"

namespace py = pybind11;

namespace pycutlass {
namespace {

/// Whether `tensor` is an array of cupy, and of no class that a user has derived from that.
bool is_cupy(py::handle tensor) { return py::type::handle_of(tensor).is(imported("cupy", "ndarray")); }

/// The extents of an array, in units of `step`; false where there are too many, or something else than whole ones.
template <size_t kMost>
bool read_extents(py::handle given, int64_t step, std::array<int64_t, kMost>& extents) {
  if (!PyTuple_CheckExact(given.ptr()) || PyTuple_GET_SIZE(given.ptr()) > static_cast<Py_ssize_t>(kMost)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.ptr()); ++i) {
    int64_t number = 0;
    if (!read_plain_integer(PyTuple_GET_ITEM(given.ptr(), i), number) || number % step) return false;
    extents[static_cast<size_t>(i)] = number / step;
  }
  return true;
}

/// The GPU of a tensor of torch or cupy, for which an operation may prepare its kernel.
std::optional<int> gpu_of(py::handle tensor, py::handle wrap) {
  try {
    if (is_cupy(tensor)) return tensor.attr("data").attr("device_id").cast<int>();
    if (std::optional<int> const known = TorchKind::gpu_of(tensor)) return known;
    if (!TorchKind::is_of_torch(tensor)) return std::nullopt;
    py::object const device = wrap("D", tensor).attr("device");
    return device.is_none() ? std::nullopt : std::optional(device.cast<int>());
  } catch (py::error_already_set const& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return std::nullopt;  // what a tensor raises when it is asked: the checks in Python explain
  } catch (py::cast_error const&) {
    return std::nullopt;  // it says something else than a number
  }
}

}  // namespace

bool GivenTensor::read(py::handle tensor, ElementType const& type, int ordinal, py::handle wrap) {
  tensor_ = tensor;
  if (find_kind(type, ordinal)) return true;
  if (!TorchKind::is_of_torch(tensor)) return read_cupy(type, ordinal);
  py::object const seen = wrap("", tensor), device = seen.attr("device");
  // One without elements shows too little of its kind.
  if (device.is_none() || !seen.attr("pointer").cast<uint64_t>()) return false;
  if (seen.attr("dtype_name").cast<std::string>() != type.dtype_name) return false;
  TorchKind::learn(tensor, type.code, device.cast<int>());
  return find_kind(type, ordinal);
}

bool GivenTensor::find_kind(ElementType const& type, int ordinal) {
  kind_ = TorchKind::find(tensor_, type.code, ordinal, view_);
  if (!kind_) return false;
  form_.set_extents(view_.rank, view_.sizes, view_.strides);
  view_.sizes = form_.extents.data();
  view_.strides = view_.sizes + view_.rank;
  return true;
}

bool GivenTensor::read_cupy(ElementType const& type, int ordinal) {
  if (type.dtype.is_none() || !is_cupy(tensor_) || !py::object(tensor_.attr("dtype")).is(type.dtype)) return false;
  py::object const memory = tensor_.attr("data"), sizes = tensor_.attr("shape"), strides = tensor_.attr("strides");
  auto const element_bytes = type.dtype.attr("itemsize").cast<int64_t>();
  if (memory.attr("device_id").cast<int>() != ordinal || !read_extents(sizes, 1, sizes_)) return false;
  if (!read_extents(strides, element_bytes, strides_) || py::len(strides) != py::len(sizes)) return false;
  view_ = {memory.attr("ptr").cast<uintptr_t>(), static_cast<int64_t>(py::len(sizes)), sizes_.data(), strides_.data()};
  return true;
}

void GivenTensor::enter(Call& call, int role, OperandRule const& rule, int element, PlacedOperand const& placed) const {
  if (kind_) return call.set_tensor(role, rule, element, placed, *kind_, view_, tensor_);
  int const form = placed.ld ? PYCUTLASS_TENSOR : PYCUTLASS_VECTOR;
  call.set_operand(role, placed.span.begin, {placed.ld, placed.batch_stride}, placed.span.bytes, rule.alignment_bytes(),
                   element, form);
  call.remember(role_name(role), py::reinterpret_borrow<py::object>(tensor_), role_name(role));
}

void GivenTensor::watch(TensorSignature& form, TensorGuard& guard, bool written) const {
  if (kind_) {
    form = kind_->form_of(view_);
    guard.watch_like(kind_->guard(written), tensor_);
  } else {
    form.remember(tensor_);
    guard.watch(tensor_, written);
  }
}

void GivenTensor::lead(Call& call, int ordinal, py::handle stream_source) const {
  if (kind_) return call.follow_library(kind_->api());
  py::object const type = py::type::of(tensor_);
  if (py::hasattr(type, "__dlpack_c_exchange_api__")) return call.follow_library(type);
  call.follow_callable(stream_source(library(), ordinal));
}

void bind_given_tensor(py::module_& m) {
  m.def("gpu_of", &gpu_of, py::arg("tensor"), py::arg("wrap"),
        "The GPU that a tensor of torch or cupy is on; None of anything else, and where it has to be explained. "
        "`wrap` is that of pycutlass.tensor.");
}

}  // namespace pycutlass
