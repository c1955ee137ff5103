"""Compare kernels that are built from two CUTLASS checkouts: what the compilers say, results and times.

::

    python tools/compare_cutlass.py /opt/cutlass-4.7            # a table of one kernel of each kind
    python tools/compare_cutlass.py /opt/cutlass-4.7 --only conv stream

The first CUTLASS is the one that PyCUTLASS finds without ``CUTLASS_PATH``, the second the one that is named. Without a
GPU the table has what the builds say. With one, kernels that it can run are launched on the same operands: the table
says whether the two write the same bits, and how long each takes, measured in turns. Ends with 1 where a kernel cannot
be built from one of the two, or where results differ.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pycutlass  # noqa: E402
from pycutlass import (  # noqa: E402
    Conv2dArguments,
    Conv2dOperation,
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    MathInstruction,
    MathOperation,
    TensorDescription,
    TileDescription,
    cutlass,
    device,
    toolkit,
)
from pycutlass.epilogue import Column, Row  # noqa: E402
from pycutlass.types import element  # noqa: E402

__all__ = ["KERNELS", "Built", "main", "row", "table"]

_ROW, _COLUMN, _NHWC = cutlass.RowMajor, cutlass.ColumnMajor, cutlass.TensorNHWC
_f16, _bf16, _f32, _s8, _s32, _e4m3 = (
    *(cutlass.float16, cutlass.bfloat16, cutlass.float32),
    *(cutlass.int8, cutlass.int32, cutlass.float_e4m3),
)
_STREAM_K = cutlass.ThreadblockSwizzleStreamK
_SIZE = (1000, 1016, 1024)  # of a GEMM: tiles are cut along M and N
_GROUP = [(300, 504, 512), (64, 1016, 256), (0, 64, 64), (1000, 8, 128)]
_PIXELS = (4, 30, 30, 64, 128, 3, 3)  # N, H, W, C, K, R, S of a convolution


@pycutlass.epilogue_function
def scaled(accum: Any, left: Column, bias: Row) -> Any:
    """Return what many networks have behind a product."""
    return pycutlass.epilogue.gelu(accum * left + bias)


@pycutlass.epilogue_function
def summed(accum: Any, bias: Row) -> Any:
    """Return a result with the sums of its rows."""
    t = accum + bias
    return {"D": t, "sums": pycutlass.epilogue.sum(t, axis=1)}


def _tensor(tag: Any, layout: Any = _ROW, alignment: int | None = None) -> TensorDescription:
    return TensorDescription(tag, layout, alignment or 128 // element(tag).bits)


def _ampere(functor: Any = None, swizzle: Any = cutlass.IdentitySwizzle1, kind: Any = GemmOperationUniversal) -> Any:
    instruction = MathInstruction([16, 8, 16], _f16, _f16, _f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([128, 128, 32], 3, [2, 2, 1], instruction)
    functor = functor or LinearCombination(_f16, 8, _f32, _f32)
    swizzle = () if kind is GemmOperationGrouped else (swizzle,)
    return kind(80, tile, _tensor(_f16), _tensor(_f16, _COLUMN), _tensor(_f16), functor, *swizzle)


def _convolution() -> Conv2dOperation:
    instruction = MathInstruction([16, 8, 16], _f16, _f16, _f32, cutlass.OpClass.TensorOp)
    image = TensorDescription(_f16, _NHWC, 8)
    return Conv2dOperation(
        conv_kind=cutlass.conv.Operator.fprop,
        iterator_algorithm=cutlass.conv.IteratorAlgorithm.optimized,
        compute_capability=80,
        tile_description=TileDescription([128, 128, 32], 3, [2, 2, 1], instruction),
        A=image,
        B=image,
        C=image,
        stride_support=pycutlass.StrideSupport.Strided,
        epilogue_functor=LinearCombination(_f16, 8, _f32, _f32),
        swizzling_functor=cutlass.IdentitySwizzle1,
    )


def _hopper(
    functor: Any = None,
    schedule: Any = KernelSchedule.Cooperative,
    swizzle: Any = cutlass.IdentitySwizzle1,
    shape: tuple[int, int, int] = (128, 128, 64),
    types: tuple[Any, Any, Any] = (_bf16, _f32, _bf16),
    math: MathOperation = MathOperation.multiply_add,
    kind: Any = GemmOperationUniversal,
    cluster: tuple[int, int] = (2, 1),
    alignment: int | None = None,
) -> Any:
    a, sums, d = types
    instruction = MathInstruction(None, a, a, sums, cutlass.OpClass.TensorOp, math)
    tile = TileDescription(list(shape), None, None, instruction, list(cluster), schedule)
    functor = functor or LinearCombination(d, 128 // element(d).bits, sums, _s32 if sums == _s32 else _f32)
    swizzle = () if kind is GemmOperationGrouped else (swizzle,)
    A, B = (_tensor(a, layout, alignment) for layout in (_ROW, _COLUMN))
    return kind(90, tile, A, B, _tensor(d), functor, *swizzle)


#: What is compared, by the name that the table gives it.
KERNELS: dict[str, Callable[[], Any]] = {
    "Ampere-style, f16": _ampere,
    "Ampere-style, stream-K": lambda: _ampere(swizzle=_STREAM_K),
    "Ampere-style, function": lambda: _ampere(scaled(_f16, 8)),
    "Ampere-style, group": lambda: _ampere(kind=GemmOperationGrouped),
    "Ampere-style, conv fprop": _convolution,
    "Hopper, cooperative": _hopper,
    "Hopper, pingpong": lambda: _hopper(schedule=KernelSchedule.Pingpong, shape=(64, 256, 64)),
    "Hopper, three warp groups": lambda: _hopper(shape=(192, 96, 64), cluster=(1, 1)),
    "Hopper, cp.async": lambda: _hopper(cluster=(1, 1), alignment=2),
    "Hopper, stream-K": lambda: _hopper(swizzle=_STREAM_K, cluster=(1, 1)),
    "Hopper, function": lambda: _hopper(scaled(_bf16, 8)),
    "Hopper, function with sums": lambda: _hopper(summed(_bf16, 8), schedule=KernelSchedule.Pingpong),
    "Hopper, tf32": lambda: _hopper(types=(cutlass.tfloat32, _f32, _f32), shape=(128, 128, 32)),
    "Hopper, int8": lambda: _hopper(types=(_s8, _s32, _s32), shape=(128, 128, 128)),
    "Hopper, e4m3": lambda: _hopper(types=(_e4m3, _f32, _bf16), shape=(128, 128, 128)),
    "Hopper, group": lambda: _hopper(kind=GemmOperationGrouped),
    "Hopper, group, function": lambda: _hopper(scaled(_bf16, 8), KernelSchedule.Pingpong, kind=GemmOperationGrouped),
}


class Built:
    """A kernel that was built from one CUTLASS, and a launch of it where a GPU can run it."""

    def __init__(self, operation: Any) -> None:
        self.operation = operation
        is_native = operation.compute_capability >= 90
        [artifact] = pycutlass.compiler.add_module([operation], target="sm_90a" if is_native else _ampere_target())
        self.report: dict[str, Any] = artifact.report

    def launch(self) -> tuple[list[Any], Callable[[], None]]:
        """Launch it once; return what it has written, and what launches it again."""
        arguments, written = _arguments(self.operation)
        self.operation.run(arguments)
        arguments.sync()
        return written, lambda: self.operation.run(arguments)


def _ampere_target() -> str:
    return device.describe(device.current()).target.removesuffix("a") if device.available() else "sm_80"


def _can_run(operation: Any) -> bool:
    if not device.available():
        return False
    here = device.describe(device.current()).compute_capability
    return bool(here == 90 if operation.compute_capability >= 90 else here >= operation.compute_capability)


def _random(description: TensorDescription, *shape: int, rng: np.random.Generator) -> Any:
    """Return random numbers by rows or by columns: sums of floats are rounded, so another order would be seen."""
    drawn = rng.integers(-100, 100, shape) if description.type.is_integer else rng.standard_normal(shape)
    values = drawn.astype(description.type.dtype)
    return np.asfortranarray(values) if description.layout == _COLUMN else values


def _arguments(operation: Any) -> tuple[Any, list[Any]]:
    """Return arguments of the same operands each time, and the tensors that a launch writes."""
    rng = np.random.default_rng(0)
    A, B, D = operation.A, operation.B, getattr(operation, "D", operation.C)
    if isinstance(operation, Conv2dOperation):
        n, h, w, c, k, r, s = _PIXELS
        size = cutlass.conv.Conv2dProblemSize(N=n, H=h, W=w, C=c, K=k, R=r, S=s, pad_h=1, pad_w=1)
        x, filters = _random(A, n, h, w, c, rng=rng), _random(B, k, r, s, c, rng=rng)
        y = np.zeros((n, h, w, k), D.type.dtype)
        return Conv2dArguments(operation, size, x, filters, None, y), [y]
    sizes = _GROUP if isinstance(operation, GemmOperationGrouped) else [_SIZE]
    lists: dict[str, list[Any]] = {name: [] for name in "ABD"}
    for m, n, k in sizes:
        lists["A"].append(_random(A, m, k, rng=rng))
        lists["B"].append(_random(B, k, n, rng=rng))
        lists["D"].append(np.zeros((m, n), D.type.dtype))
    ports: dict[str, list[Any]] = {}
    for port in operation.epilogue_functor.ports:
        extents = {"left": 0, "bias": 1, "sums": 0}
        dtype = port.beside(D).type.dtype
        ports[port.name] = [rng.integers(-3, 4, size[extents[port.name]]).astype(dtype) for size in sizes]
    written = [*lists["D"], *ports.get("sums", [])]
    if isinstance(operation, GemmOperationGrouped):
        return GemmGroupedArguments(
            operation, sizes, lists["A"], lists["B"], None, lists["D"], **({"epilogue": ports} if ports else {})
        ), written
    single = {name: tensors[0] for name, tensors in ports.items()}
    return GemmArguments(
        operation, _SIZE, lists["A"][0], lists["B"][0], None, lists["D"][0], epilogue=single or None
    ), written


@contextlib.contextmanager
def _from(root: Path | None) -> Iterator[None]:
    """Have kernels be built from the CUTLASS in `root`, or from the one that is found without a variable."""
    before = os.environ.pop("CUTLASS_PATH", None)
    if root is not None:
        os.environ["CUTLASS_PATH"] = str(root)
    try:
        yield
    finally:
        os.environ.pop("CUTLASS_PATH", None)
        if before is not None:
            os.environ["CUTLASS_PATH"] = before


def row(title: str, both: list[Built], seconds: float = 0.3) -> tuple[list[str], bool]:
    """Return the line of a kernel that was built twice, and whether results agree, as far as it could be launched."""
    first, second = (each.report for each in both)
    shapes = first["wgmma_shapes"] == second["wgmma_shapes"]

    def two(name: str) -> str:
        return f"{first[name]:,} / {second[name]:,}"

    spills = " / ".join(str(each["spill_store_bytes"] + each["spill_load_bytes"]) for each in (first, second))
    built = " / ".join(f"{max(each['seconds_device'], each['seconds_host']):.1f}" for each in (first, second))
    cells = [title, two("registers"), spills, "same" if shapes else "**differ**", two("cubin_bytes"), built]
    if not _can_run(both[0].operation):
        return [*cells, *(["", ""] if device.available() else [])], True
    (written, again), (others, again_of_second) = (each.launch() for each in both)
    agree = all(one.tobytes() == other.tobytes() for one, other in zip(written, others, strict=True))
    times = pycutlass.DeviceTimer(seconds=seconds).compare({"first": again, "second": again_of_second})
    us = f"{times['first'].median:.2f} / {times['second'].median:.2f}"
    return [*cells, "same bits" if agree else "**differ**", us], agree


def table(root: Path, titles: list[str]) -> tuple[list[str], bool]:
    """Return the lines of the table of two CUTLASS, of which the second is in `root`, and whether all is well."""
    roots = (None, root)
    versions = []
    for each in roots:
        with _from(each):
            versions.append(toolkit.find_cutlass().version)
    heads = ["kernel", "registers", "bytes of spills", "wgmma", "bytes of code", "seconds to build"]
    heads += ["results", "us"] if device.available() else []
    lines = [f"CUTLASS {versions[0]} / {versions[1]}:", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    all_well = True
    for title in titles:
        both, failed = [], []
        for each, version in zip(roots, versions, strict=True):
            with _from(each):
                try:
                    both.append(Built(KERNELS[title]()))
                except pycutlass.errors.CompileError as error:
                    failed.append(f"not built from {version}")
                    print(error, file=sys.stderr)
        if failed:
            cells, well = [title, f"**{', '.join(failed)}**", *[""] * (len(heads) - 2)], False
        else:
            cells, well = row(title, both)
        all_well &= well
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines, all_well


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cutlass", type=Path, help="root of the second CUTLASS checkout")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="kernels whose names have one of these in them")
    given = parser.parse_args(argv)
    titles = [title for title in KERNELS if not given.only or any(word in title for word in given.only)]
    if not titles:
        parser.error(f"no kernel has {' or '.join(given.only)} in its name; there are {', '.join(KERNELS)}")
    lines, all_well = table(given.cutlass.resolve(), titles)
    print("\n".join(lines))
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main())
