"""Problems for operations with epilogue functions: operands, launches, and what must come out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import pycutlass
from pycutlass import cutlass

__all__ = ["check", "drawn", "launch"]

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}

#: Floats of 8 bits saturate.
GREATEST = {"e4m3": 448.0, "e5m2": 57344.0}


def laid(tensor: Any, layout: Any) -> Any:
    """Return a tensor whose rows, or columns, are adjacent."""
    turned = layout is cutlass.ColumnMajor
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if turned else tensor.contiguous()


def drawn(operation: Any, m: int, n: int, k: int, batch: tuple[int, ...] = (), *, scale: float = 1.0) -> dict[str, Any]:
    """Return operands, inputs of the epilogue, and outputs without numbers; A and B are multiplied by `scale`."""

    def randn(*shape: int, kind: str) -> Any:
        return torch.randn(*batch, *shape, device="cuda", dtype=torch.bfloat16).to(TORCH[kind])

    functor, A, B, C = operation.epilogue_functor, operation.A, operation.B, operation.C
    target = (*batch, m, functor.columns(n))
    given = {
        "A": laid(randn(m, k, kind=A.type.short), A.layout),
        "B": laid(randn(k, n, kind=B.type.short), B.layout),
        "D": torch.full(target, float("nan"), device="cuda", dtype=TORCH[functor.output.short]),
        "C": laid(randn(m, n, kind=C.type.short), C.layout) if functor.reads_source else None,
    }
    if scale != 1:  # torch multiplies no floats of 8 bits
        for name in ("A", "B"):
            given[name] *= scale
    given["D"] = laid(given["D"], operation.D.layout)
    layouts = {port.name: port.beside(operation.D).layout for port in functor.ports}
    for port in functor.inputs:
        across = port.columns(n)
        shapes = {"matrix": (m, across), "row": (across,), "column": (m,), "number": () if batch else (1,)}
        shape = shapes[port.form]
        given[port.name] = laid(randn(*shape, kind=port.type.short), layouts[port.name])
    if "x" in given and given["x"].shape[-1] == n:
        keep_apart(given["x"], given["A"], given["B"])
    for port in functor.outputs:
        across = port.columns(n)
        shape = {"row": (across,), "column": (m,), "scalar": (1,), "row_tiles": (m,), "column_tiles": (across,)}
        extents = (*batch, *shape.get(port.form, (m, across)))
        made = torch.full(extents, float("nan"), device="cuda", dtype=TORCH[port.type.short])
        given[port.name] = laid(made, layouts[port.name])
    return given


def keep_apart(x: Any, A: Any, B: Any) -> None:
    """Move elements of a matrix away from the product: functions compare the two, and rounding would decide."""
    exact = x.double()  # torch adds no numbers to floats of 8 bits
    x.copy_(torch.where((A.double() @ B.double() - exact).abs() < 1e-2, exact + 1, exact))


def launch(operation: Any, given: dict[str, Any], slices: int = 1, **scalars: Any) -> Any:
    A, B = given["A"], given["B"]
    others = {port.name: given[port.name] for port in operation.epilogue_functor.ports}
    options: dict[str, Any] = {} if slices == 1 else {"split_k_slices": slices}
    if A.ndim == 3:
        options = {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": A.shape[0]}
    size = (A.shape[-2], B.shape[-1], A.shape[-1])
    arguments = pycutlass.GemmArguments(
        operation,
        size,
        A,
        B,
        given["C"],
        given["D"],
        epilogue=others,
        output_op=operation.epilogue_type(**scalars),
        **options,
    )
    operation.run(arguments)
    return arguments


def check(operation: Any, given: dict[str, Any], **scalars: float) -> None:
    functor = operation.epilogue_functor
    arrays = {name: each.double().cpu().numpy() for name, each in given.items() if each is not None}
    others = {
        each.name: arrays["C" if each.form == "source" else each.name]
        for each in functor.graph.inputs[1:]
        if each.form != "scalar"
    }
    found = functor.function.numpy(arrays["A"] @ arrays["B"], **others, **scalars)
    types = {"D": functor.output.short} | {port.name: port.type.short for port in functor.outputs}
    for name, exact in (found if isinstance(found, dict) else {"D": found}).items():
        relative = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-4, "e4m3": 7e-2, "e5m2": 0.13}[types[name]]
        if types[name] in GREATEST:
            exact = np.clip(exact, -GREATEST[types[name]], GREATEST[types[name]])
        absolute = 2e-2 if arrays[name].shape == exact.shape == arrays["D"].shape else 1e-3 * np.abs(exact).max()
        np.testing.assert_allclose(arrays[name].reshape(exact.shape), exact, relative, absolute, err_msg=name)
