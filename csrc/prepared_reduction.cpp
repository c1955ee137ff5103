// What all reductions of one operation on one GPU share, made once and never changed: its kernel, and what partial
// sums, source and destination must be.
#include <memory>
#include <utility>

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings.h"
#include "gemm_call.h"
#include "prepared_kernel.h"

namespace pycutlass {
namespace {

using Made = py::typing::Optional<py::typing::Tuple<ReductionCall, py::typing::Dict<py::str, py::type>>>;

/// Partial sums that a GEMM or a convolution of this process makes: packed planes, one behind the other.
struct PartialSums {
  uint64_t pointer;
  int rows, columns, partitions;
};

class PreparedReduction : private PreparedKernel {
 public:
  PreparedReduction(py::object kernel, FourGiven const& operands, Helpers helpers)
      : PreparedKernel(std::move(kernel), operands, true, std::move(helpers), {PYCUTLASS_D, PYCUTLASS_C}) {
    this->kernel()->host().check_element(PYCUTLASS_A, described(PYCUTLASS_A).type.code);
  }

  /// As that of PreparedGemm. `A` keeps the memory of the sums alive, which have as many rows and columns as D; B is
  /// nothing.
  Made make(py::handle A, py::handle B, py::handle C, py::handle D, uint64_t pointer, int rows, int columns,
            int partitions, py::handle bias, py::bytes const& epilogue, bool reads_source) const {
    return unless_refused(
        [&] { return try_make({A, B, C, D}, {pointer, rows, columns, partitions}, bias, epilogue, reads_source); });
  }

 private:
  py::object try_make(GivenOperands const& given, PartialSums const& sums, py::handle bias, py::bytes const& epilogue,
                      bool reads_source) const {
    bool const said = !bias.is_none(), as_bias = bias.ptr() == Py_True;
    if (said && !as_bias && bias.ptr() != Py_False) return py::none();
    TakenOperands taken;
    taken.reads_source = reads_source;
    auto const find = [&](int role, GivenTensor const& tensor) {
      OperandRule rule = described(role).rule;
      rule.matrix = role == PYCUTLASS_D || !as_bias;
      rule.bias = role == PYCUTLASS_C && (!said || as_bias);
      return rule.place(tensor.view(), sums.rows, sums.columns, 1, role == PYCUTLASS_D);
    };
    if (!take(given, taken, find)) return py::none();
    auto const& [rule, type] = described(PYCUTLASS_A);
    int const line = rule.row_major ? sums.columns : sums.rows, lines = rule.row_major ? sums.rows : sums.columns;
    int64_t const plane = int64_t(sums.rows) * sums.columns;
    auto const bytes = static_cast<uint64_t>(sums.partitions * plane * rule.element_bytes());
    if (taken[PYCUTLASS_D].placed.span.overlaps({sums.pointer, bytes, bytes, 0})) return py::none();

    auto call = std::make_unique<ReductionCall>(kernel());
    enter(*call, taken, epilogue);
    call->set_operand(PYCUTLASS_A, sums.pointer, {line, plane}, bytes, rule.alignment_bytes(), type.code,
                      PYCUTLASS_TENSOR);
    py::handle const memory = given[PYCUTLASS_A];
    call->remember(role_name(PYCUTLASS_A), py::reinterpret_borrow<py::object>(memory), "workspace");
    call->set_problem(lines, line, sums.partitions);
    if (!plan(*call)) return py::none();
    auto [made, libraries] = finish(std::move(call), given, taken[PYCUTLASS_D].tensor, taken.followed);
    libraries["workspace"] = py::type::of(memory);
    return py::make_tuple(std::move(made), std::move(libraries));
  }
};

}  // namespace
}  // namespace pycutlass

void bind_prepared_reduction(py::module_& m) {
  using namespace pycutlass;
  py::class_<PreparedReduction>(m, "PreparedReduction", "What all reductions of one operation on one GPU share.")
      .def(py::init([](std::shared_ptr<DeviceKernel> const& kernel, PreparedKernel::FourGiven const& operands,
                       py::object wrap, py::object stream_source, py::object say_followed) {
             return std::make_unique<PreparedReduction>(
                 py::cast(kernel), operands,
                 PreparedKernel::Helpers{std::move(wrap), std::move(stream_source), std::move(say_followed)});
           }),
           py::kw_only(), py::arg("kernel"), py::arg("operands"), py::arg("wrap"), py::arg("stream_source"),
           py::arg("say_followed"))
      .def("make", &PreparedReduction::make, py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"), py::arg("pointer"),
           py::arg("rows"), py::arg("columns"), py::arg("partitions"), py::arg("bias"), py::arg("epilogue"),
           py::arg("reads_source"),
           "A call that adds up partial sums at an address, for an ordinary source and destination of torch or cupy, "
           "and its libraries with a type of each; None where a closer look is due. `A` keeps the sums alive.");
}
