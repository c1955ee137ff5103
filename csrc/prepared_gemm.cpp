// What all launches of one GEMM operation on one GPU share, made once and never changed: its kernel, and what sizes and
// operands must be.
#include <array>
#include <memory>
#include <tuple>
#include <utility>

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings.h"
#include "cutlass/gemm_coord.h"
#include "gemm_call.h"
#include "integers.h"
#include "prepared_kernel.h"

namespace pycutlass {
namespace {

constexpr int64_t kMaxSlices = 65535;  // the extent of a grid along z

bool read_truth(py::handle given, bool& truth) {
  truth = given.ptr() == Py_True;
  return truth || given.ptr() == Py_False;
}

struct GemmSize {
  int64_t m = 0, n = 0, k = 0;

  bool read(py::handle given) {
    if (PyTuple_CheckExact(given.ptr()) || PyList_CheckExact(given.ptr())) {
      PyObject* const* const items = PySequence_Fast_ITEMS(given.ptr());
      return PySequence_Fast_GET_SIZE(given.ptr()) == 3 && read_plain_integer(items[0], m) &&
             read_plain_integer(items[1], n) && read_plain_integer(items[2], k);
    }
    if (!py::isinstance<cutlass::gemm::GemmCoord>(given)) return false;
    auto const& coord = given.cast<cutlass::gemm::GemmCoord const&>();
    m = coord.m();
    n = coord.n();
    k = coord.k();
    return true;
  }
};

/// A member of cutlass.gemm.Mode, and its number.
struct Mode {
  explicit Mode(char const* name)
      : mode(py::module_::import("pycutlass._core").attr("GemmMode").attr(name)),
        number(mode.attr("value").cast<int>()) {}

  py::object mode;
  int number;
};

using Made = py::typing::Optional<py::typing::Tuple<GemmCall, py::typing::Dict<py::str, py::type>>>;

class PreparedGemm : private PreparedKernel {
 public:
  /// What a description says of all launches.
  struct Rules {
    std::array<int64_t, 4> most;   // of M, N, K and the batch
    std::array<int64_t, 2> steps;  // of M and N, which a tensor map of C asks for where D is apart
    int64_t slice;                 // the least of K that a slice takes; 0 where K is not split
    int swizzle;
    py::object raster_type;  // RasterOrder
  };

  PreparedGemm(py::object kernel, FourGiven const& operands, bool in_place, Rules rules, Helpers helpers)
      : PreparedKernel(std::move(kernel), operands, in_place, std::move(helpers)), rules_(std::move(rules)) {}

  /// A call for tensors of torch or cupy on this GPU, checked as pycutlass/arguments does, and their library with a
  /// type of its tensors; None where that has to look, which explains what is wrong, if anything. `epilogue` are packed
  /// arguments. The call may still lack a workspace.
  Made make(py::handle A, py::handle B, py::handle C, py::handle D, py::handle size, py::handle mode, py::handle slices,
            py::handle batch, py::handle bias, py::handle raster, py::handle pdl, py::bytes const& epilogue,
            bool reads_source) const {
    return unless_refused(
        [&] { return try_make(size, {A, B, C, D}, mode, slices, batch, bias, raster, pdl, epilogue, reads_source); });
  }

 private:
  py::object try_make(py::handle given_size, GivenOperands const& given, py::handle mode, py::handle given_slices,
                      py::handle given_batch, py::handle bias, py::handle raster, py::handle pdl,
                      py::bytes const& epilogue, bool reads_source) const {
    GemmSize size;
    int64_t slices = 0, batch = 0;
    bool with_pdl = false, as_bias = false, said = !bias.is_none();
    bool const single = mode.is(one_.mode);
    bool const plain = size.read(given_size) && read_plain_integer(given_slices, slices) &&
                       read_plain_integer(given_batch, batch) && (single || mode.is(batched_.mode)) &&
                       (!said || read_truth(bias, as_bias)) && py::type::handle_of(raster).is(rules_.raster_type) &&
                       read_truth(pdl, with_pdl);
    if (!plain || !supports(size, single, slices, batch)) return py::none();

    TakenOperands taken;
    taken.reads_source = reads_source;
    auto const find = [&](int role, GivenTensor const& tensor) {
      return place(role, size, batch, said, as_bias, tensor.view());
    };
    if (!take(given, taken, find)) return py::none();

    auto call = std::make_unique<GemmCall>(kernel());
    enter(*call, taken, epilogue);
    call->set_problem((single ? one_ : batched_).number, static_cast<int>(size.m), static_cast<int>(size.n),
                      static_cast<int>(size.k), static_cast<int>(single ? slices : batch));
    call->set_schedule(rules_.swizzle, static_cast<int>(PyLong_AsLong(raster.ptr())));
    call->set_launch_with_pdl(with_pdl);
    if (!plan(*call)) return py::none();
    auto [made, libraries] = finish(std::move(call), given, taken[PYCUTLASS_D].tensor, taken.followed);
    return py::make_tuple(std::move(made), std::move(libraries));
  }

  bool supports(GemmSize const& size, bool single, int64_t slices, int64_t batch) const {
    if ((single ? batch : slices) != 1) return false;
    if (slices != 1 && (!rules_.slice || slices < 1 || slices > kMaxSlices)) return false;
    if (slices > 1 && slices > (size.k + rules_.slice - 1) / rules_.slice) return false;
    std::array<int64_t, 4> const extents = {size.m, size.n, size.k, batch};
    for (size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] < 1 || extents[i] > rules_.most[i]) return false;
    }
    return size.m % rules_.steps[0] == 0 && size.n % rules_.steps[1] == 0;
  }

  std::optional<PlacedOperand> place(int role, GemmSize const& size, int64_t batch, bool said, bool as_bias,
                                     TensorView const& view) const {
    OperandRule rule = described(role).rule;
    if (role == PYCUTLASS_C) {
      rule.matrix = !as_bias;
      rule.bias = !said || as_bias;
    }
    int64_t const rows = role == PYCUTLASS_B ? size.k : size.m, columns = role == PYCUTLASS_A ? size.k : size.n;
    return rule.place(view, rows, columns, batch, role == PYCUTLASS_D);
  }

  Rules rules_;
  Mode one_{"Gemm"}, batched_{"Batched"};
};

}  // namespace
}  // namespace pycutlass

void bind_prepared_gemm(py::module_& m) {
  using namespace pycutlass;
  py::class_<PreparedGemm>(m, "PreparedGemm", "What all launches of one GEMM operation on one GPU share.")
      .def(py::init([](std::shared_ptr<DeviceKernel> const& kernel, PreparedKernel::FourGiven const& operands,
                       std::tuple<int64_t, int64_t, int64_t, int64_t> const& most,
                       std::pair<int64_t, int64_t> const& steps, int64_t slice, bool in_place, int swizzle,
                       py::object wrap, py::object stream_source, py::type raster_type, py::object say_followed) {
             auto const array_of = [](auto const&... each) { return std::array{each...}; };
             PreparedGemm::Rules rules{
                 std::apply(array_of, most), {steps.first, steps.second}, slice, swizzle, std::move(raster_type)};
             return std::make_unique<PreparedGemm>(
                 py::cast(kernel), operands, in_place, std::move(rules),
                 PreparedKernel::Helpers{std::move(wrap), std::move(stream_source), std::move(say_followed)});
           }),
           py::kw_only(), py::arg("kernel"), py::arg("operands"), py::arg("most"), py::arg("steps"), py::arg("slice"),
           py::arg("in_place"), py::arg("swizzle"), py::arg("wrap"), py::arg("stream_source"), py::arg("raster_type"),
           py::arg("say_followed"))
      .def("make", &PreparedGemm::make, py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"), py::arg("problem_size"),
           py::arg("gemm_mode"), py::arg("split_k_slices"), py::arg("batch"), py::arg("bias"), py::arg("raster_order"),
           py::arg("launch_with_pdl"), py::arg("epilogue"), py::arg("reads_source"),
           "A call for ordinary tensors of torch or cupy, and their library with a type of its tensors; None where a "
           "closer look is due.");
}
