// What an operand of a convolution is described with, and whether a tensor fits that: pixels a constant step apart with
// their channels adjacent, or channels in groups of 32 without gaps. What is decided here is decided nowhere else:
// `pycutlass/operands/conv_refusals.py` has a sentence for each rule that may be broken.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "dimensions.h"
#include "operand_rule.h"

namespace pycutlass {

namespace broken {
inline constexpr char kFlatStep[] = "flat step";  // of matrices as well
inline constexpr char kElements[] = "elements", kExtents[] = "extents", kPixels[] = "pixels", kNoElements[] = "empty";
inline constexpr char kGroupExtents[] = "group extents", kGroupSteps[] = "group steps";
inline constexpr char kReach[] = "reach", kGaps[] = "gaps";
}  // namespace broken

/// N, H, W and C of an activation; K, R, S and C of a filter.
using Nhwc = std::array<int32_t, 4>;

enum class ConvLayout { kNhwc, kNc32hw32, kC32rsk32 };

struct ConvRule {
  OperandRule rule;
  ConvLayout layout = ConvLayout::kNhwc;
  int64_t byte_limit = int64_t(1) << 31;  // the operand spans less: CUTLASS's offsets have 32 bits
  bool packed = false;                    // whether pixels must lie one behind the other

  /// What rule a tensor breaks; where none, `at` is where its lines are. An address alone has no dimensions. A tensor
  /// of torch that may be (N, C, H, W) is that, as its convolutions take it; others are (N, H, W, C) where they may be.
  Broken check(uint64_t pointer, std::optional<Dimensions> const& given, Nhwc const& extent, bool of_torch,
               Lines<Wide>& at) const;
  /// Where a tensor of four dimensions in memory is; nothing where it needs a closer look.
  std::optional<PlacedOperand> place(TensorView const& view, Nhwc const& extent, bool of_torch) const;

 private:
  Lines<Wide> lines_of(Nhwc const& extent) const;
  Broken check_form(Dimensions const& given, Nhwc const& extent, bool of_torch, Lines<Wide>& at) const;
  bool has_groups(Dimensions const& given, Nhwc const& extent) const;
  Broken check_extent(Lines<Wide> const& at) const;
};

}  // namespace pycutlass
