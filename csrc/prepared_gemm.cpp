// What all launches of one GEMM operation on one GPU share, made once and never changed: its kernel, and what sizes and
// operands must be. Threads may use it at the same time, each for calls of its own.
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings.h"
#include "cutlass/gemm_coord.h"
#include "gemm_call.h"
#include "given_tensor.h"
#include "integers.h"

namespace pycutlass {
namespace {

constexpr int64_t kGridLimit = 65535;  // threadblocks along y and z

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

/// A tensor that stands for an operand, and where that is.
struct Taken {
  GivenTensor tensor;
  PlacedOperand placed;
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

class PreparedGemm {
 public:
  /// What an operand must be.
  struct Described {
    OperandRule rule;
    ElementType type;
  };

  /// What a description says of all launches.
  struct Rules {
    std::array<Described, 4> operands;
    std::array<int64_t, 4> most;   // of M, N, K and the batch
    std::array<int64_t, 2> steps;  // of M and N, which a tensor map of C asks for where D is apart
    int64_t slice;                 // the least of K that a slice takes; 0 where K is not split
    bool in_place;                 // whether C may be D itself
    int swizzle;
  };

  /// What is asked of Python.
  struct Helpers {
    py::object wrap, stream_source;  // those of pycutlass/tensor
    py::object raster_type;          // RasterOrder
    py::object say_followed;         // says that D has no gradient, of A, B and C
  };

  PreparedGemm(py::object kernel, Rules rules, Helpers helpers)
      : kernel_(kernel.cast<std::shared_ptr<DeviceKernel>>()),
        kernel_object_(std::move(kernel)),
        rules_(std::move(rules)),
        helpers_(std::move(helpers)) {
    for (size_t role = 0; role < rules_.operands.size(); ++role) {
      kernel_->host().check_element(static_cast<int>(role), rules_.operands[role].type.code);
    }
  }

  /// A call for tensors of torch or cupy on this GPU, checked as pycutlass/arguments does, and their library with a
  /// type of its tensors; None where that has to look, which explains what is wrong, if anything. `epilogue` are packed
  /// arguments. The call may still lack a workspace.
  Made make(py::handle size, py::handle A, py::handle B, py::handle C, py::handle D, py::handle mode, py::handle slices,
            py::handle batch, py::handle bias, py::handle raster, py::handle pdl, py::bytes const& epilogue,
            bool reads_source) const {
    try {
      return try_make(size, {A, B, C, D}, mode, slices, batch, bias, raster, pdl, epilogue, reads_source);
    } catch (py::error_already_set const& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return py::none();  // what a tensor raises when it is asked
    }
  }

 private:
  py::object try_make(py::handle given_size, std::array<py::handle, 4> const& tensors, py::handle mode,
                      py::handle given_slices, py::handle given_batch, py::handle bias, py::handle raster,
                      py::handle pdl, py::bytes const& epilogue, bool reads_source) const {
    GemmSize size;
    int64_t slices = 0, batch = 0;
    bool with_pdl = false, as_bias = false, said = !bias.is_none();
    bool const single = mode.is(one_.mode);
    bool const plain = size.read(given_size) && read_plain_integer(given_slices, slices) &&
                       read_plain_integer(given_batch, batch) && (single || mode.is(batched_.mode)) &&
                       (!said || read_truth(bias, as_bias)) && py::type::handle_of(raster).is(helpers_.raster_type) &&
                       read_truth(pdl, with_pdl);
    if (!plain || !supports(size, single, slices, batch)) return py::none();

    std::array<Taken, 4> operands;
    bool followed = false;
    for (int role : {PYCUTLASS_A, PYCUTLASS_B, PYCUTLASS_D, PYCUTLASS_C}) {
      if (role == PYCUTLASS_C && tensors[PYCUTLASS_C].is_none() && !reads_source) continue;
      Taken& taken = operands[static_cast<size_t>(role)];
      ElementType const& type = rules_.operands[static_cast<size_t>(role)].type;
      if (!taken.tensor.read(tensors[static_cast<size_t>(role)], type, kernel_->ordinal(), helpers_.wrap) ||
          !taken.tensor.same_library(operands[PYCUTLASS_A].tensor)) {
        return py::none();
      }
      bool const is_followed = taken.tensor.is_followed();
      if (role == PYCUTLASS_D && is_followed) return py::none();
      followed = followed || is_followed;
      if (role == PYCUTLASS_C && !reads_source) continue;
      if (!place(role, size, batch, said, as_bias, taken)) return py::none();
    }
    if (!writes_apart(operands, reads_source)) return py::none();

    auto call = std::make_unique<GemmCall>(kernel_);
    operands[PYCUTLASS_A].tensor.lead(*call, kernel_->ordinal(), helpers_.stream_source);
    for (int role : {PYCUTLASS_A, PYCUTLASS_B, PYCUTLASS_C, PYCUTLASS_D}) {
      if (role == PYCUTLASS_C && !reads_source) continue;
      auto const& [rule, type] = rules_.operands[static_cast<size_t>(role)];
      Taken const& taken = operands[static_cast<size_t>(role)];
      taken.tensor.enter(*call, role, rule, type.code, taken.placed);
    }
    call->set_epilogue(epilogue);
    call->set_problem((single ? one_ : batched_).number, static_cast<int>(size.m), static_cast<int>(size.n),
                      static_cast<int>(size.k), static_cast<int>(single ? slices : batch));
    call->set_schedule(rules_.swizzle, static_cast<int>(PyLong_AsLong(raster.ptr())));
    call->set_launch_with_pdl(with_pdl);
    call->set_in_place(rules_.in_place);
    if (call->plan() != 0 || !fits_grid(call->config())) return py::none();
    if (followed) helpers_.say_followed(tensors[PYCUTLASS_A], tensors[PYCUTLASS_B], tensors[PYCUTLASS_C]);
    py::object made = py::cast(std::move(call));
    py::detail::keep_alive_impl(made, kernel_object_);  // whose end unloads the kernel
    GivenTensor const& target = operands[PYCUTLASS_D].tensor;
    py::dict libraries;
    libraries[target.library()] = py::type::of(target.tensor());
    return py::make_tuple(std::move(made), std::move(libraries));
  }

  bool supports(GemmSize const& size, bool single, int64_t slices, int64_t batch) const {
    if ((single ? batch : slices) != 1) return false;
    if (slices != 1 && (!rules_.slice || slices < 1 || slices > kGridLimit)) return false;
    if (slices > 1 && slices > (size.k + rules_.slice - 1) / rules_.slice) return false;
    std::array<int64_t, 4> const extents = {size.m, size.n, size.k, batch};
    for (size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] < 1 || extents[i] > rules_.most[i]) return false;
    }
    return size.m % rules_.steps[0] == 0 && size.n % rules_.steps[1] == 0;
  }

  bool place(int role, GemmSize const& size, int64_t batch, bool said, bool as_bias, Taken& taken) const {
    OperandRule rule = rules_.operands[static_cast<size_t>(role)].rule;
    if (role == PYCUTLASS_C) {
      rule.matrix = !as_bias;
      rule.bias = !said || as_bias;
    }
    int64_t const rows = role == PYCUTLASS_B ? size.k : size.m, columns = role == PYCUTLASS_A ? size.k : size.n;
    std::optional<PlacedOperand> placed = rule.place(taken.tensor.view(), rows, columns, batch, role == PYCUTLASS_D);
    if (placed) taken.placed = *placed;
    return placed.has_value();
  }

  /// Whether D lies over nothing else, but for a C that is D itself.
  bool writes_apart(std::array<Taken, 4> const& operands, bool reads_source) const {
    PlacedOperand const &target = operands[PYCUTLASS_D].placed, &source = operands[PYCUTLASS_C].placed;
    if (target.span.overlaps(operands[PYCUTLASS_A].placed.span)) return false;
    if (target.span.overlaps(operands[PYCUTLASS_B].placed.span)) return false;
    return !reads_source || (rules_.in_place && target.same_place(source)) || !target.span.overlaps(source.span);
  }

  static bool fits_grid(CUlaunchConfig const& config) {
    return config.gridDimY <= kGridLimit && config.gridDimZ <= kGridLimit;
  }

  std::shared_ptr<DeviceKernel> kernel_;
  py::object kernel_object_;  // of Python: when it goes, the kernel is unloaded
  Rules rules_;
  Helpers helpers_;
  Mode one_{"Gemm"}, batched_{"Batched"};
};

}  // namespace
}  // namespace pycutlass

void bind_prepared_gemm(py::module_& m) {
  using namespace pycutlass;
  using Described = std::tuple<OperandRule, int, std::string, py::object>;
  using Four = std::tuple<Described, Described, Described, Described>;
  auto const described = [](Described const& given) {
    auto const& [rule, code, dtype_name, dtype] = given;
    return PreparedGemm::Described{rule, {code, dtype_name, dtype}};
  };
  py::class_<PreparedGemm>(m, "PreparedGemm", "What all launches of one GEMM operation on one GPU share.")
      .def(py::init([described](std::shared_ptr<DeviceKernel> const& kernel, Four const& operands,
                                std::tuple<int64_t, int64_t, int64_t, int64_t> const& most,
                                std::pair<int64_t, int64_t> const& steps, int64_t slice, bool in_place, int swizzle,
                                py::object wrap, py::object stream_source, py::type raster_type,
                                py::object say_followed) {
             auto const array_of = [](auto const&... each) { return std::array{each...}; };
             auto const all = [&](auto const&... each) { return std::array{described(each)...}; };
             PreparedGemm::Rules rules{std::apply(all, operands),
                                       std::apply(array_of, most),
                                       {steps.first, steps.second},
                                       slice,
                                       in_place,
                                       swizzle};
             return std::make_unique<PreparedGemm>(
                 py::cast(kernel), std::move(rules),
                 PreparedGemm::Helpers{std::move(wrap), std::move(stream_source), std::move(raster_type),
                                       std::move(say_followed)});
           }),
           py::kw_only(), py::arg("kernel"), py::arg("operands"), py::arg("most"), py::arg("steps"), py::arg("slice"),
           py::arg("in_place"), py::arg("swizzle"), py::arg("wrap"), py::arg("stream_source"), py::arg("raster_type"),
           py::arg("say_followed"))
      .def("make", &PreparedGemm::make, py::arg("problem_size"), py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"),
           py::arg("gemm_mode"), py::arg("split_k_slices"), py::arg("batch"), py::arg("bias"), py::arg("raster_order"),
           py::arg("launch_with_pdl"), py::arg("epilogue"), py::arg("reads_source"),
           "A call for ordinary tensors of torch or cupy, and their library with a type of its tensors; None where a "
           "closer look is due.");
}
