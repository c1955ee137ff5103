#include "tensor_guard.h"

#include <cstdio>

#include "bindings.h"
#include "driver.h"

namespace pycutlass {
namespace {

bool same(TorchPlace const& left, TorchPlace const& right) {
  return left.impl == right.impl && left.storage == right.storage && left.memory == right.memory &&
         left.bytes == right.bytes && left.offset == right.offset;
}

std::string in_words(TorchPlace const& place) {
  char text[128];
  std::snprintf(text, sizeof text, "%lld bytes at 0x%llx, of which the tensor began at element %lld",
                static_cast<long long>(place.bytes), static_cast<unsigned long long>(place.memory),
                static_cast<long long>(place.offset));
  return text;
}

/// Shape, strides, data type and whether the values are those in memory negated, asked through Python.
py::object ask_form(py::handle tensor) {
  return py::make_tuple(py::tuple(tensor.attr("shape")), tensor.attr("stride")(), tensor.attr("dtype"),
                        tensor.attr("is_neg")());
}

std::string in_words(py::object const& form) {
  py::tuple const parts = form;
  std::string words =
      "shape " + py::str(parts[0]).cast<std::string>() + " and strides " + py::str(parts[1]).cast<std::string>();
  if (parts.size() > 2) words += " of " + py::str(parts[2]).cast<std::string>();
  if (parts.size() > 3 && parts[3].cast<bool>()) words += " (a lazily negated view)";
  return words;
}

/// The same without the data type, which is kept as a number of PyTorch's own.
py::object form_in_python(TorchForm const& form) {
  py::tuple shape(form.rank), strides(form.rank);
  for (size_t i = 0; i < static_cast<size_t>(form.rank); ++i) {
    shape[i] = form.extents[i];
    strides[i] = form.extents[static_cast<size_t>(form.rank) + i];
  }
  return py::make_tuple(shape, strides);
}

/// The data type that a number of PyTorch's own, kept in a form, stands for on the device of `tensor`; None where that
/// is not known.
py::object type_of(TorchForm const& form, py::handle tensor) {
  py::module_ const torch = py::module_::import("torch");
  for (char const* name :
       {"float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2"}) {
    py::object const type = torch.attr(name);
    py::object const probe = torch.attr("empty")(0, py::arg("dtype") = type, py::arg("device") = tensor.attr("device"));
    if (TorchImpl(probe).type_and_device() == form.type_and_device) return type;
  }
  return py::none();
}

bool is_torch(py::handle tensor) { return py::hasattr(tensor, "_cdata") && py::hasattr(tensor, "untyped_storage"); }

}  // namespace

void TensorGuard::watch(py::handle tensor, bool written) {
  clear();
  if (!is_torch(tensor)) return;
  tensor_ = tensor;
  readable_ = TorchReader::for_type_of(tensor) != nullptr;
  written_ = written;
  counts_writes_ = written && !is_inference(tensor);
  place_ = TorchReader::ask_place(tensor);
  direct_ = readable_ && TorchImpl::found() && place_.is_of(TorchImpl(tensor));
  if (direct_) form_ = TorchForm::of(TorchImpl(tensor));
  direct_ = direct_ && form_.rank <= TorchImpl::kMaxRank;
  if (!direct_) {
    asked_form_ = ask_form(tensor);
    return;
  }
  watch_base(tensor);
}

void TensorGuard::watch_base(py::handle tensor) {
  base_ = 0;
  autograd_ = TorchImpl(tensor).autograd();
  if (!autograd_) return;  // it is no view
  try {
    uintptr_t const base = TorchReader::known().base_of(tensor);
    if (base && TorchImpl::at(base).storage() == place_.storage) base_ = base;
  } catch (py::error_already_set& error) {  // of a class of the user's
    if (!error.matches(PyExc_Exception)) throw;
  }
}

void TensorGuard::exchange(py::handle tensor) {
  if (!tensor_ && !direct_) return;  // one that is direct may have forgotten its tensor
  if (!direct_ || !form_.is_like(TorchImpl(tensor))) return watch(tensor, written_);
  exchange_plain(tensor);
  watch_base(tensor);
  if (!form_.has_extents_of(TorchImpl(tensor))) form_ = TorchForm::of(TorchImpl(tensor));
}

void TensorGuard::watch_like(TensorGuard const& like, py::handle tensor) {
  *this = like;
  exchange_plain(tensor);
  watch_base(tensor);
  form_ = TorchForm::of(TorchImpl(tensor));
}

bool TensorGuard::unmoved_by_python() const {
  try {
    return same(TorchReader::ask_place(tensor_), place_) && ask_form(tensor_).equal(asked_form_);
  } catch (py::error_already_set& error) {  // it has become a tensor without memory of its own
    if (!error.matches(PyExc_Exception)) throw;
    return false;
  }
}

std::string TensorGuard::type_remedy(std::string const& name, py::handle now) const {
  py::object before, type = now.attr("dtype");
  if (!now.is(tensor_)) {
    before = tensor_.attr("dtype");  // a view keeps what its base had
  } else {
    before = direct_ ? type_of(form_, now) : asked_form_[py::int_(2)];
  }
  if (before.is_none() || before.equal(type)) return "";
  std::string const is = py::str(type), was = py::str(before);
  return " It is of " + is + " now, and the operation takes " + was +
         (written_ ? ": pass torch.empty_like(" + name + ", dtype=" + was + ") to update and read the result from there"
                   : ": pass " + name + ".to(" + was + ") to update, again whenever its module has changed") +
         ", or describe an operation of the other type.";
}

void TensorGuard::raise_moved(std::string const& name) const {
  std::string remedy = " Pass the tensor to update, or make new arguments.";
  TorchPlace now{};
  py::object form;
  try {
    if (written_) tensor_.attr("data_ptr")();  // memory that a lazy copy shares is copied now
    now = TorchReader::ask_place(tensor_);
    form = ask_form(tensor_);
    std::string const converted = type_remedy(name, tensor_);
    if (!converted.empty()) remedy = converted;
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    raise_error("ArgumentError", "operand " + name +
                                     " has no memory of its own any more: something like .data = ... "
                                     "or swap_tensors has made another tensor of it." +
                                     remedy);
  }
  if (!same(now, place_)) {
    raise_error("ArgumentError", "the memory of operand " + name +
                                     " is not what these arguments were made with: its "
                                     "storage had " +
                                     in_words(place_) + ", and has " + in_words(now) +
                                     ". Something like .data = ..., set_, resize_ or a conversion of its module has "
                                     "moved it." +
                                     remedy);
  }
  if (direct_ && is_left_by_base(TorchImpl(tensor_))) {
    std::string const converted = type_remedy(name, tensor_.attr("_base"));
    raise_error("ArgumentError", "the memory of operand " + name +
                                     " is not what these arguments were made with: it is "
                                     "a view of a tensor that has gone over to other memory since, by something like "
                                     ".data = ... or a conversion of its module. " +
                                     (converted.empty() ? "Pass a new view to update, or make new arguments."
                                                        : "Take a new view of it." + converted));
  }
  raise_error("ArgumentError", "operand " + name + " is not the tensor that these arguments were made with: it had " +
                                   in_words(direct_ ? form_in_python(form_) : asked_form_) + ", and has " +
                                   in_words(form) +
                                   ". Something like t_, resize_ or .data = ... has changed it in place." + remedy);
}

void TensorGuard::increment_version_by_python() const {
  py::module_::import("torch.autograd.graph").attr("increment_version")(tensor_);
}

bool TensorGuard::is_differentiated(py::handle tensor) const {
  if (!readable_) return tensor.attr("requires_grad").cast<bool>() || has_tangent_by_python(tensor);
  return TorchReader::known().requires_grad(tensor) || TorchReader::known().has_tangent(tensor);
}

bool TensorGuard::is_inference(py::handle tensor) const {
  return readable_ ? TorchReader::known().is_inference(tensor) : tensor.attr("is_inference")().cast<bool>();
}

py::object TensorGuard::storage() const { return tensor_ ? tensor_.attr("untyped_storage")() : py::none(); }

void bind_tensor_guard(py::module_& m) {
  py::class_<TensorGuard>(m, "TensorGuard", "Where the memory of a tensor of torch was when a launch was prepared.")
      .def(py::init([](py::handle tensor, bool written) {
             TensorGuard guard;
             guard.watch(tensor, written);
             return guard;
           }),
           py::arg("tensor"), py::arg("written"), py::keep_alive<1, 2>())
      .def("allows", &TensorGuard::allows, py::arg("tensor"))
      .def("exchange", &TensorGuard::exchange, py::arg("tensor"), py::keep_alive<1, 2>())
      .def(
          "check",
          [](TensorGuard const& self, std::string const& name) {
            if (!self.unmoved()) self.raise_moved(name);
          },
          py::arg("name"), "Raise ArgumentError where the tensor, which messages call `name`, was moved.")
      .def_property_readonly("direct", &TensorGuard::direct)
      .def("count_write", &TensorGuard::count_write);
}

}  // namespace pycutlass
