// What an operand is described with, and whether a tensor fits that. What is decided here is decided nowhere else:
// `pycutlass/operands` has a sentence for each rule that may be broken. A tensor that fits plainly is placed without
// Python; what may stand for a matrix in another way is left to that, which asks csrc/operand_check.h.
#pragma once

#include <algorithm>
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

/// What rule is broken; null where none is. `pycutlass/operands/refusals.py` knows them by these names.
using Broken = char const*;

namespace broken {
inline constexpr char kAdjacent[] = "adjacent", kReversed[] = "reversed", kSelfOverlap[] = "self overlap";
inline constexpr char kLdLimit[] = "ld limit", kBatchReversed[] = "batch reversed", kBatchOverlap[] = "batch overlap";
inline constexpr char kLineAlignment[] = "line alignment", kLdAlignment[] = "ld alignment";
inline constexpr char kBatchAlignment[] = "batch alignment", kAddressAlignment[] = "address alignment";
}  // namespace broken

/// Where the lines of a matrix are, or of a batch of matrices, in elements.
template <class Number>
struct Lines {
  Number line = 0, lines = 0;          // elements of a line, and lines of a matrix
  Number ld = 0;                       // from line to line; 0 for one line that stands for all
  Number batch = 1, batch_stride = 0;  // matrices, and from one to the next
};

/// What an operand is described with, and what may stand for it.
struct OperandRule {
  bool row_major = true;
  int64_t bits = 8;                  // of an element
  int64_t alignment = 1;             // in elements, a power of two
  bool matrix = true, bias = false;  // whether it may be a matrix, and a vector that stands for equal lines of one
  int64_t interleave = 1;            // rows or columns that are stored together

  int64_t element_bytes() const { return bits / 8; }
  uint64_t alignment_bytes() const { return static_cast<uint64_t>(alignment * bits / 8); }
  /// Whether lines whose elements are `adjacent` elements apart are lines of a matrix. One line has no step to the
  /// next: libraries put anything there, and `at` gets that of a packed one. The matrices of what is `written` must
  /// lie apart.
  template <class Number>
  static Broken check_steps(Lines<Number>& at, Number adjacent, bool written);
  /// Whether a batch lies as it may.
  template <class Number>
  static Broken check_batch(Lines<Number> const& at, bool written);
  /// Whether lines and address are aligned as described.
  template <class Number>
  Broken check_alignment(uint64_t pointer, Lines<Number> const& at) const;
  /// Where an operand of `rows` x `columns` is, `batch` times; nothing where its tensor needs a closer look. Matrices
  /// of a batch that is `written` must lie one behind the other.
  std::optional<PlacedOperand> place(TensorView const& view, int64_t rows, int64_t columns, int64_t batch = 1,
                                     bool written = false) const;

 private:
  std::optional<PlacedOperand> place_matrix(TensorView const& view, int64_t rows, int64_t columns, int64_t batch,
                                            bool written) const;
  std::optional<PlacedOperand> place_bias(TensorView const& view, int64_t line, int64_t lines) const;
};

inline constexpr int64_t kLdEnd = int64_t(1) << 31;  // CUTLASS keeps leading dimensions of 2.x layouts in 32 bits

template <class Number>
Broken OperandRule::check_steps(Lines<Number>& at, Number adjacent, bool written) {
  if (adjacent != 1 && at.line != 1) return broken::kAdjacent;
  if (at.lines == 1 || at.line == 0) at.ld = at.line;
  if (at.ld < 0) return broken::kReversed;
  if (at.ld < at.line) return broken::kSelfOverlap;
  if (at.ld >= kLdEnd) return broken::kLdLimit;
  return check_batch(at, written);
}

template <class Number>
Broken OperandRule::check_batch(Lines<Number> const& at, bool written) {
  if (at.batch_stride < 0) return broken::kBatchReversed;
  Number const extent = (at.lines - 1) * at.ld + at.line;
  if (!written || at.batch < 2 || at.batch_stride >= extent || at.line == 0) return nullptr;
  if (at.batch_stride < at.line) return broken::kBatchOverlap;
  // The first lines of the matrices behind the first one are themselves lines, a batch stride apart. Where they miss
  // the lines of the first, all others do.
  Number const behind = std::min<Number>(at.batch - 1, (extent - 1) / at.batch_stride);
  auto const line = static_cast<uint64_t>(at.line), step = static_cast<uint64_t>(at.batch_stride);
  Span const first{0, static_cast<uint64_t>(extent), line, at.lines > 1 ? static_cast<uint64_t>(at.ld) : 0};
  Span const others{step, (static_cast<uint64_t>(behind) - 1) * step + line, line, behind > 1 ? step : 0};
  return first.overlaps(others) ? broken::kBatchOverlap : nullptr;
}

template <class Number>
Broken OperandRule::check_alignment(uint64_t pointer, Lines<Number> const& at) const {
  if (at.line % alignment) return broken::kLineAlignment;
  if (at.ld % alignment) return broken::kLdAlignment;
  if (at.batch_stride % alignment) return broken::kBatchAlignment;
  return pointer % alignment_bytes() ? broken::kAddressAlignment : nullptr;
}

}  // namespace pycutlass
