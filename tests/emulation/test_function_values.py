"""The C++ of random epilogue functions computes, for one element, what NumPy computes in f64."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pytest
from emulator import Emulator

from pycutlass import cutlass
from pycutlass.epilogue import Family
from tools.fuzz.drawn_functions import ACCUMULATOR, GRAIN, OTHER, drawn_function

pytestmark = pytest.mark.compile

POINTS = 200
COMPUTE = {"f32": (cutlass.float32, 24), "f16": (cutlass.float16, 11), "bf16": (cutlass.bfloat16, 8)}
MAIN = """
template <typename Function>
void compute() {
  using Number = typename Function::Number;
  constexpr int kInputs = 1 + Function::kReadsSource + Function::Inputs::kSize;
  constexpr int kHalves = Function::HalfInputs::kSize, kWhole = Function::WholeOutputs::kSize;
  constexpr int kOutputs = 1 + Function::Outputs::kSize + Function::Reductions::kSize;
  typename Function::Arguments arguments{};
  Number scalars[Function::kScalars + 1];
  for (int i = 0; i < Function::kScalars; ++i) scalars[i] = Number(0.5);
  for (int point = 0; point < POINTS; ++point) {
    constexpr int kColumns = Function::kIsGated ? 2 : 1;
    Number in[kColumns][kInputs], out[kOutputs];
    for (auto& column : in) {
      double given[kInputs];
      if (std::fread(given, sizeof(double), kInputs, stdin) != kInputs) std::abort();
      for (int i = 0; i < kInputs; ++i) column[i] = Number(given[i]);
    }
    if constexpr (Function::kIsGated) {
      double given[1 + kHalves];
      Number half[1 + kHalves], whole[1 + kWhole][2];
      if (std::fread(given, sizeof(double), kHalves, stdin) != kHalves) std::abort();
      for (int i = 0; i < kHalves; ++i) half[i] = Number(given[i]);
      Function::compute(scalars, in[0], in[1], half, out, whole);
      for (int i = 0; i < 2 * kWhole; ++i) {
        double const written = whole[i / 2][i % 2];
        std::fwrite(&written, sizeof(written), 1, stdout);
      }
    } else {
      Function::compute(scalars, in[0], out);
    }
    for (Number made : out) {
      double const written = made;
      std::fwrite(&written, sizeof(written), 1, stdout);
    }
  }
}
"""


def check(seeds: list[int], kind: str, emulator: Emulator) -> None:
    compute, bits = COMPUTE[kind]
    functions, points, random = [drawn_function(seed, bits) for seed in seeds], [], np.random.default_rng(seeds[0])
    text, calls = "", ""
    for number, drawn in enumerate(functions):
        functor = drawn.function(cutlass.float32, 2, cutlass.float32, compute)
        body = functor.definitions(Family.AMPERE_GEMM).replace('#include "pycutlass/function_ampere.h"', "")
        text += f"namespace drawn{number} {{{body}}}\n"
        calls += f"  compute<drawn{number}::Function>();\n"
        tensors = [functor.graph.inputs[0], *functor.graph.of_form("source"), *functor.graph.of_form(*_PORTS)]
        shape = (POINTS, 2 if functor.graph.is_gated else 1)  # elements of one row
        given = {}
        for each in tensors[1:]:
            columns = 1 if each.halved else shape[1]
            drawn_values = random.integers(-8, 9, (POINTS, columns if each.form in ("row", "matrix") else 1))
            given[each.name] = np.broadcast_to(drawn_values, (POINTS, columns)) * GRAIN
        assert max(np.abs(each).max() for each in (np.zeros(1), *given.values())) <= OTHER
        points.append({tensors[0].name: random.integers(-ACCUMULATOR, ACCUMULATOR + 1, shape).astype(float)} | given)
    text = f"{emulator._headers}#define POINTS {POINTS}\n{MAIN}{text}int main() {{\n{calls}}}\n"
    program = emulator.build(text)
    sent = b"".join(_sent(each) for each in points)
    ended = subprocess.run([str(program)], input=sent, capture_output=True, check=True)
    found = np.frombuffer(ended.stdout, np.float64)
    for seed, drawn, given in zip(seeds, functions, points, strict=True):
        functor = drawn.function(cutlass.float32, 2, cutlass.float32, compute)
        further = [port for port in functor.outputs if port.name not in functor.graph.of_many]
        lines = len(drawn.reductions) + len(functor.graph.selections)  # what these are made of comes last
        wholes = [port.name for port in further if functor.graph.is_gated and not port.halved]
        names = ["D", *(port.name for port in further if port.name not in wholes)]
        count = 2 * len(wholes) + len(names) + lines
        made, found = found[: POINTS * count].reshape(POINTS, count), found[POINTS * count :]
        both, made = made[:, : 2 * len(wholes)], made[:, 2 * len(wholes) :]
        scalars = dict.fromkeys(functor.scalar_names, 0.5)
        forms = {each.name: each.form for each in functor.graph.inputs}
        arrays = {name: each[:, :1] if forms[name] in ("column", "number") else each for name, each in given.items()}
        source = next((arrays.pop(each.name) for each in functor.graph.of_form("source")), None)
        accumulator = arrays.pop(functor.graph.inputs[0].name)
        exact = functor.evaluate(accumulator, source, scalars, arrays, np.dtype(np.float64))
        for place, name in enumerate(names):
            difference = np.abs(made[:, place] - exact[name][:, 0])
            assert difference.max() <= 1.5 * drawn.errors[name], (seed, name, functor.graph)
        for place, name in enumerate(wholes):
            difference = np.abs(both[:, 2 * place : 2 * place + 2] - exact[name])
            assert difference.max() <= 1.5 * drawn.errors[name], (seed, name, functor.graph)
    assert not found.size


def _sent(given: dict[str, Any]) -> bytes:
    """Return what a program reads: for each point the whole tensors, column by column, then the halved ones."""
    columns = next(iter(given.values())).shape[1]
    wholes = [each for each in given.values() if each.shape[1] == columns]
    halves = [each for each in given.values() if each.shape[1] < columns]
    read = np.concatenate((np.stack(wholes, axis=2).reshape(POINTS, -1), *halves), axis=1)
    return read.astype(np.float64).tobytes()


_PORTS = ("matrix", "row", "column", "number")


@pytest.mark.parametrize("kind", COMPUTE)
def test_random_functions(kind: str, emulator: Emulator) -> None:
    check(list(range(40)), kind, emulator)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_a_thousand_random_functions(first: int, emulator: Emulator) -> None:
    check(list(range(first, first + 100)), "f32", emulator)
