"""Every node of an epilogue function makes of edge values on a GPU what its reference does: NaN, infinities, zeros."""

from typing import Any

import numpy as np
import pytest
from descriptions import native_parts, parts
from edge_values import edges, wrong

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, TensorDescription, cutlass
from pycutlass.epilogue import Tensor, cast, where
from pycutlass.epilogue.nodes import NODES
from pycutlass.epilogue.traced import applied
from pycutlass.types import element

ACTIVATIONS = ("tanh", "sigmoid", "silu", "hardswish", "gelu", "gelu_tanh")
CASTS = {f"cast_{each.__name__}": each for each in (cutlass.float16, cutlass.bfloat16, cutlass.int8, cutlass.int32)}
CASTS |= {f"cast_{each.__name__}": each for each in (cutlass.float_e4m3, cutlass.float_e5m2)}
NAMES = (*NODES, *CASTS)
GROUPS = [NAMES[start : start + 8] for start in range(0, len(NAMES), 8)]


def one(name: str, x: Any, y: Any, z: Any) -> Any:
    """Return one node of the table, or a cast, of values of a function."""
    if name in CASTS:
        return cast(x, CASTS[name])
    node = NODES[name]
    pairs = iter(((x, y), (y, z)))
    conditions = [first < second for first, second in (next(pairs) for kind in node.takes if kind == "t")]
    made = applied(node, *conditions, *((y, z) if conditions else (x, y))[: node.takes.count("n")])
    return where(made, 1.0, 0.0) if node.makes == "t" else made


def computed(names: tuple[str, ...], described: dict[str, Any], **kinds: Any) -> tuple[Any, dict[str, Any], Any]:
    """Launch a kernel with an output for each node; return its functor, what was written, and the values."""

    @pycutlass.epilogue_function
    def nodes(accum: Any, x: Tensor, y: Tensor, z: Tensor) -> Any:
        is_never = accum > 1.0  # sums are 0
        return {"D": where(is_never, y, where(is_never, z, x)), **{each: one(each, x, y, z) for each in names}}

    functor = nodes(described["C"].element, described["C"].alignment, cutlass.float32, **kinds)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    values = edges(element(cutlass.float32))
    values = np.resize(values, -(-values.size // 8) * 8).astype(np.float32)
    extent = values.size
    x, y = np.meshgrid(values, values)
    given = {"x": x, "y": y, "z": np.roll(y, 7, 0)}
    made = {port.name: np.zeros((extent, extent), port.type.dtype) for port in functor.outputs}
    D = np.zeros((extent, extent), functor.output.dtype)
    operands = np.zeros((extent, 32), operation.A.type.dtype), np.zeros((extent, 32), operation.B.type.dtype).T
    arguments = GemmArguments(operation, (extent, extent, 32), *operands, None, D, epilogue=given | made)
    operation.run(arguments)
    arguments.sync()
    return functor, made, given


def check(functor: Any, made: dict[str, Any], given: dict[str, Any], right_to: float) -> None:
    exact = functor.evaluate(np.zeros_like(given["x"]), None, {}, given)
    for port in functor.outputs:
        wanted = port.type.round(exact[port.name]).astype(np.float64).ravel()
        found = made[port.name].astype(np.float64).ravel()
        least = functor.compute if port.type.short == "f32" else port.type
        bad = wrong(port.name, least, right_to, found, wanted)[:3]
        assert not bad.size, (port.name, *(each.ravel()[bad] for each in given.values()), found[bad], wanted[bad])


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_nodes(names: tuple[str, ...]) -> None:
    f32 = cutlass.float32
    described = parts("f16", tile=(64, 64, 32)) | {"C": TensorDescription(f32, cutlass.RowMajor, 4)}
    check(*computed(names, described), right_to=1e-6)


@pytest.mark.parametrize(("kind", "right_to"), [("f16", 6e-5 + 2.0**-10), ("bf16", 2.0**-11 + 2.0**-7)])
@pytest.mark.parametrize("kernel", ["ampere", "hopper"])
def test_activations_of_narrow_results(kernel: str, kind: str, right_to: float) -> None:
    native = {"operand": kind, "output": kind}
    described = parts(kind, tile=(64, 64, 32)) if kernel == "ampere" else native_parts((64, 64, 64), **native)
    f32 = cutlass.float32
    check(*computed(ACTIVATIONS, described, x=f32, y=f32, z=f32), right_to)
