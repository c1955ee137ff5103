"""From an artifact to a kernel that can be launched: loaded once for each GPU, and unloaded when nothing uses it.

A `PreparedKernel` is one with all that its launches share, so that arguments of ordinary tensors are made at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from pycutlass import _core, device
from pycutlass.deferred_release import later
from pycutlass.enums import RasterOrder
from pycutlass.epilogue import EpilogueScalars
from pycutlass.epilogue.scalars import EpilogueLayout, check_scalars
from pycutlass.errors import NotCompiledError, PyCutlassError
from pycutlass.library import TensorDescription
from pycutlass.operands import LARGEST_EXTENT, say_without_gradient
from pycutlass.operands.conv_operand import ConvOperand, is_ambiguous
from pycutlass.operation import GemmOperationUniversal, Operation
from pycutlass.operation.conv2d import Conv2dOperation
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.operation.reduction import ReductionOperation, partial_sums
from pycutlass.operation.support import FEW_MATRICES, GRID_LIMIT
from pycutlass.tensor import wrap

if TYPE_CHECKING:
    from pycutlass.cache import Artifact

__all__ = [
    "KnownConvolution",
    "PreparedConvolutions",
    "PreparedGemm",
    "PreparedGrouped",
    "PreparedKernel",
    "PreparedReduction",
    "epilogue_layout",
    "load",
    "prepare",
    "prepared_on",
    "select",
]

# Loaded code is a property of the process and the GPU, not of whoever described the kernel: equal operations share it.
# What keeps it loaded are operations with its text, arguments, and graphs that have been captured. No lock: loading may
# wait for the GPU. Of threads that load a kernel at the same time the first wins.
_loaded: weakref.WeakValueDictionary[tuple[str, int], _core.DeviceKernel] = weakref.WeakValueDictionary()

# What kernels say of their epilogues, read once: it does not change.
_layouts: weakref.WeakKeyDictionary[_core.DeviceKernel, EpilogueLayout] = weakref.WeakKeyDictionary()


def load(operation: Operation, ordinal: int) -> _core.DeviceKernel:
    """Return the kernel of `operation`, loaded on GPU `ordinal`.

    Raises
    ------
    NotCompiledError
        The operation was not compiled, or for other GPUs only.
    CacheError
        Host and device side disagree about the kernel's parameters.
    DeviceError
        The GPU cannot run it.
    """
    artifact = select(operation, ordinal)
    kernel = _loaded.get((artifact.key, ordinal))
    if kernel is None:
        host = _core.HostLibrary(artifact.host)
        made = _core.DeviceKernel(host, artifact.cubin, artifact.name, ordinal)
        # When the kernel goes its code does, in the thread that lets go of things: unloading waits for the GPU.
        weakref.finalize(made, later, made.library.unload).atexit = False
        kernel = _loaded.setdefault((artifact.key, ordinal), made)
    operation.artifacts.loaded[ordinal] = kernel
    return kernel


def epilogue_layout(kernel: _core.DeviceKernel) -> EpilogueLayout:
    """Return where `kernel` has the arguments of its epilogue."""
    layout = _layouts.get(kernel)
    if layout is None:
        host = kernel.host
        layout = _layouts[kernel] = EpilogueLayout(host.epilogue_bytes, host.epilogue_fields)
    return layout


def select(operation: Operation, ordinal: int) -> Artifact:
    """Return the artifact of `operation` that GPU `ordinal` can run, the one made for exactly this GPU first.

    Raises
    ------
    NotCompiledError
        There is none.
    """
    present = device.describe(ordinal)
    # Same major version, minor not above; "a" targets on exactly their GPU.
    here = present.compute_capability
    running = {f"sm_{here}a", *(f"sm_{number}" for number in range(here - here % 10, here + 1))}
    candidates = running.intersection(operation.artifacts)
    if candidates:
        # Of two, the later target is the better match; sm_90a sorts behind sm_90 and is made for this GPU alone.
        return operation.artifacts[max(candidates)]
    name = operation.procedural_name()
    if operation.artifacts:
        made_for = ", ".join(sorted(operation.artifacts))
        raise NotCompiledError(
            f"{name} was compiled for {made_for}, GPU {ordinal} ({present.name}) is {present.target}: compile it for "
            f"that with pycutlass.compiler.add_module([operation])"
        )
    raise NotCompiledError(f"{name} has not been compiled: call pycutlass.compiler.add_module([operation]) first")


#: Scalars as an operation takes them, as bytes, and whether C is read.
Packed = tuple[EpilogueScalars, bytes, bool]


class PreparedKernel:
    """The kernel of an operation on one GPU with all that is checked of any tensor.

    It says what is fixed by the operation and its compiled kernel alone, is made once, and never changes: threads may
    use it at the same time, each for arguments of its own. An operation keeps those that it has, and so its kernels.

    Attributes
    ----------
    artifacts : dict
        What had been compiled when it was made. Of anything else, another kernel may be the right one.
    ordinal : int
        The GPU.

    Raises
    ------
    NotCompiledError, CacheError, DeviceError
        The operation has no kernel that runs on the GPU.
    """

    def __init__(self, operation: Operation, described: tuple[TensorDescription, ...], ordinal: int) -> None:
        self.artifacts: dict[str, Artifact] = dict(operation.artifacts)
        self.ordinal = ordinal
        loaded = load(operation, ordinal)
        self._functor, self._layout = operation.epilogue_functor, epilogue_layout(loaded)
        # What scalars were found to be before, and those of no output_op. They are values, which many launches share.
        self._known: weakref.WeakKeyDictionary[EpilogueScalars, tuple[EpilogueScalars | None, bytes, bool]]
        self._known = weakref.WeakKeyDictionary()
        self._default: Packed | None = None
        # Of each operand: the rule of its memory, and its type as a number, as tensors say it, and as NumPy does.
        types = [(each, each.type, each.type.dtype_name) for each in described]
        operands = [
            (
                _core.OperandRule(each.is_row_major, element.bits, each.alignment, True, False),
                element.code,
                name,
                element.dtype if hasattr(np, name) else None,
            )
            for each, element, name in types
        ]
        self._shared: dict[str, Any] = {
            "kernel": loaded,
            "operands": tuple(operands),
            "wrap": wrap,
            "stream_source": device.current_stream_source,
            "say_followed": lambda *tensors: say_without_gradient(dict(zip("ABC", tensors, strict=True))),
        }

    def packed(self, output_op: Any) -> Packed | None:
        """Return what is known of the scalars that were given; None where they need a look."""
        if output_op is None:
            self._default = self._default or self._pack(None)
            return self._default
        if type(output_op) is not EpilogueScalars:
            return None
        known = self._known.get(output_op)
        if known is not None:
            return known[0] or output_op, known[1], known[2]
        packed = self._pack(output_op)
        if packed is not None:  # an entry must not keep its own key
            self._known[output_op] = (None if packed[0] is output_op else packed[0], *packed[1:])
        return packed

    def _pack(self, output_op: EpilogueScalars | None) -> Packed | None:
        try:
            scalars = check_scalars(self._functor, output_op)
            if any(scalars.pointers):  # memory that is watched
                return None
            return scalars, scalars.packed(self._layout), scalars.needs_source
        except PyCutlassError:  # which is raised again, where it is its turn
            return None


class PreparedGemm(PreparedKernel):
    """What all launches of a GEMM on one GPU share.

    Attributes
    ----------
    make : callable
        Makes a call for ordinary tensors, or returns None (`_core.PreparedGemm.make`).
    """

    def __init__(self, operation: GemmOperationUniversal, ordinal: int) -> None:
        super().__init__(operation, (operation.A, operation.B, operation.C, operation.D), ordinal)
        sizes = Sizes.of(operation)
        self.make = _core.PreparedGemm(
            **self._shared,
            most=sizes.most,
            steps=sizes.steps,
            slice=sizes.slice,
            in_place=not operation.is_apart,
            swizzle=operation.swizzle_size,
            raster_type=RasterOrder,
        ).make


class KnownConvolution(NamedTuple):
    """A problem that an operation supports, as it is launched, and what makes calls for ordinary tensors, or None.

    Where the extents of an operand are ambiguous, that is for tensors of torch: of others it would go by strides.
    """

    size: _core.Conv2dProblemSize
    split_k_slices: int
    make: Callable[..., Any]
    is_ambiguous: bool


class PreparedConvolutions(PreparedKernel):
    """What all launches of a convolution on one GPU share: the problems that were met last, each with its operands.

    Attributes
    ----------
    problems : _core.KnownConvolutions
        At most 64.
    """

    def __init__(self, operation: Conv2dOperation, ordinal: int) -> None:
        super().__init__(operation, (operation.A, operation.B, operation.C, operation.C), ordinal)
        self.problems = _core.KnownConvolutions(64)

    def keep(self, size: _core.Conv2dProblemSize, mode: _core.SplitKMode, *wanted: ConvOperand) -> None:
        """Keep a problem, as it is launched, that was found to be supported, with what A, B, C and D are to be."""
        A, B, C, D = ((each.rule, each.extent) for each in wanted)
        places, takes_bias = (A, B, C, D), bool(wanted[2].or_bias)
        prepared = _core.PreparedConv2d(
            **self._shared, places=places, problem_size=size, split_k_mode=mode, takes_bias=takes_bias
        )
        either = any(is_ambiguous(each.extent) for each in wanted)
        self.problems.keep(size, mode, KnownConvolution(size, size.split_k_slices, prepared.make, either))


class PreparedGrouped(PreparedKernel):
    """What all launches of a grouped GEMM on one GPU share.

    Attributes
    ----------
    make : callable
        Makes a call for tuples of ordinary tensors, or returns None (`_core.PreparedGrouped.make`).
    """

    def __init__(self, operation: GemmOperationGrouped, ordinal: int) -> None:
        super().__init__(operation, (operation.A, operation.B, operation.C, operation.C), ordinal)
        self.make = _core.PreparedGrouped(**self._shared).make


class PreparedReduction(PreparedKernel):
    """What all reductions of an operation on one GPU share.

    Attributes
    ----------
    sums : TensorDescription
        Of the partial sums.
    make : callable
        Makes a call for partial sums and ordinary tensors, or returns None (`_core.PreparedReduction.make`).
    """

    def __init__(self, operation: ReductionOperation, ordinal: int) -> None:
        self.sums = sums = partial_sums(operation)
        super().__init__(operation, (sums, sums, operation.C, operation.C), ordinal)
        self.make = _core.PreparedReduction(**self._shared).make


_Prepared = TypeVar("_Prepared", PreparedGemm, PreparedConvolutions, PreparedGrouped, PreparedReduction)


def prepare(
    operation: Any, D: Any, tried: tuple[_Prepared, ...], kind: Callable[[Any, int], _Prepared]
) -> _Prepared | None:
    """Return what is prepared for launches that write `D`, which the operation keeps: the `kind` of its family.

    None where that has been `tried`, or Python has to look.
    """
    ordinal: int | None = _core.gpu_of(D, wrap)
    present: tuple[_Prepared, ...] = operation._prepared
    for each in present:
        if each.ordinal == ordinal and each.artifacts == operation.artifacts:
            return None if each in tried else each  # which another thread may have prepared meanwhile
    written = operation.D if kind is PreparedGemm else operation.C  # groups have no D apart
    described = (operation.A, operation.B, operation.C, written)
    needs_look = any(each.order.interleave > 1 or each.type.bits < 8 for each in described)
    if ordinal is None or needs_look or operation.epilogue_functor.is_tree:
        return None
    try:
        prepared = kind(operation, ordinal)
    except PyCutlassError:  # which is raised again, behind what else is wrong
        return None
    object.__setattr__(operation, "_prepared", (prepared, *(each for each in present if each.ordinal != ordinal)))
    return prepared


def prepared_on(operation: Operation, ordinal: int, kind: Callable[[Any, int], _Prepared]) -> _Prepared:
    """Return what is prepared for launches on one GPU, which the operation keeps: the `kind` of its family.

    Raises
    ------
    NotCompiledError, CacheError, DeviceError
        The operation has no kernel that runs on the GPU.
    """
    present: tuple[_Prepared, ...] = operation._prepared
    for each in present:
        if each.ordinal == ordinal and each.artifacts == operation.artifacts:
            return each
    prepared = kind(operation, ordinal)
    object.__setattr__(operation, "_prepared", (prepared, *(each for each in present if each.ordinal != ordinal)))
    return prepared


class Sizes(NamedTuple):
    """What sizes need no look: `check_size` accepts those within these limits, whatever else a launch is given.

    Attributes
    ----------
    most : tuple of 4 int
        The largest M, N, K and batch that need no look at the grid, nor at what the operands hold.
    steps : tuple of 2 int
        What M and N must be multiples of: a tensor map of C asks for it, where D is described apart.
    slice : int
        The least of K that a slice takes; 0 where K is not split, or sums would be clamped on the way.
    """

    most: tuple[int, int, int, int]
    steps: tuple[int, int]
    slice: int

    @classmethod
    def of(cls, operation: GemmOperationUniversal) -> Sizes:
        """Return the limits of an operation."""
        family, described, C = operation.family, operation.tile_description, operation.C
        tile, max_k = described.threadblock_shape, operation.epilogue_functor.max_k
        extent, k, batch = LARGEST_EXTENT + 1 - max(tile[:2]), LARGEST_EXTENT + 1 - tile[2], FEW_MATRICES
        if not family.is_persistent:
            extent, batch = min(extent, GRID_LIMIT * min(tile[:2])), GRID_LIMIT
        steps = (1, C.alignment) if C.is_row_major else (C.alignment, 1)
        splits = family.splits_k and not C.type.clamps(described.math_instruction.accumulator)
        return cls(
            (extent, extent, k if max_k is None else min(k, max_k), batch),
            steps if operation.is_apart else (1, 1),
            family.slice_step(operation.A, operation.B) if splits else 0,
        )
