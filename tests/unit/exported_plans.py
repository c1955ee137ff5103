"""Plans of many forms, with tensors, and what a library makes of them beside Python, on the stand-in driver."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pycutlass
from pycutlass import TensorSpec, _core, toolkit
from pycutlass.cache import Artifact
from pycutlass.compiler.tools import find_tools
from pycutlass.epilogue import fusions
from pycutlass.plan.readings import range_of
from pycutlass.toolchain import Processes

__all__ = ["FORMS", "distances", "host_sides", "recorded"]

_RNG = np.random.default_rng(0)


def _drawn(shape: tuple[int, ...], dtype: Any = np.float32, order: str = "C") -> Any:
    drawn = _RNG.integers(-3, 4, shape[::-1] if order == "F" else shape).astype(dtype)
    return drawn.T if order == "F" else drawn


def _gemm(m: int, n: int, k: int, dtype: Any = np.float32, order: str = "C", out: Any = None, **options: Any) -> Any:
    tensors = {"a": _drawn((m, k), dtype), "b": _drawn((k, n), dtype, order)}
    columns = n // 2 if options.pop("gated", False) else n
    inputs = options.pop("inputs", {})
    given = {name: options.pop(name)() for name in ("c", "bias") if name in options}
    plan = pycutlass.Gemm(
        *(
            TensorSpec(each.shape, each.dtype.name, tuple(step // each.itemsize for step in each.strides))
            for each in tensors.values()
        ),
        **{name: TensorSpec(each.shape, each.dtype.name) for name, each in given.items()},
        epilogue_inputs={name: TensorSpec(each.shape, each.dtype.name) for name, each in inputs.items()} or None,
        **options,
    )
    return plan, {**tensors, **given, "out": np.zeros((m, columns), out or dtype)}, inputs


def _chosen(made: Any, choose: Callable[[Any], bool]) -> Any:
    """Have the plan take the first candidate that is asked for."""
    plan = made[0]
    candidate = next(each.candidate for each in plan.candidates() if choose(each.candidate))
    plan._choices._picked = {range_of(plan._extent): candidate}
    assert plan.candidate is candidate
    return made


def _batch(shared: bool) -> Any:
    a, b = _drawn((3, 40, 64)), _drawn((64, 48)) if shared else _drawn((3, 64, 48))
    plan = pycutlass.Gemm(TensorSpec(a.shape, "float32"), TensorSpec(b.shape, "float32"))
    return plan, {"a": a, "b": b, "out": np.zeros((3, 40, 48), np.float32)}, {}


def _conv(kind: str = "fprop", dtype: Any = np.float16, channels: int = 16, **options: Any) -> Any:
    x, w, y = (2, 9, 10, channels), (24, 3, 3, channels), (2, 9, 10, 24)
    shapes = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (y, x, w)}[kind]
    given = {name: options.pop(name)() for name in ("c", "bias") if name in options}
    further = {} if kind == "fprop" else {"result_size": shapes[2]}
    plan = pycutlass.Conv2d(
        *(TensorSpec(shape, np.dtype(dtype).name) for shape in shapes[:2]),
        kind=kind,
        padding=1,
        **further,
        **{name: TensorSpec(each.shape, each.dtype.name) for name, each in given.items()},
        **options,
    )
    a, b = (_drawn(shape, dtype) for shape in shapes[:2])
    return plan, {"a": a, "b": b, **given, "out": np.zeros(shapes[2], dtype)}, {}


#: By name: the compute capability, and what returns a plan with its tensors and those of its epilogue.
FORMS: dict[str, tuple[int, Callable[[], Any]]] = {
    "f32": (80, lambda: _gemm(200, 72, 40)),
    "f32 with parallel split-K": (80, lambda: _chosen(_gemm(64, 128, 4096), lambda each: each.is_parallel)),
    "f32 with serial split-K": (
        80,
        lambda: _chosen(_gemm(64, 128, 4096), lambda each: each.split_k_slices > 1 and not each.is_parallel),
    ),
    "stream-K": (
        80,
        lambda: _chosen(_gemm(256, 512, 1024, np.float16, order="F"), lambda each: each.is_stream_k),
    ),
    "f16 with a C and parallel split-K": (
        80,
        lambda: _chosen(
            _gemm(64, 128, 4096, np.float16, c=lambda: _drawn((64, 128), np.float16), beta=0.5, alpha=2),
            lambda each: each.is_parallel,
        ),
    ),
    "f16 with a bias": (80, lambda: _gemm(256, 128, 64, np.float16, bias=lambda: _drawn((128,), np.float16))),
    "f16 with a C and an activation": (
        80,
        lambda: _gemm(
            256,
            128,
            64,
            np.float16,
            order="F",
            c=lambda: _drawn((256, 128), np.float16),
            beta=0.5,
            alpha=2,
            epilogue=pycutlass.relu,
        ),
    ),
    "int8": (80, lambda: _gemm(128, 64, 64, np.int8, order="F", out=np.int32)),
    "few rows": (80, lambda: _gemm(1, 512, 256, np.float16, order="F")),
    "a batch": (80, lambda: _batch(False)),
    "a batch with one b": (80, lambda: _batch(True)),
    "a function with a bias": (
        80,
        lambda: _gemm(
            64, 128, 64, np.float16, epilogue=fusions.ALL["bias_gelu"], inputs={"bias": _drawn((128,), np.float16)}
        ),
    ),
    "a function with a residual": (
        80,
        lambda: _gemm(
            64,
            128,
            64,
            np.float16,
            epilogue=fusions.ALL["bias_silu_residual"],
            inputs={"bias": _drawn((128,), np.float16), "residual": _drawn((64, 128), np.float16)},
        ),
    ),
    **{
        f"{what}, {capability}": (capability, lambda make=make, m=m: make(m))
        for capability, m in ((80, 64), (90, 512))
        for what, make in {
            "scales of rows and columns": lambda m: _gemm(
                m,
                256,
                128,
                np.float16,
                epilogue=fusions.ALL["dequantize"],
                inputs={"row_scale": _drawn((m,), np.float16), "column_scale": _drawn((256,), np.float16)},
            ),
            "a reduction of rows": lambda m: _gemm(
                m,
                256,
                128,
                np.float16,
                epilogue=fusions.ALL["softmax_statistics"],
                inputs={"logsumexp": np.zeros(m, np.float32)},
            ),
        }.items()
    },
    "pairs of columns": (80, lambda: _gemm(64, 128, 64, np.float16, epilogue=fusions.ALL["swiglu"], gated=True)),
    "pairs of columns for Hopper": (
        90,
        lambda: _gemm(512, 256, 128, np.float16, epilogue=fusions.ALL["swiglu"], gated=True),
    ),
    "few columns for Hopper": (90, lambda: _gemm(2048, 16, 512, np.float16, order="F")),
    "few rows for Hopper": (90, lambda: _gemm(16, 2048, 512, np.float16, order="F")),
    "for Hopper": (90, lambda: _gemm(512, 256, 128, np.float16, order="F")),
    "for Hopper with a C": (
        90,
        lambda: _gemm(512, 256, 128, np.float16, c=lambda: _drawn((512, 256), np.float16), beta=1),
    ),
    "a function for Hopper": (
        90,
        lambda: _gemm(
            512, 256, 128, np.float16, epilogue=fusions.ALL["bias_gelu"], inputs={"bias": _drawn((256,), np.float16)}
        ),
    ),
    "fprop with a bias": (80, lambda: _conv(bias=lambda: _drawn((24,), np.float16))),
    "dgrad": (80, lambda: _conv("dgrad")),
    "wgrad": (80, lambda: _conv("wgrad")),
    "wgrad with parallel split-K": (80, lambda: _chosen(_conv("wgrad"), lambda each: each.is_parallel)),
    "fprop with parallel split-K": (80, lambda: _chosen(_conv("fprop"), lambda each: each.is_parallel)),
    "fprop of f32 with a C": (80, lambda: _conv(dtype=np.float32, c=lambda: _drawn((2, 9, 10, 24)), beta=1)),
}


def host_sides(operations: Any) -> dict[Any, Artifact]:
    """Give operations real host sides, which note what they are given, with the code of no GPU; and return these."""
    made, compiler = {}, find_tools("nvcc", toolkit.without_memo).host
    folder = Path(tempfile.mkdtemp())
    for number, operation in enumerate(operations):
        source = operation.source()
        target = f"sm_{max(source.compute_capability, 80)}{'a' if source.native else ''}"
        real, noting = folder / f"real_{number}.so", folder / f"noting_{number}.so"
        real.write_bytes(compiler.compile(source, target, Processes(1, 8 << 30)).binary)
        named = [f'-DREAL="{real}"', f'-DNAME="{source.name}"', f"-I{toolkit.own_include()}"]
        text = Path(__file__).parent / "fake_gpu" / "noting.c"
        subprocess.run(["gcc", "-shared", "-fPIC", *named, str(text), "-o", str(noting)], check=True)
        host = noting.read_bytes()
        image = f"stand-in {_core.HostLibrary(host).params_bytes}".encode() + b"\0"
        made[operation] = Artifact(source.name, source.name, target, {}, image, host, {})
        operation.artifacts[target] = made[operation]
    return made


class Launched(NamedTuple):
    """What was launched: the record with the arguments of its epilogue, parameters and grid."""

    record: bytes
    params: bytes
    grid: tuple[int, ...]


def recorded(driver: Any, operations: Any, launch: Callable[[], Any]) -> list[Launched]:
    """Return what is launched of some operations, in their order."""
    driver.fake_only_record(1)
    launch()
    assert driver.fake_recorded() == len(operations)
    room, found = ctypes.create_string_buffer(40_000), []
    for number, operation in enumerate(operations):
        grid = (ctypes.c_uint * 3)()
        size = driver.fake_noted(operation.procedural_name().encode(), room, len(room))
        record = room.raw[:size]
        size = driver.fake_params(number, room, len(room), grid)
        found.append(Launched(record, room.raw[:size], tuple(grid)))
    return found


def distances(one: bytes, other: bytes) -> set[int]:
    """Return by how much words of two differ, those that do."""
    assert len(one) == len(other)
    end = len(one) // 4 * 4
    assert one[end:] == other[end:]
    even = end // 8 * 8
    words, others = (np.frombuffer(each[:even], np.int64) for each in (one, other))
    assert one[even:end] == other[even:end]
    return {int(each) for each in (words - others)[words != others]}
