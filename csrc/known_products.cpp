#include "known_products.h"

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "served_call.h"

namespace py = pybind11;

namespace pycutlass {

bool KnownProducts::matches(Known const& known, Options const& options, bool as_bias) {
  return known.as_bias == as_bias && std::equal(options.begin(), options.end(), known.options.begin(),
                                                [](PyObject* x, py::object const& y) { return is_same(x, y); });
}

bool KnownProducts::keep(py::tuple const& launch, py::tuple const& tensors, py::tuple const& given, bool as_bias,
                         py::object precision, py::object make_result, unsigned long chosen_in) {
  if (tensors.size() != 4 || given.size() != kOptions) throw py::value_error("a product has 4 tensors and 6 options");
  Options options{};
  std::copy_n(PySequence_Fast_ITEMS(given.ptr()), kOptions, options.begin());
  auto found = std::find_if(known_.begin(), known_.end(), [&](auto const& each) {
    return matches(*each, options, as_bias) && is_same(each->precision, precision);
  });
  bool const is_new = found == known_.end();
  std::shared_ptr<Known> known = is_new ? std::make_shared<Known>() : *found;
  if (is_new) {
    for (size_t i = 0; i < kOptions; ++i) known->options[i] = py::reinterpret_borrow<py::object>(options[i]);
    known->as_bias = as_bias;
    known->precision = std::move(precision);
  }
  PyObject* const* const items = PySequence_Fast_ITEMS(tensors.ptr());
  if (!known->pool->keep(launch, {items, 4}, chosen_in, std::move(make_result))) return false;
  if (!is_new) return true;
  std::shared_ptr<Known> gone;  // goes last: its end may call anything
  if (known_.size() >= kMost) {
    gone = known_.front();
    known_.erase(known_.begin());
  }
  known_.push_back(std::move(known));
  return true;
}

/// Launches a product whose options are those of `known`.
bool KnownProducts::run(Known& known, LaunchTensors const& tensors) {
  auto const key = known.pool->key_of(tensors);
  if (!key || !known.pool->has(*key)) return false;
  if (known.options.back().is_none()) {
    py::object const precision = precision_of_(py::handle(tensors.items[0]));
    if (!is_same(precision, known.precision)) return false;
  }
  return known.pool->run(*key, tensors);
}

PyObject* KnownProducts::serve(PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
  static auto const names =
      interned("a", "b", "c", "alpha", "beta", "epilogue", "out_dtype", "accumulator_dtype", "precision", "bias", "out",
               "epilogue_inputs", "scales", "plan", "allow_copy", "stream");
  std::array<PyObject*, 16> values;
  values.fill(Py_None);
  values[14] = Py_False;  // without effect on tensors that need no copy, as all do that are known
  if (!arrange(names, given, count, 3, keywords, values)) return nullptr;
  for (size_t i : {11, 12, 13, 15}) {
    if (values[i] != Py_None) return nullptr;
  }
  auto const [a, b, c, bias, out] = std::array{values[0], values[1], values[2], values[9], values[10]};
  bool const as_bias = bias != Py_None;
  if (a == Py_None || b == Py_None || (as_bias && c != Py_None)) return nullptr;
  Options options{};
  std::copy_n(values.begin() + 3, kOptions, options.begin());

  std::array<PyObject*, 4> tensors = {a, b, as_bias ? bias : c, Py_None};
  for (size_t i = 0; i < known_.size(); ++i) {
    std::shared_ptr<Known> const known = known_[i];  // it may go while the launch lets other threads go on
    if (!matches(*known, options, as_bias)) continue;
    py::object result = py::reinterpret_borrow<py::object>(out);
    tensors[PYCUTLASS_D] = Py_None;
    if (out == Py_None && !(result = known->pool->new_result({tensors.data(), 4}))) continue;
    tensors[PYCUTLASS_D] = result.ptr();
    if (run(*known, {tensors.data(), 4})) return result.release().ptr();
  }
  return nullptr;
}

void KnownProducts::clear() { auto const gone = std::exchange(known_, {}); }

size_t KnownProducts::size() const {
  size_t all = 0;
  for (auto const& each : known_) all += each->pool->size();
  return all;
}

void bind_known_products(py::module_& m) {
  py::class_<KnownProducts>(m, "KnownProducts", "Products whose options and tensors are like those of earlier ones.")
      .def(py::init<py::object>(), py::arg("precision_of"))
      .def("keep", &KnownProducts::keep, py::arg("launch"), py::arg("tensors"), py::arg("options"), py::arg("as_bias"),
           py::arg("precision"), py::arg("make_result"), py::arg("chosen_in"),
           "Have the launch of a product wait for others like it; False where it cannot wait.")
      .def("clear", &KnownProducts::clear)
      .def("__len__", &KnownProducts::size);
}

}  // namespace pycutlass
