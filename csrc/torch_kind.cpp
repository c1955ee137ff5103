#include "torch_kind.h"

#include <deque>

namespace py = pybind11;

namespace pycutlass {
namespace {

constexpr size_t kMost = 64;  // data types times devices times a few; whoever has more is asked through Python

/// Of the process, since what tensors are like is. It is never freed: it holds types, which the interpreter does not
/// outlive. The interpreter's lock guards it.
std::deque<TorchKind>& kinds() {
  static auto& kinds = *new std::deque<TorchKind>;
  return kinds;
}

/// Whether a type is one of torch's own, whose tensors are what they say in their objects. A class of the user's may
/// answer otherwise through Python.
bool is_of_torch(py::handle type) {
  static py::handle const tensor = py::object(py::module_::import("torch").attr("Tensor")).release();
  static py::handle const parameter = py::object(py::module_::import("torch.nn").attr("Parameter")).release();
  return type.is(tensor) || type.is(parameter);
}

}  // namespace

void TorchKind::learn(py::handle tensor, int element, int ordinal) {
  py::handle const type = py::type::handle_of(tensor);
  TensorView view;
  if (!is_of_torch(type) || kinds().size() >= kMost || find(tensor, element, ordinal, view)) return;
  TorchKind kind;
  kind.form_.remember(tensor);
  kind.read_.watch(tensor, /*written=*/false);
  kind.written_.watch(tensor, /*written=*/true);
  kind.api_ = exchange_api(type);
  kind.element_ = element;
  kind.ordinal_ = ordinal;
  if (!kind.form_.view_plainly(tensor, view) || !kind.read_.direct() || !kind.api_) return;
  kind.read_.forget_tensor();
  kind.written_.forget_tensor();
  kinds().push_back(std::move(kind));
}

TorchKind const* TorchKind::find(py::handle tensor, int element, int ordinal, TensorView& view) {
  for (TorchKind const& kind : kinds()) {
    if (kind.element_ == element && kind.ordinal_ == ordinal && kind.form_.view_plainly(tensor, view)) return &kind;
  }
  return nullptr;
}

void bind_torch_kind(py::module_& m) {
  m.def("learn_tensor", &TorchKind::learn, py::arg("tensor"), py::arg("element"), py::arg("ordinal"),
        "Know tensors of torch that are like this one, which has elements of that type on that GPU.");
}

}  // namespace pycutlass
