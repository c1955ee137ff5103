// What all launches of one grouped operation on one GPU share, made once and never changed: its kernel, and what the
// operands of each problem must be.
#include <algorithm>
#include <memory>
#include <utility>

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings.h"
#include "grouped_call.h"
#include "prepared_kernel.h"

namespace pycutlass {
namespace {

using Made = py::typing::Optional<py::typing::Tuple<GroupedCall, py::typing::Dict<py::str, py::type>>>;

class PreparedGrouped : private PreparedKernel {
 public:
  PreparedGrouped(py::object kernel, FourGiven const& operands, Helpers helpers)
      : PreparedKernel(std::move(kernel), operands, true, std::move(helpers)) {}

  /// As that of PreparedGemm, of tuples with a tensor for each problem; `sizes` were found to be supported. The call
  /// lacks a table.
  Made make(py::handle A, py::handle B, py::handle C, py::handle D, py::buffer const& sizes, py::handle bias,
            py::bytes const& epilogue, bool reads_source) const {
    return unless_refused([&] { return try_make({A, B, C, D}, sizes, bias, epilogue, reads_source); });
  }

 private:
  /// What is found out of the tensors while they are read.
  struct Seen {
    GivenTensor first, last;  // of all
    bool followed = false;    // whether autograd follows one
  };

  py::object try_make(GivenOperands const& given, py::buffer const& sizes, py::handle bias, py::bytes const& epilogue,
                      bool reads_source) const {
    GroupedCall::Group group;
    group.sizes = read_sizes(sizes);
    for (OperandList& operand : group.operands) operand.resize(group.count());
    Seen seen;
    for (int role : {PYCUTLASS_A, PYCUTLASS_B, PYCUTLASS_C, PYCUTLASS_D}) {
      py::handle const tensors = given[static_cast<size_t>(role)];
      bool const is_read = role != PYCUTLASS_C || reads_source;
      if (!is_read && tensors.is_none()) continue;
      if (!take(role, tensors, bias, group, is_read, seen)) return py::none();
    }
    auto call = std::make_unique<GroupedCall>(kernel());
    lead(*call, seen.first);
    call->set_epilogue(epilogue);
    if (!call->start(group) || !plan(*call)) return py::none();
    auto [made, libraries] = finish(std::move(call), given, seen.last, seen.followed);
    return py::make_tuple(std::move(made), std::move(libraries));
  }

  /// Reads the tensors of an operand, and makes it of them where launches read it; false where one needs a closer look.
  bool take(int role, py::handle tensors, py::handle bias, GroupedCall::Group& group, bool is_read, Seen& seen) const {
    auto const at = static_cast<size_t>(role);
    if (!PyTuple_CheckExact(tensors.ptr())) return false;
    if (static_cast<size_t>(PyTuple_GET_SIZE(tensors.ptr())) != group.count()) return false;
    if (!shows_kind(role, tensors)) return false;
    OperandList& operand = group.operands[at];
    OperandExtents const extents = group.extents(at);
    if (is_read) operand.rule = rule(role, bias);
    for (size_t i = 0; i < group.count(); ++i) {
      py::handle const tensor = PyTuple_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(i));
      bool const is_first = role == PYCUTLASS_A && i == 0;
      GivenTensor& now = is_first ? seen.first : seen.last;
      if (!read(role, tensor, seen.first, now, seen.followed)) return false;
      if (is_read && !operand.take_given(i, now, extents, role == PYCUTLASS_D)) return false;
    }
    if (is_read) operand.hold(tensors);
    return true;
  }

  /// Whether any of the tensors can be read: those without elements can be once another one has shown their kind.
  bool shows_kind(int role, py::handle tensors) const {
    GivenTensor shown;
    bool followed = false;
    PyObject* const* const items = PySequence_Fast_ITEMS(tensors.ptr());
    return std::any_of(items, items + PyTuple_GET_SIZE(tensors.ptr()),
                       [&](PyObject* tensor) { return read(role, tensor, shown, shown, followed); });
  }

  /// What the tensors of a role must be; `bias` says whether every C is one, or None where each tells.
  OperandRule rule(int role, py::handle bias) const {
    OperandRule rule = described(role).rule;
    rule.matrix = role != PYCUTLASS_C || bias.ptr() != Py_True;
    rule.bias = role == PYCUTLASS_C && bias.ptr() != Py_False;
    return rule;
  }
};

}  // namespace
}  // namespace pycutlass

void bind_prepared_grouped(py::module_& m) {
  using namespace pycutlass;
  py::class_<PreparedGrouped>(m, "PreparedGrouped", "What all launches of one grouped operation on one GPU share.")
      .def(py::init([](std::shared_ptr<DeviceKernel> const& kernel, PreparedKernel::FourGiven const& operands,
                       py::object wrap, py::object stream_source, py::object say_followed) {
             return std::make_unique<PreparedGrouped>(
                 py::cast(kernel), operands,
                 PreparedKernel::Helpers{std::move(wrap), std::move(stream_source), std::move(say_followed)});
           }),
           py::kw_only(), py::arg("kernel"), py::arg("operands"), py::arg("wrap"), py::arg("stream_source"),
           py::arg("say_followed"))
      .def("make", &PreparedGrouped::make, py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"), py::arg("sizes"),
           py::arg("bias"), py::arg("epilogue"), py::arg("reads_source"),
           "A call for tuples of ordinary tensors of torch or cupy, one for each problem, and their library with a "
           "type of one; None where a closer look is due.");
}
