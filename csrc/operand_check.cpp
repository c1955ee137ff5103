#include "operand_check.h"

#include <pybind11/native_enum.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conv_rule.h"
#include "dimensions.h"

namespace py = pybind11;

namespace pycutlass {
namespace broken {

constexpr char kInterleave[] = "interleave", kFlatElements[] = "flat elements";
constexpr char kDimensions[] = "dimensions", kShape[] = "shape", kRowsApart[] = "rows apart";
constexpr char kOtherLayout[] = "other layout";  // elements are not adjacent, and would be in the other layout
constexpr char kColumn[] = "column", kVector[] = "vector";

}  // namespace broken

namespace {

/// The number of elements, or of what no matrix has.
Wide product(Dimensions const& dimensions, size_t count) {
  Wide elements = 1;
  for (size_t axis = 0; axis < count; ++axis) {
    if (__builtin_mul_overflow(elements, dimensions[axis].extent, &elements)) return -1;
  }
  return elements;
}

Dimensions without_singles(Dimensions dimensions, size_t count) {
  dimensions.resize(count);
  dimensions.erase(
      std::remove_if(dimensions.begin(), dimensions.end(), [](auto const& one) { return one.extent == 1; }),
      dimensions.end());
  return dimensions;
}

/// An operand that is looked for in what was given, and where it is found there.
struct Sought {
  OperandRule const& rule;
  uint64_t pointer;
  Wide rows, columns;
  bool written;  // whether launches write to it
  bool folds;    // whether leading dimensions may be rows
  Lines<Wide> at{};

  Sought(OperandRule const& described, uint64_t address, py::handle row_count, py::handle column_count,
         py::handle batch, bool is_written, bool may_fold)
      : rule(described),
        pointer(address),
        rows(read_wide(row_count)),
        columns(read_wide(column_count)),
        written(is_written),
        folds(may_fold) {
    at.line = (rule.row_major ? columns : rows) * rule.interleave;
    at.lines = across() / rule.interleave;
    at.batch = read_wide(batch);
  }

  Wide across() const { return rule.row_major ? rows : columns; }

  Broken as_matrix(std::optional<Dimensions> const& given) {
    at.ld = at.line;
    at.batch_stride = at.batch > 1 ? rows * columns : 0;
    if (across() % rule.interleave) return broken::kInterleave;
    if (!given) return at.ld >= kLdEnd ? broken::kLdLimit : nullptr;
    if (given->size() == 1) return as_flat(given->front());
    return as_strided(*given);
  }

  /// One of a matrix's elements for each line: a vector that stands for equal lines of a matrix.
  Broken as_vector(std::optional<Dimensions> const& given) {
    at.lines = 1;
    Broken const found = given ? find_vector(*given) : nullptr;
    return found ? found : OperandRule::check_batch(at, written);
  }

 private:
  Broken as_flat(Dimension const& given) {
    Wide const one = rows * columns;
    if (given.step != 1 && given.extent != 1) return broken::kFlatStep;
    if (given.extent != one * at.batch) {
      if (given.extent != one || written) return broken::kFlatElements;
      at.batch_stride = 0;  // all the batch shares it
    }
    return at.ld >= kLdEnd ? broken::kLdLimit : nullptr;
  }

  Broken as_strided(Dimensions given) {
    if (rule.interleave > 1) return broken::kDimensions;
    at.batch_stride = 0;
    if (given.size() == 3 && at.batch > 1) {
      if (given[0].extent != at.batch) return broken::kShape;
      at.batch_stride = given[0].step;
      given.erase(given.begin());
    }
    if (given.size() > 2) {
      if (Broken const found = fold(given)) return found;
    }
    if (given.size() != 2 || given[0].extent != rows || given[1].extent != columns) return broken::kShape;
    Wide const adjacent = given[rule.row_major].step;
    at.ld = given[!rule.row_major].step;
    Broken const found = OperandRule::check_steps(at, adjacent, written);
    return found == broken::kAdjacent && fits_turned(adjacent) ? broken::kOtherLayout : found;
  }

  /// Whether the other layout would have such lines.
  bool fits_turned(Wide step) const {
    return at.ld == 1 && step >= across() && !rule.check_alignment(pointer, Lines<Wide>{across(), 1, step});
  }

  /// Leaves two of more dimensions, where the others are single, or rows a constant step apart.
  Broken fold(Dimensions& given) const {
    size_t const outer = given.size() - 1;
    Dimensions const kept = without_singles(given, outer - 1);
    Dimension const last = given.back();
    if (kept.empty()) {
      given.erase(given.begin(), given.end() - 2);
    }
    if (given.size() == 2 || !folds || last.extent != columns || product(given, outer) != rows) return nullptr;
    Dimensions const several = without_singles(given, outer);
    for (size_t axis = 1; axis < several.size(); ++axis) {
      if (several[axis - 1].step != several[axis].extent * several[axis].step) return broken::kRowsApart;
    }
    given = {{rows, several.empty() ? given[outer - 1].step : several.back().step}, last};
    return nullptr;
  }

  Broken find_vector(Dimensions const& given) {
    // Of ColumnMajor it could be (1, M), which is a batch of one vector as well.
    size_t const rank = given.size();
    bool const is_column = rank > 1 && given[rank - 2].extent == at.line && given[rank - 1].extent == 1;
    if (rule.row_major && rows == columns && rows != 1 && is_column) return broken::kColumn;
    // Singleton dimensions say nothing: (N,), (1, N) and (batch, 1, N) are taken alike.
    Dimensions kept = without_singles(given, rank);
    Dimension const one{at.line, 1};
    if (kept == Dimensions{one} || (kept.empty() && at.line == 1)) return nullptr;
    if (at.batch < 2) return broken::kVector;
    if (kept == Dimensions{{at.line * at.batch, 1}}) {
      at.batch_stride = at.line;
      return nullptr;
    }
    if (at.line <= 1) kept.push_back(one);
    if (kept.size() != 2 || kept[0].extent != at.batch || !(kept[1] == one)) return broken::kVector;
    at.batch_stride = kept[0].step;
    return nullptr;
  }
};

/// Leading dimension and batch stride of what was given, and the name of the rule that it breaks; empty where it fits.
using Verdict = py::typing::Tuple<py::int_, py::int_, py::str>;

Verdict verdict_of(Lines<Wide> const& at, Broken found) {
  return py::make_tuple(as_python(at.ld), as_python(at.batch_stride), py::str(found ? found : ""));
}

Verdict verdict_of(Sought const& sought, Broken found) {
  return verdict_of(sought.at, found ? found : sought.rule.check_alignment(sought.pointer, sought.at));
}

void bind_conv_rule(py::module_& m) {
  py::native_enum<ConvLayout>(m, "ConvLayout", "enum.Enum", "How an operand of a convolution is laid out.")
      .value("TensorNHWC", ConvLayout::kNhwc)
      .value("TensorNC32HW32", ConvLayout::kNc32hw32)
      .value("TensorC32RSK32", ConvLayout::kC32rsk32)
      .finalize();
  py::class_<ConvRule>(m, "ConvRule", "What an operand of a convolution is described with.")
      .def(py::init([](OperandRule const& rule, ConvLayout layout, int64_t byte_limit, bool packed) {
             return ConvRule{rule, layout, byte_limit, packed};
           }),
           py::arg("rule"), py::arg("layout"), py::arg("byte_limit"), py::arg("packed"))
      .def(
          "check",
          [](ConvRule const& rule, uint64_t pointer, py::object const& shape, py::object const& strides,
             std::tuple<int32_t, int32_t, int32_t, int32_t> const& extent, bool of_torch) {
            auto const [n, h, w, c] = extent;
            Lines<Wide> at;
            Broken const found = rule.check(pointer, read_dimensions(shape, strides), {n, h, w, c}, of_torch, at);
            return verdict_of(at, found);
          },
          py::arg("pointer"), py::arg("shape"), py::arg("strides"), py::arg("extent"), py::arg("of_torch"),
          "Leading dimension and batch stride of a tensor, and the name of the rule that it breaks; empty where it "
          "fits. An address alone has neither shape nor strides. `extent` is (N, H, W, C), or (K, R, S, C).");
  using namespace broken;
  m.attr("CONV_RULES") =
      py::make_tuple(kElements, kExtents, kPixels, kNoElements, kGroupExtents, kGroupSteps, kReach, kGaps);
}

}  // namespace

void bind_operand_rule(py::module_& m) {
  py::class_<OperandRule>(m, "OperandRule", "What an operand is described with, and what may stand for it.")
      .def(py::init([](bool row_major, int64_t bits, int64_t alignment, bool matrix, bool bias, int64_t interleave) {
             return OperandRule{row_major, bits, alignment, matrix, bias, interleave};
           }),
           py::arg("row_major"), py::arg("bits"), py::arg("alignment"), py::arg("matrix") = true,
           py::arg("bias") = true, py::arg("interleave") = 1)
      .def(
          "check_matrix",
          [](OperandRule const& rule, uint64_t pointer, py::object const& shape, py::object const& strides,
             py::object const& rows, py::object const& columns, py::object const& batch, bool written, bool folds) {
            Sought sought(rule, pointer, rows, columns, batch, written, folds);
            Broken const found = sought.as_matrix(read_dimensions(shape, strides));
            return verdict_of(sought, found);
          },
          py::arg("pointer"), py::arg("shape"), py::arg("strides"), py::arg("rows"), py::arg("columns"),
          py::arg("batch") = 1, py::arg("written") = false, py::arg("folds") = true,
          "Leading dimension and batch stride of a matrix, and the name of the rule that it breaks; empty where it "
          "fits. An address alone has neither shape nor strides. Leading dimensions may be rows where it `folds`.")
      .def(
          "check_vector",
          [](OperandRule const& rule, uint64_t pointer, py::object const& shape, py::object const& strides,
             py::object const& rows, py::object const& columns, py::object const& batch, bool written) {
            Sought sought(rule, pointer, rows, columns, batch, written, false);
            Broken const found = sought.as_vector(read_dimensions(shape, strides));
            return verdict_of(sought, found);
          },
          py::arg("pointer"), py::arg("shape"), py::arg("strides"), py::arg("rows"), py::arg("columns"),
          py::arg("batch") = 1, py::arg("written") = false,
          "The same of a vector that stands for equal lines of a matrix; its leading dimension is 0.");
  using namespace broken;
  m.attr("OPERAND_RULES") =
      py::make_tuple(kInterleave, kFlatStep, kFlatElements, kDimensions, kShape, kRowsApart, kAdjacent, kOtherLayout,
                     kReversed, kSelfOverlap, kLdLimit, kBatchReversed, kBatchOverlap, kColumn, kVector, kLineAlignment,
                     kLdAlignment, kBatchAlignment, kAddressAlignment);
  bind_conv_rule(m);
}

}  // namespace pycutlass
