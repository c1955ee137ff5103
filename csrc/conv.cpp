// Convolutions: enumerations, Conv2dProblemSize, and the implicit GEMM that a convolution is.
#include "conv.h"

#include <pybind11/stl.h>

#include <array>
#include <iterator>
#include <optional>
#include <utility>

namespace {

using cutlass::MatrixCoord;
using cutlass::Tensor4DCoord;
using cutlass::conv::Conv2dProblemSize;
using cutlass::conv::Mode;
using cutlass::conv::Operator;

void bind_enums(py::module_& m) {
  using namespace cutlass::conv;
  py::native_enum<Operator>(m, "ConvOperator", kChoice, "What a convolution computes.")
      .value("fprop", Operator::kFprop, "output from activation and filter")
      .value("dgrad", Operator::kDgrad, "gradient of the activation")
      .value("wgrad", Operator::kWgrad, "gradient of the filter")
      .finalize();
  publish_enum(m, kConv, "ConvOperator", "Operator");

  py::native_enum<Mode>(m, "ConvMode", kChoice, "Whether the filter is flipped.")
      .value("cross_correlation", Mode::kCrossCorrelation, "it is not: what neural networks call convolution")
      .value("convolution", Mode::kConvolution, "it is")
      .finalize();
  publish_enum(m, kConv, "ConvMode", "Mode");

  py::native_enum<IteratorAlgorithm>(m, "IteratorAlgorithm", kChoice, "How a kernel walks through its operands.")
      .value("analytic", IteratorAlgorithm::kAnalytic, "always correct, slower")
      .value("optimized", IteratorAlgorithm::kOptimized, "R, S <= 32; for dgrad only with unit stride")
      .value("fixed_channels", IteratorAlgorithm::kFixedChannels, "C equals the alignment")
      .value("few_channels", IteratorAlgorithm::kFewChannels, "C is small and divisible by the alignment")
      .finalize();
  publish_enum(m, kConv, "IteratorAlgorithm", "IteratorAlgorithm");

  py::native_enum<StrideSupport>(m, "StrideSupport", kChoice, "Which convolution strides a kernel takes.")
      .value("strided", StrideSupport::kStrided, "any")
      .value("unity", StrideSupport::kUnity, "one only")
      .finalize();
  publish_enum(m, kConv, "StrideSupport", "StrideSupport");

  py::native_enum<SplitKMode>(m, "SplitKMode", kChoice,
                              "How slices of the k extent are put together. NoSplit can be written; it is an alias of "
                              "CUTLASS's own name, None, which needs getattr.")
      .value("None", SplitKMode::kNone, "k is not split")
      .value("NoSplit", SplitKMode::kNone)
      .value("Serial", SplitKMode::kSerial, "slices take turns in one kernel")
      .value("Parallel", SplitKMode::kParallel, "a second kernel reduces the slices")
      .finalize();
  publish_enum(m, kConv, "SplitKMode", "SplitKMode");
}

// The attributes, in the order of CUTLASS's constructor, with the least value that makes sense. No images and no
// channels do: the output is empty then, or the sums have no products.
struct Field {
  char const* name;
  int Conv2dProblemSize::* member;
  int least;
};

constexpr char kName[] = "Conv2dProblemSize";

constexpr Field kFields[] = {
    {"N", &Conv2dProblemSize::N, 0},
    {"H", &Conv2dProblemSize::H, 1},
    {"W", &Conv2dProblemSize::W, 1},
    {"C", &Conv2dProblemSize::C, 0},
    {"K", &Conv2dProblemSize::K, 0},
    {"R", &Conv2dProblemSize::R, 1},
    {"S", &Conv2dProblemSize::S, 1},
    {"P", &Conv2dProblemSize::P, 1},
    {"Q", &Conv2dProblemSize::Q, 1},
    {"pad_h", &Conv2dProblemSize::pad_h, 0},
    {"pad_w", &Conv2dProblemSize::pad_w, 0},
    {"stride_h", &Conv2dProblemSize::stride_h, 1},
    {"stride_w", &Conv2dProblemSize::stride_w, 1},
    {"dilation_h", &Conv2dProblemSize::dilation_h, 1},
    {"dilation_w", &Conv2dProblemSize::dilation_w, 1},
    {"split_k_slices", &Conv2dProblemSize::split_k_slices, 1},
    {"groups", &Conv2dProblemSize::groups, 1},
};

// Output extent along one axis, by the formula that the frameworks use. CUTLASS's own constructor multiplies the
// whole filter with the dilation, which is one short of this for every dilation above 1.
int output_extent(char const* axis, int input, int filter, int pad, int stride, int dilation) {
  std::int64_t span = std::int64_t(dilation) * (filter - 1) + 1;
  std::int64_t padded = input + 2 * std::int64_t(pad);
  if (span > padded) {
    throw py::value_error(std::string("Conv2dProblemSize: the dilated filter must fit the padded input; along ") +
                          axis + " the filter spans " + std::to_string(span) + " and the padded input has " +
                          std::to_string(padded));
  }
  return fits_index((padded - span) / stride + 1, std::string("Conv2dProblemSize: the output extent along ") + axis);
}

int output_height(Conv2dProblemSize const& p) {
  return output_extent("h", p.H, p.R, p.pad_h, p.stride_h, p.dilation_h);
}

int output_width(Conv2dProblemSize const& p) { return output_extent("w", p.W, p.S, p.pad_w, p.stride_w, p.dilation_w); }

// Refuses what no kernel can run.
void require_valid(Conv2dProblemSize const& p) {
  for (Field const& field : kFields) checked<int>(AnyInt{py::int_(p.*field.member)}, kName, field.name, field.least);
  for (auto [name, channels] : {std::pair{"C", p.C}, std::pair{"K", p.K}}) {
    if (channels % p.groups) {
      throw py::value_error(std::string("Conv2dProblemSize: groups must divide ") + name + "; got groups = " +
                            std::to_string(p.groups) + " and " + name + " = " + std::to_string(channels));
    }
  }
}

// CUTLASS's own constructor reads items 0 and 2, and scripts leave the others 0.
int symmetric(Tensor4DCoord const& padding, int before, char const* axis) {
  if (padding[before + 1] != 0 && padding[before] != padding[before + 1]) {
    throw py::value_error(std::string("Conv2dProblemSize: padding must be the same before and after; along ") + axis +
                          " it is " + std::to_string(padding[before]) + " and " + std::to_string(padding[before + 1]) +
                          ". padding is (h, h, w, w) or (h, 0, w, 0), and CUTLASS's kernels know one value "
                          "for each axis: pad the input tensor with zeros first, and pass what is left");
  }
  return padding[before];
}

Conv2dProblemSize from_coords(Tensor4DCoord const& input, Tensor4DCoord const& filter, Tensor4DCoord const& padding,
                              MatrixCoord const& stride, MatrixCoord const& dilation, Mode mode,
                              AnyInt const& split_k_slices, AnyInt const& groups) {
  int pad_h = symmetric(padding, 0, "h");
  int pad_w = symmetric(padding, 2, "w");
  Conv2dProblemSize p(input.n(), input.h(), input.w(), input.c(), filter.n(), filter.h(), filter.w(), 1, 1, pad_h,
                      pad_w, stride.row(), stride.column(), dilation.row(), dilation.column(), mode,
                      checked<int>(split_k_slices, kName, "split_k_slices"), checked<int>(groups, kName, "groups"));
  require_valid(p);
  if (filter.c() != p.C && p.groups == 1) {
    // CUTLASS's own constructor does not read it. Tensors are checked against the input's channels all the same.
    py::module_::import("pycutlass.log")
        .attr("say_once")("Conv2dProblemSize: filter_size.c=" + std::to_string(filter.c()) +
                          " is ignored, the filter has the channels of the input, " + std::to_string(p.C) +
                          "; extents are in the order (N, H, W, C) and (K, R, S, C)");
  } else if (filter.c() != p.C / p.groups) {
    throw py::value_error("Conv2dProblemSize: filter_size.c must be input_size.c / groups; got " +
                          std::to_string(filter.c()) + ", and " + std::to_string(p.C) + " / " +
                          std::to_string(p.groups) + ". Extents are in the order (N, H, W, C) and (K, R, S, C)");
  }
  p.P = output_height(p);
  p.Q = output_width(p);
  return p;
}

// One entry for each of kFields; null stands for an output extent that is to be computed.
Conv2dProblemSize from_integers(std::array<AnyInt const*, std::size(kFields)> const& numbers, Mode mode) {
  Conv2dProblemSize p;
  p.mode = mode;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    p.*kFields[i].member = numbers[i] ? checked<int>(*numbers[i], kName, kFields[i].name, kFields[i].least) : 1;
  }
  require_valid(p);
  if (!numbers[7]) p.P = output_height(p);
  if (!numbers[8]) p.Q = output_width(p);
  return p;
}

py::tuple state(Conv2dProblemSize const& p) {
  py::list values;
  for (std::size_t i = 0; i < 15; ++i) values.append(p.*kFields[i].member);
  values.append(p.mode);
  values.append(p.split_k_slices);
  values.append(p.groups);
  return py::tuple(values);
}

std::string repr(Conv2dProblemSize const& p) {
  std::string text = "Conv2dProblemSize(";
  for (Field const& field : kFields) text += std::string(field.name) + "=" + std::to_string(p.*field.member) + ", ";
  return text + "mode=Mode." + (p.mode == Mode::kConvolution ? "convolution" : "cross_correlation") + ")";
}

void bind_constructors(py::class_<Conv2dProblemSize>& cls) {
  using Optional = std::optional<AnyInt>;
  cls.def(py::init([](AnyInt const& N, AnyInt const& H, AnyInt const& W, AnyInt const& C, AnyInt const& K,
                      AnyInt const& R, AnyInt const& S, Optional const& P, Optional const& Q, AnyInt const& pad_h,
                      AnyInt const& pad_w, AnyInt const& stride_h, AnyInt const& stride_w, AnyInt const& dilation_h,
                      AnyInt const& dilation_w, Mode mode, AnyInt const& split_k_slices, AnyInt const& groups) {
            return from_integers({&N, &H, &W, &C, &K, &R, &S, P ? &*P : nullptr, Q ? &*Q : nullptr, &pad_h, &pad_w,
                                  &stride_h, &stride_w, &dilation_h, &dilation_w, &split_k_slices, &groups},
                                 mode);
          }),
          py::arg("N"), py::arg("H"), py::arg("W"), py::arg("C"), py::arg("K"), py::arg("R"), py::arg("S"),
          py::arg("P") = py::none(), py::arg("Q") = py::none(), py::arg("pad_h") = 0, py::arg("pad_w") = 0,
          py::arg("stride_h") = 1, py::arg("stride_w") = 1, py::arg("dilation_h") = 1, py::arg("dilation_w") = 1,
          py::arg("mode") = Mode::kCrossCorrelation, py::arg("split_k_slices") = 1, py::arg("groups") = 1,
          "From integers. P and Q, where left out, follow from the rest; where given, they are taken as they are.");
  cls.def(py::init(&from_coords), py::arg("input_size"), py::arg("filter_size"),
          py::arg("padding") = Tensor4DCoord(0, 0, 0, 0), py::arg("stride") = MatrixCoord(1, 1),
          py::arg("dilation") = MatrixCoord(1, 1), py::arg("mode") = Mode::kCrossCorrelation,
          py::arg("split_k_slices") = 1, py::arg("groups") = 1,
          "From extents: input (N, H, W, C), filter (K, R, S, C / groups), padding (h, h, w, w) or, "
          "which is the same, (h, 0, w, 0).");
}

void bind_problem_size(py::module_& m) {
  auto cls = public_class<Conv2dProblemSize>(
      m, kConv, "Conv2dProblemSize",
      "Extents and parameters of a 2-D convolution. Attributes may be set; the others, P and Q too, stay as they are. "
      "Equality compares every attribute; being mutable, it has no hash.");
  bind_constructors(cls);
  for (Field const& field : kFields) {
    cls.def_property(
        field.name, [field](Conv2dProblemSize const& p) { return p.*field.member; },
        [field](Conv2dProblemSize& p, py::object const& value) {
          p.*field.member = checked<int>(integer(value, kName, field.name), kName, field.name, field.least);
        });
  }
  cls.def_property(
         "mode", [](Conv2dProblemSize const& p) { return p.mode; },
         py::cpp_function([](Conv2dProblemSize& p, Mode mode) { p.mode = mode; }, py::name("mode"), py::is_method(cls),
                          py::arg("mode")))
      .def(
          "reset_split_k_slices",
          [](Conv2dProblemSize p, AnyInt const& split_k_slices) {
            return p.reset_split_k_slices(checked<int>(split_k_slices, kName, "split_k_slices", 1));
          },
          py::arg("split_k_slices"), "A copy with this split_k_slices.")
      .def(
          "reset_mode", [](Conv2dProblemSize p, Mode mode) { return p.reset_mode(mode); }, py::arg("mode"),
          "A copy with this mode.")
      .def("activation_extent", &Conv2dProblemSize::activation_extent, "(N, H, W, C)")
      .def(
          "filter_extent", [](Conv2dProblemSize const& p) { return p.filter_extent(); }, "(K, R, S, C / groups)")
      .def("output_extent", &Conv2dProblemSize::output_extent, "(N, P, Q, K)")
      .def("activation_size", &Conv2dProblemSize::activation_size, "Number of elements of the activation.")
      .def("filter_size", &Conv2dProblemSize::filter_size, "Number of elements of the filter.")
      .def("output_size", &Conv2dProblemSize::output_size, "Number of elements of the output.")
      .def("padding", &Conv2dProblemSize::padding, "(pad_h, pad_h, pad_w, pad_w)")
      .def("stride", &Conv2dProblemSize::stride, "(stride_h, stride_w)")
      .def("dilation", &Conv2dProblemSize::dilation, "(dilation_h, dilation_w)")
      .def("__eq__", &same_problem, py::is_operator())
      .def("__repr__", &repr)
      .def("__reduce__",
           [](Conv2dProblemSize const& p) { return py::make_tuple(py::type::of<Conv2dProblemSize>(), state(p)); });
}

template <typename Function>
void bind_function(py::module_& m, char const* name, Function function, char const* doc) {
  m.def(name, function, py::arg("conv_operator"), py::arg("problem_size"), doc);
  m.attr(name).attr("__module__") = kConv;
}

void bind_implicit_gemm(py::module_& m) {
  using namespace cutlass::conv;
  bind_function(m, "implicit_gemm_problem_size", &checked_implicit_gemm, "The matrix product that the convolution is.");
  bind_function(m, "implicit_gemm_tensor_a_extent", &implicit_gemm_tensor_a_extent, "Extent of operand A.");
  bind_function(m, "implicit_gemm_tensor_b_extent", &implicit_gemm_tensor_b_extent, "Extent of operand B.");
  bind_function(m, "implicit_gemm_tensor_c_extent", &implicit_gemm_tensor_c_extent, "Extent of C and D.");
  bind_function(m, "implicit_gemm_tensor_a_size", &implicit_gemm_tensor_a_size, "Number of elements of operand A.");
  bind_function(m, "implicit_gemm_tensor_b_size", &implicit_gemm_tensor_b_size, "Number of elements of operand B.");
  bind_function(m, "implicit_gemm_tensor_c_size", &implicit_gemm_tensor_c_size, "Number of elements of C and of D.");
}

void require_product_fits(char const* what, std::int64_t a, std::int64_t b, std::int64_t c) {
  std::string const name = std::string("implicit GEMM: ") + what;
  fits_index(fits_index(a * b, name) * c, name);
}

}  // namespace

cutlass::gemm::GemmCoord checked_implicit_gemm(Operator op, Conv2dProblemSize const& p) {
  if (op == Operator::kDgrad) {
    require_product_fits("N * H * W", p.N, p.H, p.W);
    require_product_fits("R * S * K", p.R, p.S, p.K);
  } else {
    require_product_fits("N * P * Q", p.N, p.P, p.Q);
    require_product_fits("R * S * C", p.R, p.S, p.C);
  }
  return cutlass::conv::implicit_gemm_problem_size(op, p);
}

bool same_problem(Conv2dProblemSize const& a, Conv2dProblemSize const& b) {
  // CUTLASS's own operator leaves out mode, split_k_slices and groups
  return a == b && a.mode == b.mode && a.split_k_slices == b.split_k_slices && a.groups == b.groups;
}

void bind_conv(py::module_& m) {
  bind_enums(m);
  bind_problem_size(m);
  bind_implicit_gemm(m);
}
