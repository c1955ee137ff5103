#include "known_calls.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "served_call.h"
#include "torch_tensor.h"

namespace py = pybind11;

namespace pycutlass {
namespace {

uint64_t hash_of(PyObject* value) {
  if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value)) return static_cast<uint64_t>(PyObject_Hash(value));
  if (PyFloat_CheckExact(value)) {
    double const number = PyFloat_AS_DOUBLE(value);
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits + 1;  // a number is no integer of the same bits
  }
  return reinterpret_cast<uintptr_t>(value);
}

/// Views are made below autograd, as kernels of operators make them: of one that torch knows as a view, launches would
/// have to watch what it belongs to.
class BelowAutograd {
 public:
  explicit BelowAutograd(py::object const& make) : make_(make) {}
  void enter() {
    if (context_) return;
    context_ = make_();
    context_.attr("__enter__")();
  }
  ~BelowAutograd() {
    if (!context_) return;
    py::error_scope const kept;
    try {
      context_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& failed) {
      failed.discard_as_unraisable("what torch dispatches to");
    }
  }
  BelowAutograd(BelowAutograd const&) = delete;
  BelowAutograd& operator=(BelowAutograd const&) = delete;

 private:
  py::object const& make_;
  py::object context_;
};

}  // namespace

/// The tensors of a call that is made again: those that it is given, and behind them those that it makes.
class KnownCalls::Remade {
 public:
  Remade(KnownCalls const& calls, Known const& known, Given const& given)
      : given_(given), written_(known.written), plain_type_(calls.tensor_type_), below_(calls.below_autograd_) {
    for (py::object const& make : known.makers) made_.push_back(make());
  }

  PyObject* at(int64_t number) const {
    auto const at = static_cast<size_t>(number);
    return at < given_.tensor_count ? given_.tensors[at].ptr() : made_[at - given_.tensor_count].ptr();
  }
  /// What a launch takes: a tensor, or a view of one. Neither is a parameter, nor asks for a gradient. Null where torch
  /// makes no such view, as of memory that was freed.
  PyObject* operand(Operand const& operand) {
    static PyObject* const detach = PyUnicode_InternFromString("detach");
    static PyObject* const as_strided = PyUnicode_InternFromString("as_strided");
    if (operand.tensor < 0) return Py_None;
    PyObject* const whole = at(operand.tensor);
    if (!operand.extents) {
      bool const is_plain = Py_TYPE(whole) == reinterpret_cast<PyTypeObject*>(plain_type_.ptr()) &&
                            (!TorchImpl(whole).has_autograd() || !TorchReader::known().requires_grad(whole));
      return is_plain ? whole : view(operand, detach, {whole});
    }
    py::int_ const offset(TorchImpl(whole).offset() + operand.offset);
    return view(operand, as_strided, {whole, operand.extents.ptr(), operand.strides.ptr(), offset.ptr()});
  }
  /// Tells autograd of what was written into given tensors: launches tell it of the views alone.
  void count_writes() const {
    for (int64_t number : viewed_) {
      if (std::find(written_.begin(), written_.end(), static_cast<size_t>(number)) == written_.end()) continue;
      PyObject* const written = at(number);
      if (TorchReader::known().is_inference(written) || TorchReader::known().increment_version(written)) continue;
      py::module_::import("torch._C").attr("_increment_version")(py::make_tuple(py::handle(written)));
    }
  }

 private:
  PyObject* view(Operand const& operand, PyObject* method, std::initializer_list<PyObject*> arguments) {
    below_.enter();
    PyObject* const made = PyObject_VectorcallMethod(method, arguments.begin(), arguments.size(), nullptr);
    if (!made && !PyErr_ExceptionMatches(PyExc_RuntimeError)) throw py::error_already_set();
    if (!made) {
      PyErr_Clear();
      return nullptr;
    }
    views_.push_back(py::reinterpret_steal<py::object>(made));
    viewed_.push_back(operand.tensor);
    return made;
  }

  Given const& given_;
  std::vector<size_t> const& written_;
  py::handle plain_type_;
  std::vector<py::object> made_, views_;
  std::vector<int64_t> viewed_;
  BelowAutograd below_;
};

KnownCalls::KnownCalls(py::tuple const& names, size_t positional, py::tuple defaults, py::dict settings,
                       py::tuple constants, bool writes_parameters)
    : positional_(positional),
      settings_(std::move(settings)),
      constants_(std::move(constants)),
      writes_parameters_(writes_parameters) {
  if (names.size() != defaults.size() || names.size() > kMostParameters || positional > names.size()) {
    throw py::value_error("a function has 24 parameters at most, each with a default or None");
  }
  for (py::handle each : names) {
    PyObject* name = each.inc_ref().ptr();
    PyUnicode_InternInPlace(&name);
    names_.push_back(py::reinterpret_steal<py::object>(name));
  }
  for (py::handle each : defaults) defaults_.push_back(py::reinterpret_borrow<py::object>(each));
}

void KnownCalls::find_torch() {
  if (tensor_type_) return;
  py::module_ const torch = py::module_::import("torch");
  parameter_type_ = torch.attr("nn").attr("Parameter");
  dtype_type_ = torch.attr("dtype");
  size_type_ = torch.attr("Size");
  below_autograd_ = torch.attr("_C").attr("_AutoDispatchBelowADInplaceOrView");
  tensor_type_ = torch.attr("Tensor");
}

bool KnownCalls::is_tensor(PyObject* value) const {
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  return type == tensor_type_.ptr() || type == parameter_type_.ptr();
}

/// Classes are constants as well, and so are values of the classes that the function has.
bool KnownCalls::is_constant(PyObject* value) const {
  if (!constants_.empty() && PyType_Check(value)) return true;
  return std::any_of(constants_.begin(), constants_.end(), [value](py::handle each) {
    return PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(each.ptr()));
  });
}

/// Takes a value that is no list. False for what may be equal to another and not the same, such as an array.
bool KnownCalls::take_part(PyObject* value, Given& given) const {
  if (given.part_count == kMostParts) return false;
  Given::Part& part = given.parts[given.part_count++];
  if (is_tensor(value)) {
    if (given.tensor_count == LaunchTensors::kMost) return false;
    TorchImpl const impl(value);
    if (impl.rank() < 0 || impl.rank() > TorchImpl::kMaxRank) return false;
    part = {nullptr, -1};
    given.tensors[given.tensor_count++] = py::reinterpret_borrow<py::object>(value);
    given.key = mixed(given.key, impl);
    return true;
  }
  bool const is_known = value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
                        PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) ||
                        reinterpret_cast<PyObject*>(Py_TYPE(value)) == dtype_type_.ptr() || is_constant(value);
  part = {value, 0};
  given.key = mixed(given.key, is_known ? hash_of(value) : 0);
  return is_known;
}

bool KnownCalls::take(PyObject* value, Given& given) const {
  bool const is_list = PyList_CheckExact(value) || PyTuple_CheckExact(value) ||
                       reinterpret_cast<PyObject*>(Py_TYPE(value)) == size_type_.ptr();
  if (!is_list && !PyDict_CheckExact(value)) return take_part(value, given);
  if (given.part_count == kMostParts) return false;
  if (!is_list) {
    auto const pairs = static_cast<int64_t>(PyDict_GET_SIZE(value));
    given.parts[given.part_count++] = {nullptr, -2 - pairs};
    given.key = mixed(given.key, static_cast<uint64_t>(-2 - pairs));
    PyObject *name = nullptr, *each = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &name, &each);) {
      if (!PyUnicode_CheckExact(name) || !take_part(name, given) || !take_part(each, given)) return false;
    }
    return true;
  }
  auto const length = PySequence_Fast_GET_SIZE(value);
  given.parts[given.part_count++] = {nullptr, length};
  given.key = mixed(given.key, static_cast<uint64_t>(length) + 3);
  for (Py_ssize_t i = 0; i < length; ++i) {
    if (!take_part(PySequence_Fast_GET_ITEM(value, i), given)) return false;
  }
  return true;
}

bool KnownCalls::take(PyObject* const* values, Given& given) const {
  if (!TorchImpl::found()) return false;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!take(values[i], given)) return false;
  }
  return true;
}

bool KnownCalls::matches(Known const& known, Given const& given) {
  if (known.key != given.key || known.parts.size() != given.part_count || known.forms.size() != given.tensor_count) {
    return false;
  }
  for (size_t i = 0; i < given.part_count; ++i) {
    auto const& [value, length] = known.parts[i];
    if (length != given.parts[i].length || !value != !given.parts[i].value) return false;
    if (value && !is_same(value, py::handle(given.parts[i].value))) return false;
  }
  for (size_t i = 0; i < given.tensor_count; ++i) {
    TorchImpl const impl(given.tensors[i]);
    if (!known.forms[i].has_kind_of(impl) || !known.forms[i].has_extents_of(impl)) return false;
  }
  return true;
}

/// Whether what is written is in memory that nothing else of the call is in: of all else the operator decides.
bool KnownCalls::writes_apart(Known const& known, Given const& given) {
  for (size_t i : known.written) {
    TorchImpl const written(given.tensors[i]);
    for (size_t j = 0; j < given.tensor_count; ++j) {
      if (j == i) continue;
      TorchImpl const other(given.tensors[j]);
      if (!written.storage() || !other.storage()) return false;
      // Two storages may be of one memory, as what came by DLPack.
      bool const begins_behind = written.memory() >= other.memory() + static_cast<uintptr_t>(other.bytes());
      bool const ends_before = written.memory() + static_cast<uintptr_t>(written.bytes()) <= other.memory();
      if (!begins_behind && !ends_before) return false;
    }
  }
  return true;
}

/// Whether launches may write what the call gives them to.
bool KnownCalls::may_write(Known const& known, Given const& given) const {
  bool const may_all = writes_parameters_ || std::none_of(known.written.begin(), known.written.end(), [&](size_t each) {
                         PyObject* const tensor = given.tensors[each].ptr();
                         return TorchImpl(tensor).has_autograd() && TorchReader::known().requires_grad(tensor);
                       });
  return may_all && writes_apart(known, given);
}

bool KnownCalls::has_settings_of(Known const& known) const {
  if (known.settings.is_none()) return true;
  for (auto const& [who, answer] : py::reinterpret_borrow<py::dict>(known.settings)) {
    if (!is_same(py::object(settings_[who])(), answer)) return false;
  }
  return true;
}

/// What the call returns; null where a launch does not take the tensors. Then the operator computes all of it.
py::object KnownCalls::launch(Known const& known, Given const& given) const {
  Remade tensors(*this, known, given);
  for (Launch const& each : known.launches) {
    std::array<PyObject*, LaunchTensors::kMost> operands;
    size_t count = 0;
    for (Operand const& operand : each.operands) {
      if (!(operands[count++] = tensors.operand(operand))) return {};
    }
    if (!each.pool->run({operands.data(), count})) return {};
  }
  tensors.count_writes();
  auto const number = [&](py::handle at) { return py::reinterpret_borrow<py::object>(tensors.at(at.cast<int64_t>())); };
  if (known.returned.is_none()) return py::none();
  if (PyLong_Check(known.returned.ptr())) return number(known.returned);
  py::list all;
  for (py::handle each : known.returned) all.append(number(each));
  return PyTuple_Check(known.returned.ptr()) ? py::object(py::tuple(all)) : py::object(all);
}

PyObject* KnownCalls::serve(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  if (known_.empty() || count < 0 || static_cast<size_t>(count) > positional_) return nullptr;
  std::array<PyObject*, kMostParameters> values;
  for (size_t i = 0; i < names_.size(); ++i) values[i] = defaults_[i].ptr();
  std::copy_n(arguments, count, values.begin());
  for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(keywords, i);
    auto const is_it = [&](auto const& each) {  // torch's dispatcher makes names anew for each call
      return each.ptr() == name || PyUnicode_Compare(each.ptr(), name) == 0;
    };
    auto const found = std::find_if(names_.begin(), names_.end(), is_it);
    if (found == names_.end() || found - names_.begin() < count) return nullptr;
    values[static_cast<size_t>(found - names_.begin())] = arguments[count + i];
  }
  Given given;
  if (!take(values.data(), given)) return nullptr;
  auto const found = known_.find(given.key);
  if (found == known_.end()) return nullptr;
  auto const matching =
      std::find_if(found->second.begin(), found->second.end(), [&](auto const& each) { return matches(*each, given); });
  if (matching == found->second.end() || !may_write(**matching, given)) return nullptr;
  std::shared_ptr<Known const> const known = *matching;  // it may go while anything of the below calls Python
  for (size_t i = 0; i < given.tensor_count; ++i) {
    if (is_followed_now(given.tensors[i])) return nullptr;
  }
  if (!has_settings_of(*known)) return nullptr;
  return launch(*known, given).release().ptr();
}

void KnownCalls::keep(py::tuple const& values, std::vector<size_t> written, py::tuple const& makers,
                      py::list const& launches, py::object returned, py::object settings) {
  find_torch();
  Given given;
  if (values.size() != names_.size()) throw py::value_error("a call has a value for each parameter");
  if (!take(PySequence_Fast_ITEMS(values.ptr()), given)) return;
  auto const known = std::make_shared<Known>();
  known->key = given.key;
  for (size_t i = 0; i < given.part_count; ++i) {
    known->parts.emplace_back(py::reinterpret_borrow<py::object>(given.parts[i].value), given.parts[i].length);
  }
  for (size_t i = 0; i < given.tensor_count; ++i) known->forms.push_back(TorchForm::of(TorchImpl(given.tensors[i])));
  for (size_t each : written) {
    if (each >= given.tensor_count) throw py::value_error("what is written is a tensor of the call");
  }
  known->written = std::move(written);
  for (py::handle each : makers) known->makers.push_back(py::reinterpret_borrow<py::object>(each));
  auto const most = static_cast<int64_t>(given.tensor_count + makers.size());
  auto const number_of = [most](py::handle each) {
    auto const number = each.cast<int64_t>();
    if (number < 0 || number >= most) throw py::value_error("a call has no tensor of that number");
    return number;
  };
  for (py::handle each : launches) {
    auto const [pool, operands] = each.cast<std::pair<std::shared_ptr<LaunchPool>, py::tuple>>();
    Launch launch{pool, {}};
    if (operands.size() > LaunchTensors::kMost) throw py::value_error("a launch has too many tensors");
    for (py::handle one : operands) {
      Operand operand;
      if (!one.is_none()) {
        auto const [number, view] = one.cast<std::pair<py::object, py::object>>();
        operand.tensor = number_of(number);
        if (!view.is_none()) {
          std::tie(operand.extents, operand.strides, operand.offset) =
              view.cast<std::tuple<py::tuple, py::tuple, int64_t>>();
        }
      }
      launch.operands.push_back(std::move(operand));
    }
    known->launches.push_back(std::move(launch));
  }
  if (PyLong_Check(returned.ptr())) {
    number_of(returned);
  } else if (!returned.is_none()) {
    for (py::handle each : returned) number_of(each);
  }
  known->returned = std::move(returned);
  known->settings = std::move(settings);

  // What goes away goes last: its end may call anything.
  std::vector<std::shared_ptr<Known const>> gone;
  auto const remove = [&](std::shared_ptr<Known const> const& each) {
    auto const bucket = known_.find(each->key);
    bucket->second.erase(std::find(bucket->second.begin(), bucket->second.end(), each));
    if (bucket->second.empty()) known_.erase(bucket);
    gone.push_back(each);
  };
  auto const like = std::find_if(order_.begin(), order_.end(), [&](auto const& each) { return matches(*each, given); });
  if (like != order_.end()) {
    auto const earlier = *like;
    order_.erase(like);
    remove(earlier);
  } else if (order_.size() >= kMost) {
    auto const earliest = order_.front();
    order_.pop_front();
    remove(earliest);
  }
  known_[known->key].push_back(known);
  order_.push_back(known);
}

void KnownCalls::clear() {
  auto const gone = std::exchange(known_, {});
  auto const order = std::exchange(order_, {});
}

void bind_known_calls(py::module_& m) {
  py::class_<KnownCalls>(m, "KnownCalls", "Calls of a function whose arguments are like those of earlier ones.")
      .def(py::init<py::tuple const&, size_t, py::tuple, py::dict, py::tuple, bool>(), py::arg("names"),
           py::arg("positional"), py::arg("defaults"), py::arg("settings"), py::arg("constants") = py::tuple(),
           py::arg("writes_parameters") = true)
      .def("keep", &KnownCalls::keep, py::arg("values"), py::arg("written"), py::arg("makers"), py::arg("launches"),
           py::arg("returned"), py::arg("settings"), "Keep what a call has launched.")
      .def("clear", &KnownCalls::clear)
      .def("__len__", &KnownCalls::size);
}

}  // namespace pycutlass
