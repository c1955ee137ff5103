// What all launches of one GEMM operation on one GPU share, made once and never changed: its kernel, what its operands
// must be, and the arguments of its epilogue where none are given. Threads may use it at the same time, each for calls
// of its own.
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings.h"
#include "cutlass/gemm_coord.h"
#include "gemm_call.h"

namespace pycutlass {
namespace {

constexpr int64_t kGridLimit = 65535;  // threadblocks along y and z

/// An integer that is plainly one.
bool read_integer(py::handle given, int64_t& number) {
  if (!PyLong_CheckExact(given.ptr())) return false;
  int overflow = 0;
  number = PyLong_AsLongLongAndOverflow(given.ptr(), &overflow);
  return overflow == 0;
}

bool read_truth(py::handle given, bool& truth) {
  truth = given.ptr() == Py_True;
  return truth || given.ptr() == Py_False;
}

struct GemmSize {
  int64_t m = 0, n = 0, k = 0;

  bool read(py::handle given) {
    if (PyTuple_CheckExact(given.ptr()) || PyList_CheckExact(given.ptr())) {
      PyObject* const* const items = PySequence_Fast_ITEMS(given.ptr());
      return PySequence_Fast_GET_SIZE(given.ptr()) == 3 && read_integer(items[0], m) && read_integer(items[1], n) &&
             read_integer(items[2], k);
    }
    if (!py::isinstance<cutlass::gemm::GemmCoord>(given)) return false;
    auto const& coord = given.cast<cutlass::gemm::GemmCoord const&>();
    m = coord.m();
    n = coord.n();
    k = coord.k();
    return true;
  }
};

/// A tensor that stands for an operand.
struct Taken {
  py::handle tensor;
  TorchKind const* kind = nullptr;
  TensorView view{};
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

class PreparedGemm {
 public:
  /// What an operand must be, and its element type.
  using Described = std::pair<OperandRule, int>;

  /// What a description says of all launches.
  struct Rules {
    std::array<Described, 4> operands;
    std::array<int64_t, 4> most;   // of M, N, K and the batch
    std::array<int64_t, 2> steps;  // of M and N, which a tensor map of C asks for where D is apart
    bool in_place;                 // whether C may be D itself
    int swizzle;
  };

  PreparedGemm(py::object kernel, Rules const& rules, py::object epilogue, bool reads_source, py::object raster_type,
               py::object say_followed)
      : kernel_(kernel.cast<std::shared_ptr<DeviceKernel>>()),
        kernel_object_(std::move(kernel)),
        rules_(rules),
        epilogue_(std::move(epilogue)),
        reads_source_(reads_source),
        raster_type_(std::move(raster_type)),
        say_followed_(std::move(say_followed)) {
    for (size_t role = 0; role < rules_.operands.size(); ++role) {
      kernel_->host().check_element(static_cast<int>(role), rules_.operands[role].second);
    }
  }

  /// A call for tensors of torch on this GPU, checked as pycutlass/arguments does; None where that has to look, which
  /// explains what is wrong, if anything. `epilogue` are packed arguments, or None for those of no `output_op`.
  py::typing::Optional<GemmCall> make(py::handle size, py::handle A, py::handle B, py::handle C, py::handle D,
                                      py::handle mode, py::handle slices, py::handle batch, py::handle bias,
                                      py::handle raster, py::handle pdl, py::handle epilogue, bool reads_source) const {
    try {
      return try_make(size, {A, B, C, D}, mode, slices, batch, bias, raster, pdl, epilogue, reads_source);
    } catch (py::error_already_set const& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return py::none();  // what a tensor raises when it is asked
    }
  }

 private:
  py::object try_make(py::handle given_size, std::array<py::handle, 4> const& tensors, py::handle mode,
                      py::handle slices, py::handle given_batch, py::handle bias, py::handle raster, py::handle pdl,
                      py::handle epilogue, bool reads_source) const {
    GemmSize size;
    int64_t one = 0, batch = 0;
    bool with_pdl = false, as_bias = false, said = !bias.is_none();
    bool const single = mode.is(one_.mode);
    bool const plain = size.read(given_size) && read_integer(slices, one) && one == 1 &&
                       read_integer(given_batch, batch) && (single || mode.is(batched_.mode)) &&
                       (!said || read_truth(bias, as_bias)) && py::type::handle_of(raster).is(raster_type_) &&
                       read_truth(pdl, with_pdl);
    if (!plain || !supports(size, single, batch)) return py::none();
    bool const reads = epilogue.is_none() ? reads_source_ : reads_source;
    if (epilogue.is_none() && (epilogue_.is_none() || !tensors[PYCUTLASS_C].is_none())) return py::none();

    std::array<Taken, 4> operands;
    bool followed = false;
    for (int role : {PYCUTLASS_A, PYCUTLASS_B, PYCUTLASS_D, PYCUTLASS_C}) {
      if (role == PYCUTLASS_C && tensors[PYCUTLASS_C].is_none() && !reads) continue;
      Taken& taken = operands[static_cast<size_t>(role)];
      if (!find(role, tensors[static_cast<size_t>(role)], taken)) return py::none();
      bool const is_followed = taken.kind->is_followed(taken.tensor);
      if (role == PYCUTLASS_D && is_followed) return py::none();
      followed = followed || is_followed;
      if (role == PYCUTLASS_C && !reads) continue;
      if (!place(role, size, batch, said, as_bias, taken)) return py::none();
    }
    if (!writes_apart(operands, reads)) return py::none();

    auto call = std::make_unique<GemmCall>(kernel_);
    call->follow_library(operands[PYCUTLASS_A].kind->api());
    for (int role : {PYCUTLASS_A, PYCUTLASS_B, PYCUTLASS_C, PYCUTLASS_D}) {
      if (role == PYCUTLASS_C && !reads) continue;
      auto const& [rule, element] = rules_.operands[static_cast<size_t>(role)];
      Taken const& taken = operands[static_cast<size_t>(role)];
      call->set_tensor(role, rule, element, taken.placed, *taken.kind, taken.view, taken.tensor);
    }
    call->set_epilogue(py::reinterpret_borrow<py::bytes>(epilogue.is_none() ? py::handle(epilogue_) : epilogue));
    call->set_problem((single ? one_ : batched_).number, static_cast<int>(size.m), static_cast<int>(size.n),
                      static_cast<int>(size.k), static_cast<int>(batch));
    call->set_schedule(rules_.swizzle, static_cast<int>(PyLong_AsLong(raster.ptr())));
    call->set_launch_with_pdl(with_pdl);
    call->set_in_place(rules_.in_place);
    if (call->plan() != 0 || call->workspace_bytes() || !fits_grid(call->config())) return py::none();
    if (followed) say_followed_(tensors[PYCUTLASS_A], tensors[PYCUTLASS_B], tensors[PYCUTLASS_C]);
    py::object made = py::cast(std::move(call));
    py::detail::keep_alive_impl(made, kernel_object_);  // whose end unloads the kernel
    return made;
  }

  bool supports(GemmSize const& size, bool single, int64_t batch) const {
    if (single && batch != 1) return false;
    std::array<int64_t, 4> const extents = {size.m, size.n, size.k, batch};
    for (size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] < 1 || extents[i] > rules_.most[i]) return false;
    }
    return size.m % rules_.steps[0] == 0 && size.n % rules_.steps[1] == 0;
  }

  bool find(int role, py::handle tensor, Taken& taken) const {
    taken.tensor = tensor;
    taken.kind =
        TorchKind::find(tensor, rules_.operands[static_cast<size_t>(role)].second, kernel_->ordinal(), taken.view);
    return taken.kind != nullptr;
  }

  bool place(int role, GemmSize const& size, int64_t batch, bool said, bool as_bias, Taken& taken) const {
    OperandRule rule = rules_.operands[static_cast<size_t>(role)].first;
    if (role == PYCUTLASS_C) {
      rule.matrix = !as_bias;
      rule.bias = !said || as_bias;
    }
    int64_t const rows = role == PYCUTLASS_B ? size.k : size.m, columns = role == PYCUTLASS_A ? size.k : size.n;
    std::optional<PlacedOperand> placed = rule.place(taken.view, rows, columns, batch, role == PYCUTLASS_D);
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
  py::object epilogue_;  // packed arguments where there is no output_op; None where some have no default
  bool reads_source_;    // whether C is read then
  py::object raster_type_, say_followed_;
  Mode one_{"Gemm"}, batched_{"Batched"};
};

}  // namespace
}  // namespace pycutlass

namespace {

template <typename T>
using Four = std::tuple<T, T, T, T>;

template <typename T>
std::array<T, 4> array_of(Four<T> const& four) {
  return std::apply([](auto const&... each) { return std::array<T, 4>{each...}; }, four);
}

}  // namespace

void bind_prepared_gemm(py::module_& m) {
  using namespace pycutlass;
  using Callable = py::typing::Callable<void(py::object, py::object, py::object)>;
  py::class_<PreparedGemm>(m, "PreparedGemm", "What all launches of one GEMM operation on one GPU share.")
      .def(py::init([](std::shared_ptr<DeviceKernel> const& kernel, Four<PreparedGemm::Described> const& operands,
                       Four<int64_t> const& most, std::pair<int64_t, int64_t> const& steps, bool in_place, int swizzle,
                       std::optional<py::bytes> const& epilogue, bool reads_source, py::type raster_type,
                       Callable say_followed) {
             PreparedGemm::Rules const rules{
                 array_of(operands), array_of(most), {steps.first, steps.second}, in_place, swizzle};
             return std::make_unique<PreparedGemm>(py::cast(kernel), rules,
                                                   epilogue ? py::object(*epilogue) : py::object(py::none()),
                                                   reads_source, std::move(raster_type), std::move(say_followed));
           }),
           py::kw_only(), py::arg("kernel"), py::arg("operands"), py::arg("most"), py::arg("steps"),
           py::arg("in_place"), py::arg("swizzle"), py::arg("epilogue"), py::arg("reads_source"),
           py::arg("raster_type"), py::arg("say_followed"))
      .def("make", &PreparedGemm::make, py::arg("problem_size"), py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"),
           py::arg("gemm_mode"), py::arg("split_k_slices"), py::arg("batch"), py::arg("bias"), py::arg("raster_order"),
           py::arg("launch_with_pdl"), py::arg("epilogue"), py::arg("reads_source"),
           "A call for ordinary tensors of torch, or None where a closer look is due.");
}
