// What an operand is described with, and whether a tensor fits that plainly. Only what `pycutlass/operands` would take
// is taken here, as it would take it; all else is left to that, which explains.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "overlap.h"
#include "tensor_signature.h"

namespace pycutlass {

/// A matrix, or a batch of them, in memory. Its leading dimension is 0 where it is a vector that stands for equal
/// lines.
struct PlacedOperand {
  Span span;  // of the first matrix; of a batch of several, one line from the first byte to the end of the last
  int64_t ld = 0, batch_stride = 0;

  /// Whether the two are the same matrices.
  bool same_place(PlacedOperand const& other) const {
    return span.begin == other.span.begin && ld == other.ld && batch_stride == other.batch_stride;
  }
};

/// What an operand is described with, and what may stand for it.
struct OperandRule {
  bool row_major = true;
  int64_t element_bytes = 1;
  int64_t alignment = 1;             // in elements, a power of two
  bool matrix = true, bias = false;  // whether it may be a matrix, and a vector that stands for equal lines of one

  uint64_t alignment_bytes() const { return static_cast<uint64_t>(alignment * element_bytes); }
  /// Where an operand of `rows` x `columns` is, `batch` times; nothing where its tensor needs a closer look. Matrices
  /// of a batch that is `written` must lie one behind the other.
  std::optional<PlacedOperand> place(TensorView const& view, int64_t rows, int64_t columns, int64_t batch = 1,
                                     bool written = false) const;

 private:
  std::optional<PlacedOperand> place_matrix(TensorView const& view, int64_t rows, int64_t columns, int64_t batch,
                                            bool written) const;
  std::optional<PlacedOperand> place_bias(TensorView const& view, int64_t line, int64_t lines) const;
};

/// Adds the class to the module.
void bind_operand_rule(pybind11::module_& m);

}  // namespace pycutlass
