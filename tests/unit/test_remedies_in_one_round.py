"""Tensors with more than one thing wrong: what the message says is done once, is accepted, and the result is right."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from descriptions import COLUMN, ROW, ampere, as_torch, hopper

import pycutlass
from pycutlass import GemmArguments, PyCutlassError, cutlass

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
M, N, K, BATCH = 16, 24, 32, 3
SHAPES = {"A": (M, K), "B": (K, N), "C": (M, N), "D": (M, N)}
CODE = re.compile(r"(?:\b[Pp]ass|\b[Mm]ake \S+ as) (\S.*?)(?:, which | and read|, or |\. |\.?$|; )")
TOOLS = {"np": np, "torch": torch, "ml_dtypes": ml_dtypes, "pycutlass": pycutlass}


def said(call: Callable[[], Any]) -> str:
    with pytest.raises(PyCutlassError) as caught:
        call()
    return str(caught.value)


def followed(message: str, given: dict[str, Any]) -> Any:
    """Return what the code in a message makes of the tensors that were given."""
    code = CODE.search(message)
    assert code is not None, message
    return eval(code[1], TOOLS, given)


def values(shape: tuple[int, ...], dtype: Any, row_major: bool = True, library: str = "numpy") -> Any:
    array = np.random.default_rng(len(shape) + shape[-1]).integers(-3, 4, shape).astype(dtype)
    if not row_major:
        array = np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return as_torch(array) if library == "torch" else array


def plain(tensor: Any) -> Any:
    tensor = tensor.float().numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
    return tensor.astype(np.float64)


def with_gaps(array: Any) -> Any:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def with_odd_rows(array: Any) -> Any:
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
    wide[..., 1:] = array
    return wide[..., 1:]


def other_layout(array: Any) -> Any:
    made = np.ascontiguousarray(array)
    if made.strides == array.strides:
        made = np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return made


def reversed_rows(array: Any) -> Any:
    return np.ascontiguousarray(array[..., ::-1, :])[..., ::-1, :]


#: What is done to an operand; each keeps its values.
FORMS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda array: array,
    "other layout": other_layout,
    "gaps": with_gaps,
    "odd rows": with_odd_rows,
    "reversed": reversed_rows,
}
KINDS: dict[str, Callable[[Any], Any]] = {
    "same type": lambda array: array,
    "float64": lambda array: array.astype(np.float64),
    "big-endian": lambda array: array.astype(">f4"),
    "masked": lambda array: np.ma.masked_array(array.astype(np.float32)),
    "list": lambda array: array.tolist(),
}


def is_numpy_alone(kind: str, form: str) -> bool:
    return kind in ("big-endian", "masked", "list") or form == "reversed"


def launch(operation: Any, mode: Any, given: dict[str, Any]) -> Any:
    """Return D = A x B + C, which a batch has in each matrix, and an array in its first."""
    options = {"gemm_mode": mode, "batch": BATCH} if mode is not Mode.Gemm else {}
    tensors: Any = given
    if mode is Mode.Array:
        tensors = {each: [tensor] * BATCH for each, tensor in given.items()}
        D = given["D"]
        tensors["D"] = [D, *(D.copy("K") if isinstance(D, np.ndarray) else D.clone() for _ in range(BATCH - 1))]
    scalars = operation.epilogue_type(1.0, 1.0)
    arguments = GemmArguments(operation, (M, N, K), **tensors, output_op=scalars, **options)
    operation.run(arguments)
    arguments.sync()
    return given["D"]


OPERATIONS = {
    "f16 rows": ampere("f16", (ROW, ROW, ROW)),
    "f16 columns": ampere("f16", (COLUMN, COLUMN, COLUMN)),
    "bf16": ampere("bf16", (ROW, COLUMN, ROW)),
    "tf32": ampere("tf32", (ROW, ROW, COLUMN)),
    "native": hopper(),
}
DESCRIBED = [
    *itertools.product(OPERATIONS, ("numpy", "torch"), KINDS, FORMS),
]


@pytest.mark.parametrize("mode", [Mode.Gemm, Mode.Batched, Mode.Array], ids=str)
@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
def test_one_round_mends_type_and_layout(name: str, mode: Any) -> None:
    tried = 0
    for which, library, kind, form in DESCRIBED:
        operation = OPERATIONS[which]
        if (library == "torch" and is_numpy_alone(kind, form)) or mode not in operation.family.modes:
            continue
        outer = (BATCH,) if mode is Mode.Batched else ()
        given = {}
        for each, shape in SHAPES.items():
            described = operation.C if each == "D" else getattr(operation, each)
            given[each] = values((*outer, *shape), described.type.dtype, described.is_row_major, "numpy")
        exact = plain(given["A"]) @ plain(given["B"]) + plain(given["C"])
        given[name] = KINDS[kind](FORMS[form](given[name]))
        if library == "torch":
            given = {each: as_torch(array) if isinstance(array, np.ndarray) else array for each, array in given.items()}
        if mode is Mode.Array and name == "D" and (kind == "list" or form != "as it is" or library == "torch"):
            continue  # a copy of an array is packed, and has been tried
        try:
            D = launch(operation, mode, given)
        except PyCutlassError as error:
            message = str(error)
            label = f"{name}[0]" if mode is Mode.Array else name
            assert f"perand {label} " in message, message
            known = {**given, name: [given[name]]} if mode is Mode.Array else given
            given[name] = followed(message, known)
            try:
                D = launch(operation, mode, given)
            except PyCutlassError as again:
                pytest.fail(f"{which} {library} {kind} {form}: {message}\n  then: {again}")
            tried += 1
        np.testing.assert_array_equal(plain(D), exact, err_msg=f"{which} {library} {kind} {form}")
    assert tried > (5 if mode is Mode.Array and name == "D" else 10)
