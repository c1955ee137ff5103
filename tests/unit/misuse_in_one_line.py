"""Products, groups and convolutions in one line and their plans, with arguments that are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from attempts import Call

import pycutlass
from pycutlass.calls import public

__all__ = ["in_one_line"]


def in_one_line() -> Iterator[Call]:
    """Yield all of them."""
    yield from _products()
    yield from _groups()


def f32(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _products() -> Iterator[Call]:
    """Yield products in one line, of tensors and of plans."""

    def operands() -> dict[str, Any]:
        a, b = np.ones((4, 8), np.float32), np.ones((8, 6), np.float32)
        return {"a": a, "b": b, "c": np.ones((4, 6), np.float32), "beta": 1.0, "out": np.empty((4, 6), np.float32)}

    options = {"alpha": 1.0, "epilogue": None, "epilogue_inputs": None, "out_dtype": None, "accumulator_dtype": None}
    further = {"bias": None, "precision": None, "scales": None, "plan": None, "allow_copy": False, "stream": None}
    x, w = np.ones((2, 3, 8), np.float16), np.ones((6, 8), np.float16)
    plan = pycutlass.Gemm(**{name: tensor for name, tensor in operands().items() if name != "out"})
    yield Call("matmul", pycutlass.matmul, lambda: {**operands(), **options, **further})
    yield Call("linear", pycutlass.linear, lambda: {"x": x, "w": w, "bias": None, "activation": None})
    scales = np.ones(4, np.float32), np.ones((1, 6), np.float32)
    scaled = {name: each for name, each in operands().items() if name not in ("c", "beta")} | {"scales": scales}
    yield Call("scaled matmul", pycutlass.matmul, lambda: {**scaled, "alpha": 1.0, "bias": np.ones(6, np.float32)})

    def scaled_by(scale_a: Any, scale_b: Any) -> Any:
        return pycutlass.matmul(scaled["a"], scaled["b"], scales=(scale_a, scale_b))

    yield Call("scales", public(scaled_by), lambda: {"scale_a": scales[0], "scale_b": 2.0})
    yield Call("Gemm", pycutlass.Gemm, lambda: {**operands(), **options, "precision": None, "bias": None}, repr)
    yield Call(
        "Gemm.run",
        plan.run,
        lambda: {name: each for name, each in operands().items() if name != "beta"} | {"stream": None, "bias": None},
    )

    yield from _convolutions(options | {"precision": None})

    def tune(plans: Any, budget: Any, options: Any, database: Any) -> Any:  # `problems` is what tests call theirs
        return pycutlass.tune(plans, budget, options=options, database=database)

    yield Call("tune", public(tune), lambda: {"plans": plan, "budget": "1s", "options": None, "database": None})
    yield Call("Gemm.tune", plan.tune, lambda: {"budget": "1s", "options": None, "database": None})


def _convolutions(options: dict[str, Any]) -> Iterator[Call]:
    """Yield convolutions in one line, and a plan."""
    x, w, y = f32(2, 5, 6, 4), f32(8, 3, 2, 4), f32(2, 5, 7, 8)
    geometry = {"stride": 1, "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    further = {**geometry, **options, "beta": 1.0, "plan": None, "allow_copy": False, "stream": None}
    yield Call("conv2d", pycutlass.conv2d, lambda: {
        "x": x, "w": w, "c": y, "bias": None, "out": np.empty_like(y), **further})  # fmt: skip
    yield Call("conv2d_input", pycutlass.conv2d_input, lambda: {
        "grad": y, "w": w, "input_size": x.shape, "c": x, "out": np.empty_like(x), **further})  # fmt: skip
    yield Call("conv2d_weight", pycutlass.conv2d_weight, lambda: {
        "grad": y, "x": x, "weight_size": w.shape, "c": w, "out": np.empty_like(w), **further})  # fmt: skip
    planned = {"a": x, "b": w, "c": y, "beta": 1.0}
    plan = pycutlass.Conv2d(**planned, padding=1)
    yield Call("Conv2d", pycutlass.Conv2d, lambda: {
        **options, **planned, **geometry, "kind": "fprop", "result_size": None, "out": None,
        "bias": None}, repr)  # fmt: skip
    yield Call(
        "Conv2d.run", plan.run, lambda: {"a": x, "b": w, "c": y, "out": np.empty_like(y), "stream": None, "bias": None}
    )
    yield Call("Conv2d.tune", plan.tune, lambda: {"budget": "1s", "options": None, "database": None})


def _groups() -> Iterator[Call]:
    """Yield many products in one line, of lists, of divided matrices and of a plan."""
    options = {"alpha": 1.0, "epilogue": None, "epilogue_inputs": None, "out_dtype": None, "accumulator_dtype": None}
    further = {"bias": None, "precision": None, "plan": None, "allow_copy": False, "stream": None}

    def lists() -> dict[str, Any]:
        sizes = (4, 6, 8), (2, 5, 3)
        ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
        xs, ws = [ones(m, k) for m, _, k in sizes], [ones(k, n) for _, n, k in sizes]
        cs, out = ([ones(m, n) for m, n, _ in sizes] for _ in range(2))
        return {"xs": xs, "ws": ws, "cs": cs, "beta": 1.0, "out": out}

    def divided() -> dict[str, Any]:
        xs, ws = np.ones((6, 8), np.float32), np.ones((3, 8, 4), np.float32)
        return {"xs": xs, "ws": ws, "offs": np.array([2, 2, 5], np.int32), "bias": np.ones((3, 4), np.float32)}

    plan = pycutlass.GroupedGemm(**divided())
    yield Call("grouped_matmul", pycutlass.grouped_matmul, lambda: {**lists(), **options, **further})
    yield Call("grouped_matmul with offs", pycutlass.grouped_matmul, divided)
    yield Call("GroupedGemm.tune", plan.tune, lambda: {"budget": "1s", "options": None, "database": None})
    yield Call("GroupedGemm", pycutlass.GroupedGemm, lambda: {**lists(), **options, "precision": None}, repr)
    yield Call("GroupedGemm with offs", pycutlass.GroupedGemm, divided, repr)
    for name, run in (("run", plan.run), ("run_once", plan.run_once)):
        yield Call(f"GroupedGemm.{name}", run, lambda: {**divided(), "out": np.empty((6, 4), np.float32)})
