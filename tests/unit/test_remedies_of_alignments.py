"""Extents and tensors that are less aligned than described: the description that a message names is accepted."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convolutions import conv, dgrad, fprop, wgrad
from descriptions import LAYOUTS, ROW, ampere, hopper, native_parts, parts
from rule_baselines import BASELINES

from pycutlass import GemmArguments, GemmOperationGrouped, GemmOperationUniversal, cutlass
from pycutlass.errors import AlignmentError, DescriptionError

pytestmark = pytest.mark.usefixtures("without_gpu")

Size = cutlass.conv.Conv2dProblemSize
#: A reduced alignment of operands, of the functor, and other stages.
OPERANDS = re.compile(r"((?:[ABC] and )*[ABC])(?:, which D follows,)? with alignment (\d+)")
LENGTH, STAGES = re.compile(r"epilogue_vector_length=(\d+)"), re.compile(r"stages=(\d+)")


def mended(operation: Any, message: str) -> Any:
    """Return the operation that a message tells to describe; None where it tells to pad alone."""
    if ", or describe " not in message:
        return None
    advice = message.partition(", or describe ")[2]
    fields = {name: getattr(operation, name) for name in operation._FIELDS if name not in ("D", "swap_ab")}
    for names, alignment in OPERANDS.findall(advice):
        for name in names.split(" and "):
            fields[name] = replace(fields[name], alignment=int(alignment))
    if match := LENGTH.search(advice):
        fields["epilogue_functor"] = replace(fields["epilogue_functor"], epilogue_vector_length=int(match[1]))
    if "cluster_shape=[1, 1]" in advice:
        fields["tile_description"] = replace(fields["tile_description"], cluster_shape=(1, 1, 1))
    if match := STAGES.search(advice):
        fields["tile_description"] = replace(fields["tile_description"], stages=int(match[1]))
    return type(operation)(**fields)


def grouped(described: dict[str, Any]) -> GemmOperationGrouped:
    return GemmOperationGrouped(**{name: part for name, part in described.items() if name != "swizzling_functor"})


GEMMS = {
    **{f"f16 {i}": ampere("f16", layouts) for i, layouts in enumerate(LAYOUTS)},
    **{kind: ampere(kind, (ROW, ROW, ROW)) for kind in ("f16_out32", "bf16", "tf32", "f32")},
    **{name: GemmOperationUniversal(**described) for name, described in BASELINES.items()},
}


def followed(operation: Any, problem: Any) -> Any:
    """Return the operation after each message was followed; each operand is named once at most."""
    for _ in range(3):
        other = mended(operation, operation.supports(problem).reason)
        if other is None:
            return operation
        operation = other
    return operation


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("group", [False, True], ids=["alone", "grouped"])
def test_the_description_that_is_named_takes_the_problem(name: str, group: bool) -> None:
    operation = GEMMS[name]
    if group:
        if name in ("interleaved", "mixed", "turing int8", "hopper", "hopper e4m3", "hopper tf32", "gemv"):
            operation = GEMMS["f16 0"]
        operation = grouped({each: getattr(operation, each) for each in operation._FIELDS[:-2]})
    for size in itertools.product((128, 132, 130, 129), repeat=3):
        problem: Any = [size] if group else size
        made = followed(operation, problem)
        answer = made.supports(problem)
        assert answer or ", or describe " not in answer.reason, answer


@pytest.mark.parametrize("size", [(256, 128, 60), (256, 124, 64), (256, 4, 64), (256, 126, 62), (256, 5, 64)])
@pytest.mark.parametrize("output", ["f16", "f32"])
def test_tensors_of_a_hopper_native_group_can_only_be_padded(size: tuple[int, int, int], output: str) -> None:
    operation, group = hopper(output=output), grouped(native_parts(output=output))
    size = size if output == "f16" or size[1] % 4 or size[2] != 64 else (size[0], size[1] + 2, size[2])
    answer = group.supports([size])
    assert re.search(r"as TMA needs 16-byte alignment\. Pad the tensor with \d columns?( of zeros)?\.$", answer.reason)
    made = followed(operation, size)
    assert not operation.supports(size) and made.supports(size)
    assert made.loads_by_cp_async == (size[2] != 64) and made.stores_directly
    padded = tuple(-(-extent // 8) * 8 for extent in size)
    assert operation.supports(padded) and group.supports([padded])


def test_below_4_bytes_the_ampere_style_kernel_is_named() -> None:
    operation, size = hopper(cluster=(1, 1)), (256, 128, 63)
    answer = operation.supports(size)
    padded = "and cp.async 4-byte alignment. Pad the tensor with 1 column of zeros"
    assert f"{padded}, or for an Ampere-style kernel leave out " in answer.reason
    assert answer.reason.endswith("and describe A and B with alignment 1.")
    with pytest.raises(DescriptionError, match=r"multiples of 4.*aligned to 2.*for an Ampere-style kernel leave out"):
        replaced = {"A": replace(operation.A, alignment=1), "B": replace(operation.B, alignment=1)}
        GemmOperationUniversal(**native_parts(cluster=(1, 1)) | replaced)


def test_k_is_shared_by_both_operands() -> None:
    answer = ampere("f16").supports((128, 128, 60))
    assert answer.reason.endswith("Pad the tensor with 4 columns of zeros, or describe A and B with alignment 4.")
    answer = ampere("f16").supports((128, 128, 63))
    assert "describe A and B with alignment 1 and give the tile stages=2" in answer.reason


def test_d_follows_c() -> None:
    operation, size = ampere("f16"), (128, 130, 64)
    answer = operation.supports(size)
    assert "describe C, which D follows, with alignment 2 and give the epilogue functor" in answer.reason
    assert mended(operation, answer.reason).supports(size)
    A, B, D = np.ones((128, 64), np.float16), np.ones((130, 64), np.float16).T, np.zeros((128, 130), np.float16)
    with pytest.raises(AlignmentError) as caught:
        GemmArguments(operation, size, A, B, None, D)
    assert str(caught.value) == answer.reason
    other = mended(operation, str(caught.value))
    other.run(GemmArguments(other, size, A, B, None, D))
    assert (D == 64).all()


def test_what_always_has_one_alignment_is_padded() -> None:
    operation = GEMMS["int8 simt"]
    reason = operation.supports((128, 128, 66)).reason
    assert reason.endswith("Pad the tensor with 2 columns of zeros.") and operation.supports((128, 128, 68))


CONVOLUTIONS = [
    conv(fprop, "optimized"),
    conv(fprop, "analytic"),
    conv(fprop, "few_channels", alignments=4),
    conv(fprop, "few_channels", alignments=8),
    conv(dgrad, "optimized"),
    conv(wgrad, "optimized"),
]


@pytest.mark.parametrize("operation", CONVOLUTIONS, ids=lambda each: f"{each.conv_kind.name}-{each.A.alignment}")
def test_the_description_that_is_named_takes_the_convolution(operation: Any) -> None:
    for channels, filters in itertools.product((8, 12, 10, 3), repeat=2):
        p = Size(1, 8, 8, channels, filters, 3, 3)
        answer = followed(operation, p).supports(p)
        assert answer or ", or describe " not in answer.reason, answer


def test_a_convolution_of_three_channels_names_both_steps() -> None:
    operation, p = conv(fprop, "few_channels", alignments=4), Size(1, 8, 8, 3, 8, 3, 3)
    reason = operation.supports(p).reason
    assert "or describe A and B with alignment 1 and give the tile stages=2, since" in reason
    assert mended(operation, reason).supports(p)


def test_parts_are_those_of_an_operation() -> None:
    assert mended(GemmOperationUniversal(**parts()), "pad the tensor") is None
