#include "conv_rule.h"

#include <algorithm>
#include <utility>

namespace pycutlass {
namespace {

/// Where N, H, W and C are in the dimensions of a tensor.
using Order = std::array<size_t, 4>;

constexpr Order kChannelsLast{0, 1, 2, 3}, kChannelsFirst{0, 2, 3, 1};

bool has_extents(Dimension const* four, Nhwc const& extent, Order const& order) {
  for (size_t axis = 0; axis < order.size(); ++axis) {
    if (four[order[axis]].extent != extent[axis]) return false;
  }
  return true;
}

/// How many elements pixels are apart, where that is one number and the channels of a pixel are adjacent.
std::optional<Wide> pixel_step(Dimension const* four, Nhwc const& extent, Order const& order) {
  auto const [n, h, w, c] = extent;
  auto const along = [&](size_t axis) { return four[order[axis]].step; };
  Wide const step = w > 1 ? along(2) : h > 1 ? along(1) : n > 1 ? along(0) : c;
  bool const regular = (h == 1 || along(1) == w * step) && (n == 1 || along(0) == Wide(h) * w * step);
  if (!regular || step < c || (c != 1 && along(3) != 1)) return std::nullopt;
  return step;
}

/// Whether a tensor of four dimensions has pixels that a kernel can step through; `step` is from one to the next.
Broken find_pixels(Dimension const* four, Nhwc const& extent, bool of_torch, Wide& step) {
  Order const first = of_torch ? kChannelsFirst : kChannelsLast, second = of_torch ? kChannelsLast : kChannelsFirst;
  bool found = false;
  for (Order const& order : {first, second}) {
    if (!has_extents(four, extent, order)) continue;
    // A tensor of torch in its default format would be misread in the other order.
    if (found && of_torch) break;
    found = true;
    if (std::optional<Wide> const apart = pixel_step(four, extent, order)) {
      step = *apart;
      return nullptr;
    }
  }
  return found ? broken::kPixels : broken::kExtents;
}

Wide product(Nhwc const& extent) { return Wide(extent[0]) * extent[1] * extent[2] * extent[3]; }

bool is_empty(Nhwc const& extent) { return std::find(extent.begin(), extent.end(), 0) != extent.end(); }

}  // namespace

Broken ConvRule::check(uint64_t pointer, std::optional<Dimensions> const& given, Nhwc const& extent, bool of_torch,
                       Lines<Wide>& at) const {
  at = lines_of(extent);
  if (is_empty(extent)) {  // neither an address nor strides mean anything
    if (!given || (given->size() == 1 && given->front().extent == 0)) return nullptr;
    Dimension const* const four = given->size() == 4 ? given->data() : nullptr;
    bool const fits = layout == ConvLayout::kNhwc ? four && (has_extents(four, extent, kChannelsLast) ||
                                                             has_extents(four, extent, kChannelsFirst))
                                                  : has_groups(*given, extent);
    return fits ? nullptr : broken::kNoElements;
  }
  if (given) {
    if (Broken const found = check_form(*given, extent, of_torch, at)) return found;
  }
  Broken const found = rule.check_alignment(pointer, at);
  return found ? found : check_extent(at);
}

/// Where the lines of an operand without gaps are.
Lines<Wide> ConvRule::lines_of(Nhwc const& extent) const {
  auto const [n, h, w, c] = extent;
  Wide const together = rule.interleave, image = Wide(h) * w, pixels = n * image;
  if (layout == ConvLayout::kNhwc) return {c, pixels, c};
  if (layout == ConvLayout::kC32rsk32) return {pixels * together, c / together, pixels * together};
  return {image * together, c / together, image * together, n, n > 1 ? image * c : 0};
}

/// Whether a tensor has the extents and steps of an operand; the step between pixels becomes the leading dimension.
Broken ConvRule::check_form(Dimensions const& given, Nhwc const& extent, bool of_torch, Lines<Wide>& at) const {
  if (given.size() == 1) {
    if (given[0].extent != product(extent)) return broken::kElements;
    return given[0].step != 1 && given[0].extent != 1 ? broken::kFlatStep : nullptr;
  }
  if (layout == ConvLayout::kNhwc) {
    return given.size() == 4 ? find_pixels(given.data(), extent, of_torch, at.ld) : broken::kExtents;
  }
  if (!has_groups(given, extent)) return broken::kGroupExtents;
  Wide step = 1;
  for (size_t axis = given.size(); axis-- > 0; step *= given[axis].extent) {
    if (given[axis].extent > 1 && given[axis].step != step) return broken::kGroupSteps;
  }
  return nullptr;
}

/// Whether a tensor has the five extents of channels in groups.
bool ConvRule::has_groups(Dimensions const& given, Nhwc const& extent) const {
  auto const [n, h, w, c] = extent;
  auto const together = static_cast<int32_t>(rule.interleave);
  using Five = std::array<int32_t, 5>;
  Five const image{n, c / together, h, w, together}, filter{c / together, h, w, n, together};
  Five const& wanted = layout == ConvLayout::kNc32hw32 ? image : filter;
  return std::equal(given.begin(), given.end(), wanted.begin(), wanted.end(),
                    [](Dimension const& one, int32_t count) { return one.extent == count; });
}

/// Whether a kernel can address the operand, from the first element to the end of the last.
Broken ConvRule::check_extent(Lines<Wide> const& at) const {
  Wide const matrices = at.batch_stride ? at.batch : 1;
  Wide const elements = (matrices - 1) * at.batch_stride + (at.lines - 1) * at.ld + at.line;
  if ((elements * rule.bits + 7) / 8 >= byte_limit) return broken::kReach;
  return packed && at.ld != at.line ? broken::kGaps : nullptr;
}

std::optional<PlacedOperand> ConvRule::place(TensorView const& view, Nhwc const& extent, bool of_torch) const {
  if (layout != ConvLayout::kNhwc || view.rank != 4 || !view.pointer || is_empty(extent)) return std::nullopt;
  std::array<Dimension, 4> four;
  for (size_t axis = 0; axis < four.size(); ++axis) four[axis] = {view.sizes[axis], view.strides[axis]};
  Lines<Wide> at = lines_of(extent);
  if (find_pixels(four.data(), extent, of_torch, at.ld) || check_extent(at)) return std::nullopt;
  // Which are small now, and quickly divided.
  auto const ld = static_cast<int64_t>(at.ld), lines = static_cast<int64_t>(at.lines);
  int64_t const line = extent[3], bytes = rule.element_bytes();
  if (rule.check_alignment(view.pointer, Lines<int64_t>{line, lines, ld})) return std::nullopt;
  uint64_t const whole = static_cast<uint64_t>(((lines - 1) * ld + line) * bytes);
  uint64_t const pitch = lines > 1 ? static_cast<uint64_t>(ld * bytes) : 0;
  return PlacedOperand{{view.pointer, whole, static_cast<uint64_t>(line * bytes), pitch}, ld, 0};
}

}  // namespace pycutlass
