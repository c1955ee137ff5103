// What all launches of one convolution share: the kernel of an operation on one GPU, a problem that it was found to
// support, and what tensors must be. It is made once and never changes. And the problems of an operation that were met
// last.
#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings.h"
#include "conv.h"
#include "conv2d_call.h"
#include "conv_rule.h"
#include "integers.h"
#include "prepared_kernel.h"

namespace pycutlass {
namespace {

using cutlass::conv::Conv2dProblemSize;
using cutlass::conv::SplitKMode;

using Made = py::typing::Optional<py::typing::Tuple<Conv2dCall, py::typing::Dict<py::str, py::type>>>;

class PreparedConv2d : private PreparedKernel {
 public:
  /// Where a tensor has to be, of each operand.
  struct Place {
    ConvRule rule;
    Nhwc extent;
  };
  using Places = std::array<Place, 4>;

  PreparedConv2d(py::object kernel, FourGiven const& operands, Places const& places, Conv2dProblemSize const& size,
                 SplitKMode mode, bool takes_bias, Helpers helpers)
      : PreparedKernel(std::move(kernel), operands, true, std::move(helpers)),
        places_(places),
        size_(size),
        mode_(mode),
        takes_bias_(takes_bias) {}

  /// As that of PreparedGemm.
  Made make(py::handle A, py::handle B, py::handle C, py::handle D, py::handle bias, py::bytes const& epilogue,
            bool reads_source) const {
    return unless_refused([&] { return try_make({A, B, C, D}, bias, epilogue, reads_source); });
  }

 private:
  py::object try_make(GivenOperands const& given, py::handle bias, py::bytes const& epilogue, bool reads_source) const {
    bool const said = !bias.is_none(), as_bias = bias.ptr() == Py_True;
    if (said && !as_bias && bias.ptr() != Py_False) return py::none();
    TakenOperands taken;
    taken.reads_source = reads_source;
    auto const find = [&](int role, GivenTensor const& tensor) { return place(role, said, as_bias, tensor); };
    if (!take(given, taken, find)) return py::none();
    auto call = std::make_unique<Conv2dCall>(kernel());
    enter(*call, taken, epilogue);
    call->set_problem(size_, mode_, size_.split_k_slices);
    if (!plan(*call)) return py::none();
    auto [made, libraries] = finish(std::move(call), given, taken[PYCUTLASS_D].tensor, taken.followed);
    return py::make_tuple(std::move(made), std::move(libraries));
  }

  std::optional<PlacedOperand> place(int role, bool said, bool as_bias, GivenTensor const& tensor) const {
    auto const& [rule, extent] = places_[static_cast<size_t>(role)];
    bool const may_be_bias = role == PYCUTLASS_C && takes_bias_ && (!said || as_bias);
    if (may_be_bias && tensor.view().rank == 1) {
      OperandRule vector = rule.rule;
      vector.matrix = false;
      vector.bias = true;
      return vector.place(tensor.view(), int64_t(extent[0]) * extent[1] * extent[2], extent[3]);
    }
    if (role == PYCUTLASS_C && as_bias) return std::nullopt;
    return rule.place(tensor.view(), extent, tensor.of_torch());
  }

  Places places_;
  Conv2dProblemSize size_;  // with the slices of split-K
  SplitKMode mode_;
  bool takes_bias_;
};

/// What was prepared for problems of one operation on one GPU: those that were met last.
class KnownConvolutions {
 public:
  explicit KnownConvolutions(size_t most) : most_(most) {}

  /// What is kept of a problem whose slices of split-K may be given apart; None of another one.
  py::object find(Conv2dProblemSize problem, SplitKMode mode, py::handle given_slices) {
    if (!given_slices.is_none()) {
      int64_t slices = 0;
      if (!read_plain_integer(given_slices, slices) || slices < 1 || slices > kMaxSlices) return py::none();
      if (problem.split_k_slices != 1 && problem.split_k_slices != slices) return py::none();
      problem.split_k_slices = static_cast<int>(slices);
    }
    auto const found = position(problem, mode);
    if (found == problems_.end()) return py::none();
    std::rotate(problems_.begin(), found, std::next(found));
    return problems_.front().kept;
  }

  void keep(Conv2dProblemSize const& problem, SplitKMode mode, py::object kept) {
    if (position(problem, mode) != problems_.end()) return;  // which another thread has kept meanwhile
    problems_.insert(problems_.begin(), {problem, mode, std::move(kept)});
    if (problems_.size() <= most_) return;
    Problem const gone = std::move(problems_.back());  // whose end may call anything, at last
    problems_.pop_back();
  }

  size_t size() const { return problems_.size(); }

 private:
  static constexpr int64_t kMaxSlices = 65535;  // the extent of a grid along z

  struct Problem {
    Conv2dProblemSize size;
    SplitKMode mode;
    py::object kept;
  };

  std::vector<Problem>::iterator position(Conv2dProblemSize const& problem, SplitKMode mode) {
    return std::find_if(problems_.begin(), problems_.end(),
                        [&](Problem const& each) { return each.mode == mode && same_problem(each.size, problem); });
  }

  size_t most_;
  std::vector<Problem> problems_;  // the last one first
};

}  // namespace
}  // namespace pycutlass

void bind_prepared_conv2d(py::module_& m) {
  using namespace pycutlass;
  using Four = std::tuple<int32_t, int32_t, int32_t, int32_t>;
  using Place = std::pair<ConvRule, Four>;
  py::class_<PreparedConv2d>(m, "PreparedConv2d", "What all launches of one convolution on one GPU share.")
      .def(py::init([](std::shared_ptr<DeviceKernel> const& kernel, PreparedKernel::FourGiven const& operands,
                       std::tuple<Place, Place, Place, Place> const& places, Conv2dProblemSize const& size,
                       SplitKMode mode, bool takes_bias, py::object wrap, py::object stream_source,
                       py::object say_followed) {
             auto const place = [](Place const& given) {
               auto const [n, h, w, c] = given.second;
               return PreparedConv2d::Place{given.first, {n, h, w, c}};
             };
             auto const all = [&](auto const&... each) { return PreparedConv2d::Places{place(each)...}; };
             return std::make_unique<PreparedConv2d>(
                 py::cast(kernel), operands, std::apply(all, places), size, mode, takes_bias,
                 PreparedKernel::Helpers{std::move(wrap), std::move(stream_source), std::move(say_followed)});
           }),
           py::kw_only(), py::arg("kernel"), py::arg("operands"), py::arg("places"), py::arg("problem_size"),
           py::arg("split_k_mode"), py::arg("takes_bias"), py::arg("wrap"), py::arg("stream_source"),
           py::arg("say_followed"))
      .def("make", &PreparedConv2d::make, py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"), py::arg("bias"),
           py::arg("epilogue"), py::arg("reads_source"),
           "A call for ordinary tensors of torch or cupy, and their library with a type of its tensors; None where a "
           "closer look is due.");
  py::class_<KnownConvolutions>(m, "KnownConvolutions", "What is kept for the problems that were met last.")
      .def(py::init<size_t>(), py::arg("most"))
      .def("find", &KnownConvolutions::find, py::arg("problem_size"), py::arg("split_k_mode"),
           py::arg("split_k_slices"), "What is kept of a problem as it was given; None of another one.")
      .def("keep", &KnownConvolutions::keep, py::arg("problem_size"), py::arg("split_k_mode"), py::arg("kept"),
           "Keep something of a problem, in the place of what was not asked for the longest time.")
      .def("__len__", &KnownConvolutions::size);
}
