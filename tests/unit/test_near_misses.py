"""Names and calls that are nearly right: each message names what was meant, and each exception is ours or Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from descriptions import ROW, ampere
from test_reduction_arguments import Workspace

import pycutlass
from pycutlass import GemmArguments, MathInstruction, MathOperation, TensorDescription, cutlass
from pycutlass.compiler.choice import choose_target
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.source import KernelSource

F32 = cutlass.float32
OPERATION = ampere("f32_simt", (ROW, ROW, ROW))


def arguments() -> GemmArguments:
    A = np.ones((4, 4), np.float32)
    return GemmArguments(OPERATION, (4, 4, 4), A, A, None, A.copy())


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: MathInstruction([1, 1, 1], F32, F32, F32, "TensorOp"), "cutlass.OpClass.TensorOp"),
        (lambda: MathInstruction([1, 1, 1], F32, F32, F32, "OpClass.Simt"), "cutlass.OpClass.Simt"),
        (
            lambda: MathInstruction([1, 1, 1], F32, F32, F32, math_operation="multiply_add"),
            "MathOperation.multiply_add",
        ),
        (lambda: MathInstruction([1, 1, 1], "float32", F32, F32), "cutlass.float32"),
        (lambda: TensorDescription("f16", ROW), "cutlass.float16"),
        (lambda: TensorDescription("cutlass.bfloat16", ROW), "cutlass.bfloat16"),
        (lambda: TensorDescription("int_8", ROW), "cutlass.int8"),
        (lambda: TensorDescription(F32, "RowMajor"), "cutlass.RowMajor"),
        (lambda: TensorDescription(F32, "column_major"), "cutlass.ColumnMajor"),
        (lambda: TensorDescription(F32, "TensorNHWC"), "cutlass.TensorNHWC"),
    ],
)
def test_a_text_in_place_of_a_member(make: Callable[[], Any], meant: str) -> None:
    with pytest.raises(DescriptionError, match=r"Did you mean .*, without quotes\?") as caught:
        make()
    said = str(caught.value).rpartition("Did you mean ")[2].partition(",")[0]
    assert said == meant
    assert eval(said, {"cutlass": cutlass, "MathOperation": MathOperation}) is not None, "the remedy is code"


def test_a_text_that_is_near_nothing_gets_no_guess() -> None:
    for make in (lambda: TensorDescription("zebra", ROW), lambda: TensorDescription(F32, 7)):
        with pytest.raises(DescriptionError) as caught:
            make()
        assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("given", ["90", "sm90", "SM_90", "compute_90", "9.0", 90])
def test_targets_in_other_words(given: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"Did you mean 'sm_90'\?"):
        pycutlass.compiler.add_module([OPERATION], target=given)
    with pytest.raises(ArgumentError, match=r"Did you mean 'sm_90a'\?"):
        pycutlass.compiler.add_module([OPERATION], target="90a")
    with pytest.raises(ArgumentError, match=r"which is none$"):
        pycutlass.compiler.add_module([OPERATION], target="hopper")


def test_names_of_the_compiler() -> None:
    with pytest.raises(
        AttributeError, match=r"'pycutlass.compiler' has no attribute 'add_modul'. Did you mean add_module\?"
    ):
        pycutlass.compiler.add_modul([])
    with pytest.raises(AttributeError, match=r"has no attribute 'zebra'$"):
        _ = pycutlass.compiler.zebra


_CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: OPERATION.run(), r"run needs arguments made for this operation, got none.*call run\(arguments\)"),
    (lambda: OPERATION.run(arguments(), None, 3), "run takes arguments, stream; got 1 more, 3"),
    (lambda: OPERATION.run(arguments(), strem=0), r"run has no keyword strem.*Did you mean stream\?"),
    (lambda: pycutlass.linear(1, 2, 3, 4, 5), r"linear takes .*; it takes x, w, optionally .*, and options by name$"),
    (lambda: OPERATION.run(argument=arguments()), r"run has no keyword argument.*Did you mean arguments\?"),
    (
        lambda: arguments().update(np.ones((4, 4), np.float32)),
        "update takes by name alone: A, B, C, D, output_op, epilogue; got 1",
    ),
    (lambda: arguments().update(output=1), r"update has no keyword output.*Did you mean output_op\?"),
    (lambda: arguments().sync(1, 2), "sync"),
    (lambda: Workspace().make().update(1), "update takes by name alone"),
    (lambda: Workspace().make().sync(streem=1), "sync"),
]


@pytest.mark.parametrize("number", range(len(_CALLS)))
def test_calls_of_what_is_called_for_each_launch(number: int) -> None:
    call, words = _CALLS[number]
    with pytest.raises(ArgumentTypeError, match=words):
        call()


VALUES = {
    "tile": (lambda: OPERATION.tile_description, "stagez"),
    "instruction": (lambda: OPERATION.tile_description.math_instruction, "opcode_clas"),
    "tensor": (lambda: OPERATION.A, "alignmnet"),
    "functor": (lambda: OPERATION.epilogue_functor, "element_ouput"),
    "scalars": (lambda: OPERATION.epilogue_type(1.0), "alhpa"),
    "size": (lambda: arguments().problem_size, "mm"),
    "convolution": (lambda: cutlass.conv.Conv2dProblemSize(1, 8, 8, 8, 8, 3, 3), "padh"),
    "activation": (lambda: pycutlass.relu(), "thresold"),
    "operation": (lambda: OPERATION, "swizzling_functr"),
    "arguments": (arguments, "ouput_op"),
    "reduction": (lambda: Workspace().make(), "partition"),
}


@pytest.mark.parametrize("name", VALUES)
def test_attributes_that_are_not_there_cannot_be_set(name: str) -> None:
    make, attribute = VALUES[name]
    value = make()
    with pytest.raises(AttributeError) as caught:
        setattr(value, attribute, 1)
    assert attribute in str(caught.value)
    assert not hasattr(value, attribute)
    if name in ("operation", "arguments", "reduction"):
        assert "Did you mean " in str(caught.value)


@pytest.mark.parametrize("attribute", ["output_op", "operation", "problem_size", "split_k_slices", "bias", "sync"])
def test_attributes_of_arguments_cannot_be_set(attribute: str) -> None:
    """The launch is packed: it would go on as before."""
    made = arguments()
    before = getattr(made, attribute)
    with pytest.raises(AttributeError, match=f"{attribute} of GemmArguments cannot be set.*make new ones"):
        setattr(made, attribute, None)
    assert getattr(made, attribute) == before
    with pytest.raises(AttributeError, match=r"or arguments.update\(output_op=\.\.\.\)"):
        made.output_op = OPERATION.epilogue_type(2.0)  # type: ignore[misc]


@pytest.mark.parametrize(("target", "near"), [("sm_80a", "sm_80"), ("sm_89f", "sm_89"), ("sm_90f", "sm_90")])
def test_letters_of_targets_that_do_not_have_them(target, near):
    source = KernelSource("kernel_a", "", 80, native=False)
    with pytest.raises(ArgumentError, match=rf"targets that end in . begin with sm_.*Did you mean '{near}'\?"):
        choose_target(source, target)
    for known in ("sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_120"):
        assert choose_target(source, known) == known
