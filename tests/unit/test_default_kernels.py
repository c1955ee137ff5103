"""The default kernels: those that the pick chooses, the most important first, and how much they serve."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pick_shapes import HELD_OUT, Shape
from pycutlass import cutlass
from pycutlass.compiler import manifest
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan import Candidate, GemmKind, defaults, pick
from pycutlass.plan.defaults import MOST_KERNELS, TARGETS, default_kernels
from pycutlass.plan.forms import Form
from pycutlass.plan.kinds import Wanted, kind_of
from pycutlass.plan.readings import range_of
from pycutlass.types import element

#: How tables call the operands of a problem, and how `matmul` is asked for them.
OPERANDS: dict[str, tuple[Any, str | None]] = {
    "f16": (cutlass.float16, None),
    "bf16": (cutlass.bfloat16, None),
    "tf32": (cutlass.float32, "tf32"),
    "e4m3": (cutlass.float_e4m3, None),
    "s8": (cutlass.int8, None),
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the list be made of few problems: of all, it takes half a minute."""
    monkeypatch.setattr(defaults, "_ROWS", (1, 16, 512, 4096))
    monkeypatch.setattr(defaults, "_LAYERS", ((4096, 4096), (768, 3072)))
    monkeypatch.setattr(defaults, "_OPERANDS", {(cutlass.bfloat16, None): 3, (cutlass.int8, None): 1})
    monkeypatch.setattr(defaults, "_LAYOUTS", {(True, False): 1})


def kind(shape: Shape) -> GemmKind:
    """Return the kind of GEMM of a problem whose tensors are aligned to 16 bytes."""
    operands, precision = OPERANDS[shape.operands]
    of, wanted = element(operands), Wanted(precision=precision)
    types = of, of, wanted.output(of)
    a, b, d = (Form(lies == "t", 128 // each.bits) for lies, each in zip(shape.layouts, types, strict=True))
    return kind_of(of, of, (a, b, None, d), wanted)


def chosen(shape: Shape, gpu: Device) -> Candidate | None:
    """Return what a plan has for a problem; None where the GPU has no kernels for it."""
    try:
        return pick(kind(shape), range_of(shape.m), shape.n, shape.k, shape.batch, gpu)
    except ArgumentError:
        return None


@pytest.mark.parametrize("target", ["sm_86", "sm_90a"])
def test_a_list_has_one_kernel_of_each_text_in_a_fixed_order(target: str, few: None) -> None:
    kernels = default_kernels(target)
    sources = [kernel.source() for kernel in kernels]
    assert 20 < len(kernels) <= MOST_KERNELS
    assert len({source.text for source in sources}) == len({source.name for source in sources}) == len(sources)
    assert default_kernels(target, 7) == kernels[:7]
    assert len(manifest(kernels)["kernels"]) == len(kernels), "nothing else is compiled for them"
    assert any(source.native for source in sources) is (target == "sm_90a")
    assert all(source.compute_capability <= int(target[3:5]) for source in sources)


def test_what_serves_more_comes_first(few: None) -> None:
    weights: Counter[Any] = Counter()
    for candidate, weight in defaults._chosen(TARGETS["sm_90a"]):
        weights.update({kernel.source(): weight for kernel in candidate.kernels})
    in_order = [weights[kernel.source()] for kernel in default_kernels("sm_90a")]
    assert in_order == sorted(weights.values(), reverse=True)[:MOST_KERNELS]


def test_the_list_is_the_same_in_every_process(few: None) -> None:
    program = (
        "from pycutlass import cutlass\nfrom pycutlass.plan import defaults\n"
        "defaults._ROWS, defaults._LAYERS = (1, 16, 512, 4096), ((4096, 4096), (768, 3072))\n"
        "defaults._OPERANDS = {(cutlass.bfloat16, None): 3, (cutlass.int8, None): 1}\n"
        "defaults._LAYOUTS = {(True, False): 1}\n"
        "print(*(kernel.source().name for kernel in defaults.default_kernels('sm_80')))"
    )
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [kernel.source().name for kernel in default_kernels("sm_80")]


def test_the_problems_are_those_that_plans_choose_for() -> None:
    assert all(range_of(rows) == rows for rows in defaults._ROWS), "a plan asks for the end of a range of M"
    assert min(defaults._ROWS) == 1 and max(defaults._ROWS) == 16384
    assert {gpu.compute_capability for gpus in TARGETS.values() for gpu in gpus} == {80, 86, 89, 90}
    assert [gpu.target for gpus in TARGETS.values() for gpu in gpus] == [
        target.removesuffix("a") for target, gpus in TARGETS.items() for _ in gpus
    ]


@settings(max_examples=25)  # each with a kind of GEMM of its own, for which all candidates are made
@given(
    st.sampled_from([gpu for gpus in TARGETS.values() for gpu in gpus]),
    st.sampled_from([*itertools.product(defaults._OPERANDS, defaults._LAYOUTS, (True, False))]),
    st.sampled_from([epilogue for epilogue in defaults._EPILOGUES if epilogue is not None]),
    *(st.sampled_from(defaults._ROWS), st.sampled_from(defaults._LAYERS)),
)
def test_an_activation_does_not_change_what_is_chosen(gpu: Device, of: Any, epilogue: Any, m: int, layer: Any) -> None:
    plain, activated = defaults._kind(*of, None), defaults._kind(*of, epilogue)
    if plain is None or activated is None:
        assert of[0][0] is cutlass.int8 or plain is activated is None, "integers alone have no activations"
        return
    try:
        expected = pick(plain, m, *layer, gpu=gpu)
    except ArgumentError:
        with pytest.raises(ArgumentError):
            pick(activated, m, *layer, gpu=gpu)
    else:
        assert Candidate.of(activated, expected.choice()) == pick(activated, m, *layer, gpu=gpu)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("sm_90",), ArgumentError),
        (("sm_80", 0), ArgumentError),
        (("sm_80", 401), ArgumentError),
        (("sm_80", 1.5), ArgumentTypeError),
        ((80,), ArgumentTypeError),
    ],
)
def test_other_targets_and_numbers_are_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"sm_80|a target and a number"):
        default_kernels(*arguments)


@pytest.mark.thorough
@pytest.mark.parametrize(("target", "least"), [("sm_80", 0.78), ("sm_86", 0.74), ("sm_89", 0.82), ("sm_90a", 0.70)])
def test_share_of_other_problems_that_need_no_compiler(target: str, least: float) -> None:
    """Of problems that the list was not made from, with results by rows, as `matmul` returns them."""
    known = {kernel.source() for kernel in default_kernels(target)}
    for gpu in TARGETS[target]:
        served: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        for shape in HELD_OUT:
            if shape.operands == "e4m3" and target != "sm_90a":
                continue  # there are kernels for few rows alone
            candidate = chosen(shape, gpu) if shape.layouts[2] == "t" else None
            if candidate is not None:
                is_served = all(kernel.source() in known for kernel in candidate.kernels)
                for group in ("all", shape.operands, shape.layouts):
                    seen[group] += 1
                    served[group] += is_served
        print(f"{target}, {gpu.name}:", *(f"{group} {served[group]}/{seen[group]}" for group in seen))
        assert seen["all"] >= 180
        assert served["all"] >= least * seen["all"]
