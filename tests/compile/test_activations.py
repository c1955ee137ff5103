"""The C++ of activations, compiled for the host, against as many digits as it takes.

A GPU has functions of its own for exp, tanh, erf and erfc, whose errors CUDA's manual states: tests/gpu.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from activations import BOUNDED, exact_of, points, too_wrong
from descriptions import native_parts, parts

from pycutlass import GemmOperationUniversal, cutlass, gelu, toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.epilogue import fusions
from pycutlass.toolchain import Processes

pytestmark = pytest.mark.compile

SPELLED = {"f16": "cutlass::half_t", "f32": "float", "f64": "double"}
PROGRAM = """
#include "pycutlass/activation.h"

#include <cstdio>
#include <vector>

struct NarrowByPowers {
  static float of(float x) { return pycutlass::activation::narrow_gelu_by_powers(x); }
};
struct BfloatByPowers {
  static float of(float x) { return pycutlass::activation::approximate_gelu_by_powers(x); }
};

template <typename T>
std::vector<T> read(char const* from) {
  std::FILE* file = std::fopen(from, "rb");
  std::vector<T> numbers(1 << 20);
  numbers.resize(std::fread(numbers.data(), sizeof(T), numbers.size(), file));
  std::fclose(file);
  return numbers;
}

template <typename T>
int write(std::vector<T> const& numbers, char const* to) {
  std::FILE* file = std::fopen(to, "wb");
  std::fwrite(numbers.data(), sizeof(T), numbers.size(), file);
  return std::fclose(file);
}

/// Reads numbers, and writes what becomes of them one by one and in arrays of four, which should be the same.
template <typename T, template <typename> class Activation>
int apply(char const* from, char const* to) {
  std::vector<T> numbers = read<T>(from);
  numbers.resize(numbers.size() / 4 * 4);
  for (size_t i = 0; i < numbers.size(); i += 4) {
    cutlass::Array<T, 4> four;
    for (int j = 0; j < 4; ++j) four[j] = numbers[i + j];
    auto const together = Activation<cutlass::Array<T, 4>>{}(four);
    for (int j = 0; j < 4; ++j) {
      T const alone = Activation<T>{}(numbers[i + j]);
      if (alone == alone && !(alone == together[j])) return 1;
      numbers[i + j] = together[j];
    }
  }
  return write(numbers, to);
}

/// The same for formulas that are computed in float, for results that are rounded to less.
template <typename Formula>
int apply(char const* from, char const* to) {
  std::vector<float> numbers = read<float>(from);
  for (float& each : numbers) each = Formula::of(each);
  return write(numbers, to);
}

int main(int count, char** given) {
  switch (std::atoi(given[1])) {
%s
  }
  return 2;
}
"""
CASES = [(activation, short) for activation in BOUNDED for short in SPELLED]
#: What the activations are right to where results are rounded to f16, and where to bf16: of the result.
NARROW = {"Narrow": 6e-5, "Bfloat": 2.0**-11}
#: And beside it, where GELU is small: of less than -6, but of less than -5 in this one.
BESIDE = {"gelu": 6e-9, "gelu_tanh": 6e-9, "BfloatByPowers": 1e-9}
#: Of Hopper-native kernels, whose device code has formulas of its own, the host compiles those.
NARROW_CASES = [(activation, kind) for activation in BOUNDED for kind in NARROW]
NARROW_CASES += [(gelu, f"{kind}ByPowers") for kind in NARROW]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("activations")
    called = [f"{SPELLED[short]}, {activation.tag}" for activation, short in CASES]
    for activation, kind in NARROW_CASES:
        name = f"pycutlass::{activation.tag.split('::')[-1]}<pycutlass::activation::{kind}>"
        called.append(name if kind in NARROW else kind)
    lines = [f"    case {number}: return apply<{name}>(given[2], given[3]);" for number, name in enumerate(called)]
    (directory / "program.cpp").write_text(PROGRAM % "\n".join(lines))
    includes = [f"-I{path}" for path in find_tools("nvcc", toolkit.without_memo).host.includes]
    command = [*toolkit.find_host_compiler(), "-std=c++17", "-O2", "-w", *includes, "program.cpp", "-o", "program"]
    built = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    return directory / "program"


@pytest.mark.parametrize(("activation", "short"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_the_cpp_is_right_to_what_is_stated(activation: Any, short: str, program: Path) -> None:
    x = points(short)
    x.tofile(program.parent / "from")
    number = str(CASES.index((activation, short)))
    subprocess.run([program, number, program.parent / "from", program.parent / "to"], check=True)
    found = np.fromfile(program.parent / "to", x.dtype)
    assert too_wrong(activation, short, x, found) == []


@pytest.mark.parametrize(("activation", "kind"), NARROW_CASES, ids=lambda each: getattr(each, "__name__", each))
def test_those_of_narrow_results_are_right_to_what_is_stated(activation: Any, kind: str, program: Path) -> None:
    near = np.linspace(-6.5, 6.5, 2601)
    x = np.concatenate([near, np.linspace(-40, 40, 401), np.exp2(np.arange(-24.0, 0)), -np.exp2(np.arange(-24.0, 0))])
    x = x.astype(np.float32)
    x.tofile(program.parent / "from")
    number = str(len(CASES) + NARROW_CASES.index((activation, kind)))
    subprocess.run([program, number, program.parent / "from", program.parent / "to"], check=True)
    found = np.fromfile(program.parent / "to", np.float32).astype(float)
    exact = np.array(exact_of(activation, x), np.float64)
    relative = NARROW[kind.removesuffix("ByPowers")]
    absolute = BESIDE.get(kind, BESIDE.get(activation.__name__, 2.0**-120))  # a factor that is no normal number is 0
    error = np.abs(found - exact)
    bad = np.flatnonzero(~(error <= np.maximum(relative * np.abs(exact), absolute)))
    assert not bad.size, [(x[i], found[i], exact[i]) for i in bad[:3]]
    assert error.max() > 0, "narrow formulas are not the exact ones"


@pytest.mark.parametrize(("kind", "powers"), [("ampere", 1), ("hopper", 2)])
def test_gelu_takes_a_second_power_beside_wgmma_alone(kind: str, powers: int) -> None:
    """Where tensor cores wait for sums and products, and powers of two cost nothing."""
    described = native_parts((64, 64, 64), (1, 1), None, None, "bf16", "bf16")
    if kind == "ampere":
        described = parts("bf16", tile=(64, 64, 32))
    described["epilogue_functor"] = fusions.bias_gelu(cutlass.bfloat16, 8)
    operation = GemmOperationUniversal(**described)
    device = find_tools("nvcc", toolkit.without_memo).device
    target = {"ampere": "sm_90", "hopper": "sm_90a"}[kind]
    cubin = device.compile(operation.source(), target, Processes(1, 8 << 30)).binary
    elements = 64 * 64 // 128  # of a thread
    assert len(re.findall(r"\bMUFU\.EX2\b", toolkit.disassembled(cubin))) == powers * elements


def test_a_wrong_function_is_found() -> None:
    """By as much as CUTLASS's approximations are."""
    for activation in BOUNDED:
        for short in SPELLED:
            x = points(short)
            right = np.array(exact_of(activation, x), np.float64)
            assert too_wrong(activation, short, x, (right * (1 + 2.0**-10)).astype(x.dtype)) != []
