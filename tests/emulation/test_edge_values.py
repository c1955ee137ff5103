"""Every node of an epilogue function makes of edge values what its reference does: NaN, infinities, zeros, ties."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pytest
from edge_values import edges, wrong
from emulator import Emulator

from pycutlass import cutlass
from pycutlass.epilogue import EpilogueFunction, Family, Tensor, epilogue_function, where
from pycutlass.epilogue.graph import Graph, Input, Value
from pycutlass.epilogue.nodes import NODES
from pycutlass.types import element

pytestmark = pytest.mark.compile

CASTS = ("f16", "bf16", "f32", "f64", "s8", "s32", "e4m3", "e5m2")
MAIN = """
template <typename Function>
void compute(char const* count) {
  using Number = typename Function::Number;
  Number scalars[1];
  for (int point = std::atoi(count); point > 0; --point) {
    double given[3];
    if (std::fread(given, sizeof(double), 3, stdin) != 3) std::abort();
    Number in[3] = {Number(given[0]), Number(given[1]), Number(given[2])}, out[1];
    Function::compute(scalars, in, out);
    double const written = out[0];
    std::fwrite(&written, sizeof(written), 1, stdout);
  }
}
"""


def function_of(node: str, data: tuple[str, ...] = ()) -> EpilogueFunction:
    """Return the function of one node, of the accumulator and two matrices."""
    values = [Value("input", (), (name,)) for name in ("accum", "x", "y")]
    takes = NODES[node].takes if node in NODES else "n"
    if "t" in takes:  # of comparisons
        values += [Value("less", (0, 1)), Value("less", (1, 2))]
    first, others = ((3,), (1, 2)) if takes == "tnn" else (range(3, 5) if "t" in takes else range(3), ())
    values.append(Value(node, (*first, *others)[: len(takes)], data))
    if node in NODES and NODES[node].makes == "t":
        number = len(values)
        values += [Value("constant", (), (x.hex(),)) for x in (1.0, 0.0)]
        values.append(Value("where", (number - 1, number, number + 1)))
    inputs = (Input("accum", "accumulator"), Input("x", "matrix"), Input("y", "matrix"))
    return EpilogueFunction(f"{node}{''.join(data)}", Graph(inputs, tuple(values), (("D", len(values) - 1),)))


def divided(accum: Any, x: Tensor, y: Tensor) -> Any:
    """Return the floors of quotients, which are made of several nodes; y has no part in them."""
    return where(y == y, accum // x, accum // x)


@pytest.mark.parametrize(
    ("compute", "output", "right_to"),
    [
        (cutlass.float32, cutlass.float32, 1e-6),
        (cutlass.float32, cutlass.float16, 6e-5),  # for which activations are right to less
        (cutlass.float32, cutlass.bfloat16, 2.0**-11),
        (cutlass.float64, cutlass.float64, 1e-14),
        (cutlass.float16, cutlass.float32, 2.0**-9),
        (cutlass.bfloat16, cutlass.float32, 2.0**-6),
    ],
)
def test_edge_values(compute: Any, output: Any, right_to: float, emulator: Emulator) -> None:
    kind = element(compute)
    given = edges(element(cutlass.float64 if kind.short == "f64" else cutlass.float32))  # what is read is not rounded
    x, y = (each.ravel() for each in np.meshgrid(given, given))
    z = np.roll(y, 7)
    text, calls, functors = "", "", []
    functions = [
        *map(function_of, NODES),
        *(function_of("cast", (each,)) for each in CASTS),
        epilogue_function(divided),
    ]
    for number, function in enumerate(functions):
        functors.append(function(output, 1, None, compute))
        body = functors[-1].definitions(Family.AMPERE_GEMM).replace('#include "pycutlass/function_ampere.h"', "")
        text += f"namespace node{number} {{{body}}}\n"
        calls += f"  compute<node{number}::Function>(words[1]);\n"
    program = emulator.build(f"{emulator._headers}{MAIN}{text}int main(int, char** words) {{\n{calls}}}\n")
    sent = np.stack([x, y, z], 1).tobytes() * len(functors)
    said = subprocess.run([str(program), str(x.size)], input=sent, capture_output=True, check=True).stdout
    for functor, found in zip(functors, np.frombuffer(said).reshape(len(functors), -1), strict=True):
        wanted = functor.evaluate(x[:, None], None, {}, {"x": y[:, None], "y": z[:, None]})["D"][:, 0].astype(float)
        bad = wrong(functor.name, kind, right_to, found, wanted)[:3]
        assert not bad.size, (functor.name, x[bad], y[bad], z[bad], found[bad], wanted[bad])
