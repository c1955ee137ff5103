#include "torch_kind.h"

#include <deque>

#include "bindings.h"

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

}  // namespace

bool TorchKind::is_of_torch(py::handle tensor) {
  py::handle const type = py::type::handle_of(tensor);
  return type.is(imported("torch", "Tensor")) || type.is(imported("torch.nn", "Parameter"));
}

void TorchKind::learn(py::handle tensor, int element, int ordinal) {
  TensorView view;
  if (!is_of_torch(tensor) || kinds().size() >= kMost || find(tensor, element, ordinal, view)) return;
  TorchKind kind;
  kind.form_.remember(tensor);
  kind.read_.watch(tensor, /*written=*/false);
  kind.written_.watch(tensor, /*written=*/true);
  kind.api_ = exchange_api(py::type::handle_of(tensor));
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

std::optional<int> TorchKind::gpu_of(py::handle tensor) {
  TensorView view;
  for (TorchKind const& kind : kinds()) {
    if (kind.form_.view_plainly(tensor, view)) return kind.ordinal_;
  }
  return std::nullopt;
}

void TorchKind::forget() { kinds().clear(); }

void bind_torch_kind(py::module_& m) {
  m.def("forget_tensors", &TorchKind::forget, "Forget what tensors of torch are like. For tests.");
}

}  // namespace pycutlass
