"""Candidates of convolutions and their order: valid, all kinds of kernels, and times that follow the work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pycutlass
from pycutlass import cutlass, device, epilogue
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan import Conv2dCandidate, Conv2dKind, conv2d_candidates, conv2d_pick, conv2d_ranking
from pycutlass.plan.conv_kind import conv_kind_of
from pycutlass.plan.kinds import Wanted
from pycutlass.types import element

A100 = device.Device(0, "NVIDIA A100", 80, 108)
H200 = device.Device(0, "NVIDIA H200", 90, 132)
fprop, dgrad, wgrad = cutlass.conv.Operator
f16, f32, f64, s8 = cutlass.float16, cutlass.float32, cutlass.float64, cutlass.int8
DIRECTIONS = [fprop, dgrad, wgrad]


def kind(direction: Any, of: Any = f16, alignment: int = 8, *, grouped: bool = False, **wanted: Any) -> Conv2dKind:
    """Return a kind of convolution of operands of one type."""
    return conv_kind_of(direction, element(of), element(of), (alignment,) * 3, Wanted(**wanted), grouped)


def size(**other: int) -> Any:
    """Return a problem of 32 images of 28 x 28 pixels, with other extents where they are named."""
    extents = {"N": 32, "H": 28, "W": 28, "C": 128, "K": 128, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}
    return cutlass.conv.Conv2dProblemSize(**(extents | other))


def largest_of_pixels(accum: Any) -> Any:
    """An epilogue function with a result of all channels."""
    return {"D": accum, "largest": epilogue.max(accum, axis=1)}


def algorithms(of: Any) -> set[str]:
    return {each.operation.iterator_algorithm.name for each in of}


@pytest.mark.parametrize("direction", DIRECTIONS, ids=lambda each: each.name)
@pytest.mark.parametrize(("of", "alignment", "precision"), [
    (f16, 8, None), (f16, 1, None), (f32, 1, None), (f32, 4, "tf32"), (f32, 2, "3xtf32"), (f64, 1, None),
])  # fmt: skip
@pytest.mark.parametrize("grouped", [False, True])
def test_each_is_a_kernel_with_a_choice_of_its_own(
    direction: Any, of: Any, alignment: int, precision: str | None, grouped: bool
) -> None:
    asked = kind(direction, of, alignment, grouped=grouped, precision=precision)
    found = conv2d_candidates(asked, 80)
    assert len(found) > 10
    assert len({each.name for each in found}) == len(found)
    assert all(Conv2dCandidate.of(asked, each.choice()) == each for each in found)
    assert all(each.operation.conv_kind is direction for each in found)
    assert all(kernel.emit() for kernel in {kernel for each in found[::9] for kernel in each.kernels})
    assert any(each.is_by_group for each in found) == grouped


def test_all_algorithms_and_both_kernels_of_dgrad_are_among_them() -> None:
    assert algorithms(conv2d_candidates(kind(fprop), 80)) == {
        *("optimized", "analytic", "fixed_channels", "few_channels"),
    }
    assert {each.operation.is_strided_dgrad for each in conv2d_candidates(kind(dgrad), 80)} == {False, True}
    modes = {each.operation.group_mode for each in conv2d_candidates(kind(fprop, grouped=True), 80)}
    assert modes == {None, pycutlass.GroupMode.SingleGroup, pycutlass.GroupMode.MultipleGroup}


def test_slices_take_turns_only_where_d_is_as_exact_as_the_sums() -> None:
    of_f16, of_f32 = (conv2d_candidates(kind(wgrad, of), 80) for of in (f16, f32))
    assert {each.is_parallel for each in of_f16 if each.split_k_slices > 1} == {True}
    assert {each.is_parallel for each in of_f32 if each.split_k_slices > 1} == {False, True}


def test_epilogue_functions_are_unsplit_and_of_one_group_after_the_other() -> None:
    function = pycutlass.epilogue_function(lambda accum: accum * 2)
    found = conv2d_candidates(kind(fprop, epilogue=function), 80)
    assert found
    assert {each.split_k_slices for each in found} == {1}
    grouped = conv2d_candidates(kind(fprop, grouped=True, epilogue=function), 80)
    assert grouped
    assert all(each.is_by_group and each.operation.group_mode is None for each in grouped)
    of_all_channels = kind(fprop, grouped=True, epilogue=pycutlass.epilogue_function(largest_of_pixels))
    assert conv2d_candidates(of_all_channels, 80) == ()


@pytest.mark.parametrize(("capability", "kilobytes"), [(80, 163), (86, 99), (90, 163)])
def test_the_shared_memory_of_a_gpu_limits_tiles(capability: int, kilobytes: int) -> None:
    assert max(each.shared_bytes for each in conv2d_candidates(kind(fprop), capability)) <= kilobytes * 1024


@pytest.mark.parametrize(("direction", "problem", "what"), [
    (fprop, size(), "fprop optimized"),
    (fprop, size(C=8, R=7, S=7), "fprop fixed_channels"),
    (dgrad, size(R=33, S=1, pad_h=16), "dgrad analytic"),
    (dgrad, size(), "dgrad optimized"),
    (dgrad, size(stride_h=2, stride_w=2), "strided dgrad optimized"),
    (wgrad, size(), "wgrad optimized"),
])  # fmt: skip
@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda gpu: gpu.name)
def test_what_is_picked(direction: Any, problem: Any, what: str, gpu: device.Device) -> None:
    asked = kind(direction)
    picked = conv2d_pick(asked, problem, gpu)
    ranked = conv2d_ranking(asked, problem, gpu)
    assert picked.name.startswith(what)
    assert ranked[0].candidate == picked
    assert all(each.candidate.supports(problem) for each in ranked)
    times = [each.microseconds for each in ranked if each.candidate.operation.iterator_algorithm.name != "analytic"]
    assert times == sorted(times)


def test_a_gradient_of_weights_of_many_pixels_is_divided() -> None:
    picked = conv2d_pick(kind(wgrad), size(C=64, K=64, H=56, W=56), H200)
    assert picked.is_parallel
    assert picked.split_k_slices >= 8
    assert conv2d_pick(kind(wgrad), size(N=1, H=7, W=7, C=512, K=2048), H200).split_k_slices == 1


def test_depthwise_is_one_launch_and_large_groups_are_too() -> None:
    asked = kind(fprop, alignment=1, grouped=True)
    depthwise = size(C=256, K=256, groups=256)
    assert conv2d_pick(asked, depthwise, A100).operation.group_mode is pycutlass.GroupMode.MultipleGroup
    two = conv2d_pick(kind(fprop, grouped=True), size(groups=2), A100)
    assert two.operation.group_mode is pycutlass.GroupMode.SingleGroup
    gradient = conv2d_pick(kind(dgrad, grouped=True), size(groups=2), A100)
    assert gradient.is_by_group


@pytest.mark.parametrize("direction", DIRECTIONS, ids=lambda each: each.name)
def test_more_work_takes_longer(direction: Any) -> None:
    asked = kind(direction)

    def times(problem: Any) -> dict[str, float]:
        return {each.candidate.name: each.microseconds for each in conv2d_ranking(asked, problem, A100)}

    once = times(size())
    for other in ({"N": 64}, {"K": 256}, {"C": 256}, {"R": 5, "S": 5, "pad_h": 2, "pad_w": 2}):
        more = times(size(**other))
        assert all(more[name] >= once[name] * 0.999 for name in more.keys() & once.keys()), other
    least = 2 * 32 * 28 * 28 * 128 * 9 * 128 / 312e12 * 1e6  # at the peak of an A100, in microseconds
    assert min(once.values()) > least


def test_pixels_are_read_once_and_not_once_for_each_tap() -> None:
    """A filter of nine taps on few channels is no nine times as much memory."""
    thin = size(N=256, C=8, K=8)
    single = size(N=256, C=8, K=8, R=1, S=1, pad_h=0, pad_w=0)
    best = [conv2d_ranking(kind(fprop), problem, A100)[0].microseconds for problem in (single, thin)]
    moved = 2 * 256 * 28 * 28 * 8 * 2 / 2039e9 * 1e6
    assert best[0] < best[1]
    assert best[0] < 9 * moved


NO_KERNEL: list[tuple[str, Any, Any]] = [
    ("pad C=3 to 4 with zeros", kind(dgrad, alignment=1), size(C=3, K=8, stride_h=2)),
    ("pad K=7 to 8 with zeros", kind(dgrad, alignment=1), size(C=4, K=7, stride_w=2)),
    ("put stride - 1 zeros between the pixels of grad", kind(dgrad), size(stride_h=2, stride_w=2, dilation_w=2)),
    ("Of integers, kernels take int8 alone", kind(fprop, cutlass.uint8), size()),
    ("Convolutions of int8 are fprop", kind(dgrad, s8), size()),
    ("Floats of 8 bits are not convolved", kind(fprop, cutlass.float_e4m3), size()),
    (
        "takes no epilogue function, nor c and a bias together",
        kind(dgrad, epilogue=pycutlass.epilogue_function(lambda accum: accum * 2)),
        size(stride_h=2),
    ),
    (
        "make of all channels are for one group of them",
        kind(fprop, grouped=True, epilogue=pycutlass.epilogue_function(largest_of_pixels)),
        size(groups=2),
    ),
    ("the nearest lack: .*split the batch", kind(fprop), size(N=4096, H=512, W=512, C=8)),
]


@pytest.mark.parametrize(("said", "asked", "problem"), NO_KERNEL, ids=[said for said, _, _ in NO_KERNEL])
def test_where_there_is_no_kernel_the_remedy_is_said(said: str, asked: Any, problem: Any) -> None:
    with pytest.raises(ArgumentError, match=said):
        conv2d_pick(asked, problem, A100)


def test_the_kind_is_said_in_words() -> None:
    asked = kind(fprop, cutlass.uint8)
    with pytest.raises(ArgumentError, match="there is no kernel for convolutions of this kind") as refused:
        conv2d_pick(asked, size(), A100)
    assert "Conv2dKind" not in str(refused.value)
    assert str(refused.value).endswith(f"The kind is {asked}")
    assert str(asked) == (
        "fprop, with A of cutlass.uint8 in cutlass.TensorNHWC, aligned to 8 elements, B of cutlass.uint8 in "
        "cutlass.TensorNHWC, aligned to 8 elements, C and D of cutlass.int32 in cutlass.TensorNHWC, aligned to 4 "
        "elements; cutlass.uint8 is multiplied by cutlass.uint8 (multiply_add), summed up in cutlass.int32, and the "
        f"epilogue is {asked.epilogue!r}"
    )
    assert str(kind(wgrad, grouped=True)).startswith("wgrad of channels in groups, with A of cutlass.float16 in ")


def test_padding_as_told_helps() -> None:
    padded = kind(dgrad, alignment=2)
    assert conv2d_pick(padded, size(C=4, K=8, stride_h=2), A100).operation.is_strided_dgrad


def test_other_arguments_are_refused() -> None:
    asked = kind(fprop)
    for call in (
        lambda: conv2d_candidates("fprop", 80),
        lambda: conv2d_candidates(asked, "80"),
        lambda: conv2d_pick(None, size(), A100),
        lambda: conv2d_pick(asked, (1, 2, 3), A100),
        lambda: conv2d_pick(asked, size(), "A100"),
    ):
        with pytest.raises(ArgumentTypeError):
            call()
    with pytest.raises(ArgumentError, match="80 or newer"):
        conv2d_candidates(asked, 70)
    good = conv2d_candidates(asked, 80)[0].choice()
    for choice in ({}, good | {"algorithm": "quick"}, good | {"swizzle": "None"}, good | {"group_mode": "All"}):
        with pytest.raises(ArgumentError, match="no choice of a kernel"):
            Conv2dCandidate.of(asked, choice)


def test_times_are_numbers_for_extents_of_zero() -> None:
    for other in ({"N": 0}, {"C": 0}, {"K": 0}):
        for direction in DIRECTIONS:
            ranked = conv2d_ranking(kind(direction), size(**other), A100)
            assert all(np.isfinite(each.microseconds) for each in ranked)
