"""What an operand of a convolution is, as Python once decided it: a reference for the extension, which decides now."""

from __future__ import annotations

import math

from pycutlass import cutlass
from pycutlass.operands.conv_operand import ConvOperand, Extent
from pycutlass.tensor import TensorView

__all__ = ["decide_conv"]

_NHWC, _NCHW = (0, 1, 2, 3), (0, 2, 3, 1)  # where N, H, W and C are in a tensor's shape

#: Leading dimension and batch stride, or the rule that is broken.
Decision = tuple[int, int] | str


def decide_conv(wanted: ConvOperand, view: TensorView) -> Decision:
    n, h, w, c = wanted.extent
    layout = wanted.description.layout
    matrices, batch_stride, shape = 1, 0, wanted.extent
    if layout is cutlass.TensorNC32HW32:
        line, lines, shape = h * w * 32, c // 32, (n, c // 32, h, w, 32)
        matrices, batch_stride = (n, h * w * c) if n > 1 else (1, 0)
    elif layout is cutlass.TensorC32RSK32:
        line, lines, shape = h * w * n * 32, c // 32, (c // 32, h, w, n, 32)
    else:
        line, lines = c, n * h * w
    if 0 in wanted.extent:
        known = {shape, (0,)} | ({(n, c, h, w)} if layout is cutlass.TensorNHWC else set())
        fits = view.shape is None or tuple(view.shape) in known
        return (line, batch_stride) if fits else "empty"
    ld: int | str = line
    if view.shape is not None and view.strides is not None:
        if len(view.shape) == 1:
            ld = _flat(view, wanted.extent) or line
        elif layout is not cutlass.TensorNHWC:
            ld = _contiguous(view, shape) or line
        else:
            ld = _pixel_step(view, wanted.extent)
    if isinstance(ld, str):
        return ld
    for rule, value in (("line", line), ("ld", ld), ("batch", batch_stride)):
        if value % wanted.description.alignment:
            return f"{rule} alignment"
    if view.pointer % wanted.description.alignment_bytes:
        return "address alignment"
    elements = (matrices - 1) * batch_stride + (lines - 1) * ld + line
    if wanted.description.type.bytes_of(elements) >= wanted.byte_limit:
        return "reach"
    return "gaps" if wanted.packed and ld != c else (ld, batch_stride)


def _flat(view: TensorView, extent: Extent) -> str:
    assert view.shape is not None and view.strides is not None
    elements = math.prod(extent)
    if view.shape[0] != elements:
        return "elements"
    return "flat step" if view.strides[0] != 1 and elements != 1 else ""


def _contiguous(view: TensorView, shape: tuple[int, ...]) -> str:
    assert view.shape is not None and view.strides is not None
    if tuple(view.shape) != shape:
        return "group extents"
    step = 1
    for size, given in zip(reversed(shape), reversed(view.strides), strict=True):
        if size > 1 and given != step:
            return "group steps"
        step *= size
    return ""


def _pixel_step(view: TensorView, extent: Extent) -> int | str:
    shape, strides = view.shape, view.strides
    assert shape is not None and strides is not None
    orders = (_NCHW, _NHWC) if view.library == "torch" else (_NHWC, _NCHW)
    fitting = [order for order in orders if len(shape) == 4 and tuple(shape[axis] for axis in order) == extent]
    if not fitting:
        return "extents"
    # What may be in the order of its library is that: were the other order tried, its memory would be misread.
    step = _step(extent, tuple(strides[axis] for axis in fitting[0]))
    return "pixels" if step is None else step


def _step(extent: Extent, strides: tuple[int, ...]) -> int | None:
    n, h, w, c = extent
    along_n, along_h, along_w, along_c = strides
    step = along_w if w > 1 else along_h if h > 1 else along_n if n > 1 else c
    regular = (h == 1 or along_h == w * step) and (n == 1 or along_n == h * w * step)
    return step if regular and step >= c and (c == 1 or along_c == 1) else None
