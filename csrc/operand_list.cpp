#include "operand_list.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "operand_check.h"

namespace pycutlass {

bool OperandExtents::operator==(OperandExtents const& other) const {
  if (count() != other.count()) return false;
  for (size_t i = 0; i < count(); ++i) {
    if (rows(i) != other.rows(i) || columns(i) != other.columns(i)) return false;
  }
  return true;
}

void OperandList::resize(size_t count) {
  pointers.assign(count, 0);
  next.assign(count, 0);
  next_places.assign(count, TorchPlace{});
  lds.assign(count, 0);
  spans.assign(count, Span{});
  forms.assign(count, TensorSignature());
  guards.assign(count, TensorGuard());
  tensors = py::none();
}

void OperandList::place(size_t problem, Span const& span, int64_t ld) {
  pointers.at(problem) = span.begin;
  lds.at(problem) = ld;
  spans.at(problem) = span;
}

void OperandList::remember(py::tuple const& given, bool written) {
  for (size_t i = 0; i < forms.size(); ++i) {
    py::object const tensor = given[i];
    if (tensor.is_none()) continue;
    forms[i].remember(tensor);
    guards[i].watch(tensor, written);
  }
  tensors = given;
  plain = takes_plainly();
}

bool OperandList::takes_plainly() const {
  for (size_t i = 0; i < forms.size(); ++i) {
    if (!guards[i].takes_plainly(forms[i])) return false;
  }
  return true;
}

bool OperandList::read(py::handle given) {
  size_t const count = forms.size();
  if (!PyTuple_Check(given.ptr()) || static_cast<size_t>(PyTuple_GET_SIZE(given.ptr())) != count) return false;
  next_guards.clear();
  PyObject* const* const items = PySequence_Fast_ITEMS(given.ptr());
  for (size_t i = read_plainly(items, 0); i < count; i = read_plainly(items, i + 1)) {
    if (!forms[i].read(items[i], next[i]) || !guards[i].allows(items[i])) return false;
    next_guards.emplace_back(i, guards[i]);
    next_guards.back().second.exchange(items[i]);
  }
  uint64_t const misaligned = rule.alignment_bytes() - 1;
  return std::none_of(next.begin(), next.end(), [=](uint64_t pointer) { return (pointer & misaligned) != 0; });
}

/// Reads tensors from number `from` on, and returns the number of the first that needs a closer look. Each line of the
/// cache that this touches takes longer than what is done with it, so their places are kept for later.
size_t OperandList::read_plainly(PyObject* const* items, size_t from) {
  size_t const count = plain ? forms.size() : from;
  TensorSignature const* const form = forms.data();
  uint64_t* const pointer = next.data();
  TorchPlace* const place = next_places.data();
  size_t i = from;
  for (; i < count; ++i) {
    if (!form[i].read_directly(items[i], pointer[i]) || TorchImpl(items[i]).has_autograd()) break;
    place[i] = TorchPlace::of(TorchImpl(items[i]));
  }
  return i;
}

void OperandList::exchange() {
  pointers.swap(next);
  for (size_t i = 0; i < spans.size(); ++i) spans[i].begin = pointers[i];
}

void OperandList::keep(py::handle given) {
  // What goes away goes last: its end may call anything.
  py::object const former = std::exchange(tensors, py::reinterpret_borrow<py::object>(given));
  auto next_guard = next_guards.begin();
  for (size_t i = 0; i < guards.size(); ++i) {
    if (next_guard != next_guards.end() && next_guard->first == i) {
      std::swap(guards[i], next_guard++->second);
    } else {
      guards[i].exchange_plain(PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i)), next_places[i]);
    }
  }
  if (next_guards.empty()) return;
  next_guards.clear();
  plain = takes_plainly();
}

void OperandList::check_unmoved(char letter) const {
  for (size_t i = plainly_unmoved(0); i < guards.size(); i = plainly_unmoved(i + 1)) {
    if (!guards[i].unmoved()) guards[i].raise_moved(letter + ("[" + std::to_string(i) + "]"));
  }
}

/// Looks at tensors from number `from` on, and returns the number of the first that needs a closer look.
size_t OperandList::plainly_unmoved(size_t from) const {
  size_t const count = guards.size();
  TensorGuard const* const guard = guards.data();
  size_t i = from;
  while (i < count && guard[i].plainly_unmoved()) ++i;
  return i;
}

bool OperandList::remembers_all() const {
  return !forms.empty() &&
         std::all_of(forms.begin(), forms.end(), [](TensorSignature const& form) { return form.known(); });
}

bool OperandList::take(OperandList const& like, py::handle given, OperandExtents const& extents) {
  size_t const count = extents.count();
  if (!PyTuple_Check(given.ptr()) || static_cast<size_t>(PyTuple_GET_SIZE(given.ptr())) != count) return false;
  TensorSignature const& known = like.forms.front();
  resize(count);
  rule = like.rule;
  for (size_t i = 0; i < count; ++i) {
    TensorView view;
    py::handle const tensor = PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i));
    if (!known.view(tensor, view) || !like.guards.front().allows(tensor)) return false;
    if (!take_one(i, view, extents.rows(i), extents.columns(i))) return false;
    forms[i] = known.with_extents(view);
    guards[i] = like.guards.front();
    guards[i].exchange(tensor);
  }
  hold(given);
  return true;
}

bool OperandList::take_given(size_t problem, GivenTensor const& tensor, OperandExtents const& extents, bool written) {
  if (!take_one(problem, tensor.view(), extents.rows(problem), extents.columns(problem))) return false;
  tensor.watch(forms[problem], guards[problem], written);
  return true;
}

void OperandList::hold(py::handle given) {
  tensors = py::reinterpret_borrow<py::object>(given);
  plain = takes_plainly();
}

bool OperandList::take_one(size_t problem, TensorView const& view, int64_t rows, int64_t columns) {
  std::optional<PlacedOperand> const placed = rule.place(view, rows, columns);
  if (placed) place(problem, placed->span, placed->ld);
  return placed.has_value();
}

void bind_operand_list(py::module_& m) {
  using Entries = std::vector<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, int64_t>>;
  bind_operand_rule(m);
  m.def(
      "read_operands",
      [](OperandRule const& rule, py::handle like, py::tuple const& tensors,
         std::vector<int32_t> const& sizes) -> std::optional<Entries> {
        OperandList known, taken;
        known.resize(1);
        known.rule = rule;
        known.remember(py::make_tuple(like), false);
        OperandExtents const extents{sizes, 0, 1};
        if (!known.remembers_all() || !taken.take(known, tensors, extents)) return std::nullopt;
        Entries entries;
        for (size_t i = 0; i < extents.count(); ++i) {
          Span const& span = taken.spans[i];
          entries.emplace_back(span.begin, span.bytes, span.line, span.pitch, taken.lds[i]);
        }
        return entries;
      },
      py::arg("rule"), py::arg("like"), py::arg("tensors"), py::arg("sizes"),
      "Address, bytes, bytes of a line, bytes between lines and leading dimension of each tensor, or None. "
      "M and N of the sizes are their rows and columns. For tests.");
}

}  // namespace pycutlass
