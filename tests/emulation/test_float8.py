"""Numbers are rounded to floats of 8 bits as ml_dtypes and torch round what was clamped before."""

from __future__ import annotations

import subprocess
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from descriptions import native_parts, parts
from emulator import Emulator
from epilogue_functions import FUNCTIONS
from numpy.typing import NDArray

from pycutlass import (
    Conv2dOperation,
    GemmOperationGrouped,
    GemmOperationUniversal,
    ReductionOperation,
    TensorDescription,
    cutlass,
    epilogue,
    epilogue_function,
)
from pycutlass.epilogue import Row, Tensor
from pycutlass.types import element

pytestmark = pytest.mark.compile

KINDS = {
    cutlass.float_e4m3: (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    cutlass.float_e5m2: (ml_dtypes.float8_e5m2, torch.float8_e5m2),
}
MAIN = """
template <typename Element, typename Number>
void convert(char const* count) {
  for (int i = std::atoi(count); i > 0; --i) {
    Number given;
    if (std::fread(&given, sizeof(given), 1, stdin) != 1) std::abort();
    Element const stored = pycutlass::function::Stored<Element>::of(given);
    Number const back = pycutlass::function::rounded_to<Element>(given);
    std::fwrite(&stored, 1, 1, stdout);
    std::fwrite(&back, sizeof(back), 1, stdout);
  }
}
int main(int, char** words) {
  convert<cutlass::float_e4m3_t, float>(words[1]);
  convert<cutlass::float_e4m3_t, double>(words[2]);
  convert<cutlass::float_e5m2_t, float>(words[1]);
  convert<cutlass::float_e5m2_t, double>(words[2]);
}
"""


def numbers(dtype: Any) -> NDArray[Any]:
    """Return every value of both types, what lies between neighbours, the numbers beside all these, and extremes."""
    values = [np.arange(256, dtype=np.uint8).view(kind).astype(np.float64) for kind, _ in KINDS.values()]
    finite = np.unique(np.concatenate([each[np.isfinite(each)] for each in values]))
    between = [(finite[1:] + finite[:-1]) / 2]
    for each in values:  # of one type alone: halves are ties there
        alone = np.unique(each[np.isfinite(each)])
        between.append((alone[1:] + alone[:-1]) / 2)
    limits = [448, 464, 465, 480, 57344, 61440, 65536, 1e30, 3.4e38, 1e-30, 1e-45, 2.0**-10, 2.0**-17, 2.0**-126, 0.0]
    exact = np.concatenate([finite, *between, limits, np.negative(limits), [np.inf, -np.inf, np.nan]]).astype(dtype)
    drawn = np.random.default_rng(0)
    spread = (drawn.standard_normal(4000) * 2.0 ** drawn.uniform(-25, 20, 4000)).astype(dtype)
    with np.errstate(all="ignore"):
        beside = [np.nextafter(exact, dtype(way)) for way in (np.inf, -np.inf)]
    return np.concatenate([exact, *beside, spread])


def test_all_numbers_are_rounded_as_others_round_them(emulator: Emulator) -> None:
    program = emulator.build(f"{emulator._headers}{MAIN}")
    given = {dtype: numbers(dtype) for dtype in (np.float32, np.float64)}
    sent = b"".join(given[dtype].tobytes() for dtype in (np.float32, np.float64)) * 2
    command = [str(program), *(str(each.size) for each in given.values())]
    said = subprocess.run(command, input=sent, capture_output=True, check=True).stdout
    for kind, (held, of_torch) in KINDS.items():
        greatest = float(ml_dtypes.finfo(held).max)
        for dtype, values in given.items():
            row = np.dtype([("stored", np.uint8), ("back", dtype)])
            made, said = np.frombuffer(said[: values.size * row.itemsize], row), said[values.size * row.itemsize :]
            wanted = np.clip(values, -greatest, greatest).astype(held)
            stored = made["stored"].view(held)
            assert np.array_equal(np.isnan(stored), np.isnan(values))
            same = (stored.view(np.uint8) == wanted.view(np.uint8)) | np.isnan(values)
            assert same.all(), (kind, values[~same][:5], stored[~same][:5], wanted[~same][:5])
            assert np.array_equal(made["back"], wanted.astype(dtype), equal_nan=True)
            ours = element(kind).round(values)
            assert np.array_equal(ours.astype(dtype), wanted.astype(dtype), equal_nan=True)
            if dtype is np.float32:
                theirs = torch.from_numpy(values).clamp(-greatest, greatest).to(of_torch).to(torch.float32).numpy()
                assert np.array_equal(wanted.astype(np.float32), theirs, equal_nan=True)
    assert not said


@epilogue_function
def narrow(accum: Any, x: Tensor, scale: Row) -> Any:
    t = accum * scale + x
    return {"D": t, "T": epilogue.cast(t, cutlass.float_e5m2) - t, "second": t * 64.0, "most": epilogue.absmax(t)}


def narrowed(kind: Any, C: TensorDescription, **types: Any) -> Any:
    """Return `narrow` with tensors of floats of 8 bits beside a D of type `kind`."""
    given = {"x": cutlass.float_e5m2, "scale": cutlass.float_e4m3, "T": cutlass.float32, "second": cutlass.float_e4m3}
    return narrow(kind, C.alignment, cutlass.float32, **given | types)


@pytest.mark.parametrize(
    ("kind", "alignment", "tile"),
    [
        (cutlass.float_e4m3, 16, (64, 128, 32)),
        (cutlass.float_e5m2, 8, (128, 64, 32)),
        (cutlass.float_e4m3, 2, (64, 64, 32)),
        (cutlass.float16, 8, (64, 64, 32)),
    ],
)
def test_tensors_of_a_gemm(kind: Any, alignment: int, tile: tuple[int, int, int], emulator: Emulator) -> None:
    described = parts("f16", tile=tile)
    C = TensorDescription(kind, cutlass.RowMajor, alignment)
    operation = GemmOperationUniversal(**described | {"C": C, "epilogue_functor": narrowed(kind, C)})
    right, said = emulator.run_function(operation)
    assert right, said


def test_c_and_d_of_a_group(emulator: Emulator) -> None:
    C = TensorDescription(cutlass.float_e5m2, cutlass.RowMajor, 8)
    functor = FUNCTIONS["several"](C.element, 8, cutlass.float32, x=cutlass.float16, first=cutlass.float_e4m3)
    described = parts("f16", tile=(64, 64, 32)) | {"C": C, "epilogue_functor": functor}
    right, said = emulator.run_group(GemmOperationGrouped(**described))
    assert right, said


def test_partial_sums(emulator: Emulator) -> None:
    C = TensorDescription(cutlass.float_e4m3, cutlass.RowMajor, 8)
    functor = FUNCTIONS["several"](C.element, 8, cutlass.float32, y=cutlass.float_e5m2)
    operation = ReductionOperation((4, 256), C, cutlass.float32, None, None, functor, 8, 4)
    right, said = emulator.run_reduction(operation)
    assert right, said


def test_a_convolution(emulator: Emulator) -> None:
    kind, nhwc = cutlass.float_e4m3, cutlass.TensorNHWC
    A, C = TensorDescription(cutlass.float16, nhwc, 8), TensorDescription(kind, nhwc, 8)
    tile = parts("f16", tile=(64, 64, 32))["tile_description"]
    operation = Conv2dOperation(
        cutlass.conv.Operator.fprop,
        cutlass.conv.IteratorAlgorithm.optimized,
        80,
        tile,
        A,
        A,
        C,
        epilogue_functor=narrowed(kind, C),
    )
    right, said = emulator.run_convolution(operation)
    assert right, said


def test_what_hopper_native_kernels_write_beside_d(emulator: Emulator) -> None:
    described = native_parts(tile=(128, 64, 64), cluster=(1, 1))
    functor = narrowed(described["C"].element, described["C"])
    right, said = emulator.run_hopper(GemmOperationUniversal(**described | {"epilogue_functor": functor}))
    assert right, said
