#include "operand_rule.h"

namespace pycutlass {
namespace {

// Bytes that no GPU can address. Where steps lead beyond, sizes in 64 bits would wrap around.
constexpr int64_t kAddressable = int64_t(1) << 57;

}  // namespace

std::optional<PlacedOperand> OperandRule::place(TensorView const& view, int64_t rows, int64_t columns, int64_t batch,
                                                bool written) const {
  int64_t const line = row_major ? columns : rows, lines = row_major ? rows : columns;
  if (matrix && view.rank >= 2) return place_matrix(view, rows, columns, batch, written);
  if (bias && view.rank == 1) return place_bias(view, line, lines);
  return std::nullopt;
}

std::optional<PlacedOperand> OperandRule::place_matrix(TensorView const& view, int64_t rows, int64_t columns,
                                                       int64_t batch, bool written) const {
  // One matrix that a batch shares may also be a bias for each of it, or something that is written over and over.
  bool const in_batch = view.rank == 3 && batch > 1 && view.sizes[0] == batch;
  if (!in_batch && (view.rank != 2 || (batch > 1 && (bias || written)))) return std::nullopt;
  int64_t const *sizes = view.sizes + in_batch, *strides = view.strides + in_batch;
  if (sizes[0] != rows || sizes[1] != columns) return std::nullopt;
  int64_t const line = row_major ? columns : rows, lines = row_major ? rows : columns;
  uint64_t const line_bytes = static_cast<uint64_t>(line * element_bytes());
  // Of one without elements, neither its address nor its strides mean anything.
  if (line == 0 || lines == 0) return PlacedOperand{{view.pointer, 0, line_bytes, 0}, line, 0};
  // Single elements have a step of 1 here, too: with another they may be a view that is to be negated, as torch's
  // imaginary part of a conjugate.
  if (!view.pointer || strides[row_major] != 1) return std::nullopt;
  Lines<int64_t> at{line, lines, strides[!row_major], batch, in_batch ? view.strides[0] : 0};
  if (check_steps<int64_t>(at, 1, written) || check_alignment(view.pointer, at)) return std::nullopt;
  int64_t const ld = at.ld, batch_stride = at.batch_stride, extent = (lines - 1) * ld + line;
  int64_t const most = kAddressable / element_bytes();
  if (view.pointer >= static_cast<uint64_t>(kAddressable) || extent > most) return std::nullopt;
  if (in_batch && batch_stride > (most - extent) / (batch - 1)) return std::nullopt;
  if (in_batch && batch_stride) {
    uint64_t const bytes = static_cast<uint64_t>(((batch - 1) * batch_stride + extent) * element_bytes());
    return PlacedOperand{{view.pointer, bytes, bytes, 0}, ld, batch_stride};
  }
  uint64_t const pitch = lines > 1 ? static_cast<uint64_t>(ld * element_bytes()) : 0;
  return PlacedOperand{{view.pointer, static_cast<uint64_t>(extent * element_bytes()), line_bytes, pitch}, ld, 0};
}

std::optional<PlacedOperand> OperandRule::place_bias(TensorView const& view, int64_t line, int64_t lines) const {
  if (view.sizes[0] != line || line == 0 || lines < 2 || view.strides[0] != 1) return std::nullopt;
  if (!view.pointer || check_alignment(view.pointer, Lines<int64_t>{line, 1})) return std::nullopt;
  uint64_t const bytes = static_cast<uint64_t>(line * element_bytes());
  return PlacedOperand{{view.pointer, bytes, bytes, 0}, 0, 0};
}

}  // namespace pycutlass
