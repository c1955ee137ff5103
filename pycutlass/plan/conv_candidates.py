"""Which kernels, with which options of a launch, are worth considering for a kind of convolution."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pycutlass import _core
from pycutlass.calls import public
from pycutlass.enums import GroupMode, StrideSupport
from pycutlass.errors import ArgumentTypeError, DescriptionError
from pycutlass.families import AMPERE, SM90
from pycutlass.library import TileDescription
from pycutlass.log import silent
from pycutlass.operation import Conv2dOperation, planes_of_results, tile_descriptions
from pycutlass.plan.candidates import LARGE, by_stages, checked_capability
from pycutlass.plan.conv_candidate import GROUPED_PORTS, Conv2dCandidate
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.first_kernels import AMPERE_PLANES, SIMT_SHAPES, TENSOR_OP_SHAPES

__all__ = ["conv2d_candidates"]

_Operator, _Algorithm, _OpClass = _core.ConvOperator, _core.IteratorAlgorithm, _core.OpClass
_UNITY, _STRIDED = StrideSupport.Unity, StrideSupport.Strided
_SINGLE, _MULTIPLE = GroupMode.SingleGroup, GroupMode.MultipleGroup
_SWIZZLES: tuple[Any, ...] = (_core.IdentitySwizzle1, _core.IdentitySwizzle4)
_STRIDED_DGRAD_SWIZZLES: tuple[Any, ...] = (_core.StridedDgradIdentitySwizzle1, _core.StridedDgradIdentitySwizzle4)
#: Tiles whose sums are divided. A weight gradient sums over all pixels and has few elements, so it is divided further.
_SPLIT = ((128, 128), (128, 64), (64, 128), (64, 64))
#: Loads of a thread for a step along K, beyond which compilers report that registers spill: so it is where single
#: elements of 16 or 8 bits are loaded.
_MOST_LOADS = 48
_SLICES, _SLICES_OF_WGRAD = (2, 3, 4, 6, 8), (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


@dataclass(frozen=True)
class _Form:
    """What there are kernels of beside tiles."""

    algorithm: _core.IteratorAlgorithm
    stride_support: StrideSupport = _STRIDED
    group_mode: GroupMode | None = None
    is_by_group: bool = False


@public
@lru_cache(maxsize=64)  # A kind has some hundreds of candidates, about a megabyte; programs have a dozen kinds.
def conv2d_candidates(kind: Conv2dKind, capability: int) -> tuple[Conv2dCandidate, ...]:
    """Return the candidates for a kind of convolution, in a fixed order.

    Each is a valid description of an Ampere-style kernel. The list has all iterator algorithms and both kernels of
    dgrad; of channels in groups, kernels for groups and launches of one group each. Whether one takes a problem,
    ``candidate.supports(problem_size)`` says.

    Parameters
    ----------
    kind : Conv2dKind
        What is computed.
    capability : int
        Compute capability of the GPU: 80 or more.

    Returns
    -------
    tuple of Conv2dCandidate
        None where no kernel computes this kind.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Another kind of argument, or an earlier GPU.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import Conv2dKind, conv2d_candidates
    >>> f16, f32, conv = cutlass.float16, cutlass.float32, cutlass.conv
    >>> nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> math = pycutlass.MathOperation.multiply_add
    >>> kind = Conv2dKind(conv.Operator.fprop, nhwc, nhwc, nhwc, f16, f16, f32, math, functor)
    >>> conv2d_candidates(kind, 80)[0].name
    'fprop optimized 256x128x32, 4 stages, 4x2x1 warps, swizzle 1'
    """
    if not isinstance(kind, Conv2dKind):
        raise ArgumentTypeError(f"kind must be a Conv2dKind, got {type(kind).__name__}")
    known = checked_capability(capability)
    # Capabilities that have no limit of shared memory of their own take 80's.
    limited = known if known in AMPERE.shared_memory and known not in SM90.shared_memory else 80
    with silent():  # about kernels that are tried
        return tuple(dict.fromkeys(each for form in _forms(kind) for each in _of_form(kind, form, limited)))


def _forms(kind: Conv2dKind) -> Iterator[_Form]:
    """Yield algorithms, and what goes with them, of which a kind may have kernels, the fastest first."""
    if kind.direction is _Operator.fprop and kind.is_grouped:
        yield _Form(_Algorithm.optimized, group_mode=_SINGLE)
        yield _Form(_Algorithm.analytic, group_mode=_SINGLE)
        yield _Form(_Algorithm.analytic, group_mode=_MULTIPLE)
    by_group = kind.is_grouped
    if by_group and not all(port.form in GROUPED_PORTS[kind.direction] for port in kind.epilogue.outputs):
        return  # what is made of elements of all groups
    if kind.direction is _Operator.dgrad:
        for algorithm, support in itertools.product((_Algorithm.optimized, _Algorithm.analytic), (_UNITY, _STRIDED)):
            yield _Form(algorithm, support, None, by_group)
        return
    yield _Form(_Algorithm.optimized, is_by_group=by_group)
    if kind.direction is _Operator.fprop:
        yield _Form(_Algorithm.fixed_channels, is_by_group=by_group)
        yield _Form(_Algorithm.few_channels, is_by_group=by_group)
    yield _Form(_Algorithm.analytic, is_by_group=by_group)


def _of_form(kind: Conv2dKind, form: _Form, capability: int) -> Iterator[Conv2dCandidate]:
    """Yield tiles with their swizzles and slices."""
    like = _first(kind, form)
    if like is None:
        return
    is_plain = form.algorithm is not _Algorithm.analytic  # which is for what the others do not take
    swizzles = _STRIDED_DGRAD_SWIZZLES if like.is_strided_dgrad else _SWIZZLES
    found = tile_descriptions(like, capability)
    light = tuple(tile for tile in found if _loads(like, tile) <= _MOST_LOADS)
    for tiles in by_stages(light or found):
        rows, columns, _ = tiles[0].threadblock_shape
        for tile in tiles if is_plain else tiles[:1]:
            for swizzle in swizzles if is_plain and rows * columns >= LARGE else swizzles[:1]:
                yield from _made(kind, form, tile, swizzle)
        if (rows, columns) in _SPLIT and like.splits_k and is_plain:
            yield from _divided(kind, form, tiles[0])


def _loads(like: Conv2dOperation, tile: TileDescription) -> int:
    """Return how many loads a thread makes for a step along K."""
    m, n, k = tile.threadblock_shape
    return (m * k // like.A.alignment + n * k // like.B.alignment) // tile.num_threads


def _divided(kind: Conv2dKind, form: _Form, tile: TileDescription) -> Iterator[Conv2dCandidate]:
    """Yield a tile whose sums are divided into slices.

    Slices that take turns round to D's type each time, so they are for a D as exact as the accumulator.
    """
    all_slices = _SLICES_OF_WGRAD if kind.direction is _Operator.wgrad else _SLICES
    for whole in _made(kind, form, tile, None):
        operation = whole.operation
        if kind.C.type is operation.accumulator_type():
            yield from (Conv2dCandidate(operation, slices, False, form.is_by_group) for slices in all_slices)
        for slices in all_slices:
            candidate = Conv2dCandidate(operation, slices, True, form.is_by_group)
            try:
                _ = candidate.kernels
            except DescriptionError:  # there is no such reduction
                break
            yield candidate


def _first(kind: Conv2dKind, form: _Form) -> Conv2dOperation | None:
    """Return a kernel of the form: of tensor cores where they multiply as exactly as the kind says."""
    by_tensor_op = () if kind.is_full_f32 else [(shape, _OpClass.TensorOp) for shape in TENSOR_OP_SHAPES]
    planes = *AMPERE_PLANES, *planes_of_results(kind.epilogue)
    for shape, opcode in (*by_tensor_op, *((shape, _OpClass.Simt) for shape in SIMT_SHAPES)):
        for (plane, warps), depth, stages in itertools.product(planes, (64, 128, 32), (3, 2)):
            try:
                instruction = kind.instruction(shape, opcode)
                threadblock = (*plane, depth * 8 // instruction.a.bits)
                tile = TileDescription(threadblock, stages, warps, instruction)
                return kind.operation(tile, form.algorithm, form.stride_support, None, form.group_mode)
            except DescriptionError:
                continue
    return None


def _made(kind: Conv2dKind, form: _Form, tile: TileDescription, swizzle: Any) -> Iterator[Conv2dCandidate]:
    """Yield the kernel, unless the parts make none."""
    try:
        operation = kind.operation(tile, form.algorithm, form.stride_support, swizzle, form.group_mode)
    except DescriptionError:
        return
    yield Conv2dCandidate(operation, is_by_group=form.is_by_group)
