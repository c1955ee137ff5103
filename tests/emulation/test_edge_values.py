"""Every node of an epilogue function makes of edge values what its reference does: NaN, infinities, zeros, ties."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pytest
from emulator import Emulator
from numpy.typing import NDArray

from pycutlass import cutlass
from pycutlass.epilogue import EpilogueFunction, Family
from pycutlass.epilogue.graph import Graph, Input, Value
from pycutlass.epilogue.nodes import NODES
from pycutlass.types import Element, element

pytestmark = pytest.mark.compile

CASTS = ("f16", "bf16", "f32", "f64", "s8", "s32", "e4m3", "e5m2")
#: Beyond these, what activations of f32 are right to is no share of the result (docs/guide/epilogues.md, fusion.md).
SMALL = {"gelu": 6e-9, "gelu_tanh": 6e-9, "silu": 1e-37}
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


def edges(kind: Element) -> NDArray[np.float64]:
    """Return numbers of a type at which functions and roundings change."""
    sizes = [0.0, 5e-324, 1e-310, 1e-45, 1e-40, 2.0**-126, 2.0**-24, 2.0**-14, 2.0**-10, 1e-8, 0.25, 0.5, 1.0, 1.5, 2.0]
    sizes += [2.5, 3.0, 3.5, 6.0, 9.5, 20.0, 39.5, 40.5, 88.0, 90.0, 126.5, 127.5, 128.5, 240.0, 448.0, 464.0, 2049.0]
    sizes += [57344.0, 61440.0, 65504.0, 65519.0, 65520.0, 2.0**23 + 1, 2.0**24 + 1, 2.0**31 - 1, 2.0**31, 2.0**53]
    sizes += [1e30, 1e38, 3.4e38, 1e300, np.inf]
    sizes += [1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 65520 - 2.0**-20, 3 * 2.0**-25 + 2.0**-60]
    with np.errstate(over="ignore"):
        return np.unique(kind.round(np.array([*sizes, *np.negative(sizes), np.nan])).astype(np.float64))


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


@pytest.mark.parametrize(
    ("compute", "output", "right_to"),
    [
        (cutlass.float32, cutlass.float32, 1e-6),
        (cutlass.float32, cutlass.float16, 6e-5),  # for which activations are right to less
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
    for number, function in enumerate([*map(function_of, NODES), *(function_of("cast", (each,)) for each in CASTS)]):
        functors.append(function(output, 1, None, compute))
        body = functors[-1].definitions(Family.AMPERE_GEMM).replace('#include "pycutlass/function_ampere.h"', "")
        text += f"namespace node{number} {{{body}}}\n"
        calls += f"  compute<node{number}::Function>(words[1]);\n"
    program = emulator.build(f"{emulator._headers}{MAIN}{text}int main(int, char** words) {{\n{calls}}}\n")
    sent = np.stack([x, y, z], 1).tobytes() * len(functors)
    said = subprocess.run([str(program), str(x.size)], input=sent, capture_output=True, check=True).stdout
    # Half of the least number of f16 is a tie, and in f32 factors that are no normal numbers may be 0.
    least = {"f64": 0.0, "f16": 2.0**-24}.get(kind.short, 2.0**-125)
    for functor, found in zip(functors, np.frombuffer(said).reshape(len(functors), -1), strict=True):
        wanted = functor.evaluate(x[:, None], None, {}, {"x": y[:, None], "y": z[:, None]})["D"][:, 0].astype(float)
        is_cast = functor.name.startswith("cast")
        with np.errstate(all="ignore"):
            allowed = np.fmax(right_to * np.abs(wanted), np.fmax(least, SMALL.get(functor.name, 0) * (kind.bits < 64)))
            near = np.abs(found - wanted) <= (0 if is_cast else allowed)
        same = near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        if functor.name == "remainder" or is_cast:
            same &= (wanted != 0) | (np.signbit(found) == np.signbit(wanted))
        wrong = np.flatnonzero(~same)[:3]
        assert not wrong.size, (functor.name, x[wrong], y[wrong], z[wrong], found[wrong], wanted[wrong])
