"""Grouped GEMM without a GPU: descriptions, and what the host computes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import COLUMN, KINDS, LAYOUTS, ROW, ampere, native_parts, parts
from groups import SIZES, Group, grouped
from hypothesis import given, settings
from hypothesis import strategies as st

import pycutlass
from pycutlass import SchedulerMode, cutlass, reference
from pycutlass.arguments.grouped import GemmGroupedArguments
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, DeviceError
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.reference.grouped import gemm_grouped

pytestmark = pytest.mark.usefixtures("without_gpu")

MODES = list(SchedulerMode)
NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__} | {"GemmOperationGrouped": GemmOperationGrouped}

TEXT = """\
#include "pycutlass/gemm_grouped.h"
#include "pycutlass/gemm_universal.h"

using Problem = pycutlass::GemmUniversal<
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::RowMajor, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::ColumnMajor, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::RowMajor, 8>,
    float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<128, 128, 32>, cutlass::gemm::GemmShape<64, 64, 32>,
    cutlass::gemm::GemmShape<16, 8, 16>,
    cutlass::epilogue::thread::LinearCombination<cutlass::half_t, 8, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>, 3, cutlass::arch::OpMultiplyAdd>;

using Operation = pycutlass::GemmGrouped<Problem, cutlass::gemm::kernel::GroupScheduleMode::kDeviceOnly>;
"""


# Descriptions


def test_the_text():
    operation = grouped()
    assert operation.body() == TEXT
    assert operation.emit() == f"{TEXT}\nPYCUTLASS_KERNEL({operation.procedural_name()}, Operation)\n"
    assert operation.rt_module.emit() == operation.emit()
    host = grouped(mode=SchedulerMode.Host)
    assert host.body() == TEXT.replace("kDeviceOnly", "kHostPrecompute")


def test_names_can_be_read():
    assert grouped().configuration_name() == (
        "cutlass_sm80_tensorop_s16816gemm_grouped_f16_f16_128x128_32x3_tnt_align8x8x8_device"
    )
    assert grouped("f32_simt", (COLUMN, ROW, COLUMN), SchedulerMode.Host).configuration_name() == (
        "cutlass_sm80_simt_sgemm_grouped_f32_f32_128x128_8x4_ntn_align1x1x1_host"
    )


def test_no_two_kernels_share_a_name_with_each_other_or_with_a_gemm():
    operations = [grouped(kind, layouts, mode) for kind in KINDS for layouts in LAYOUTS for mode in MODES]
    names = {operation.procedural_name() for operation in operations}
    assert len(names) == len(operations)
    assert not names & {ampere(kind, layouts).procedural_name() for kind in KINDS for layouts in LAYOUTS}
    assert max(map(len, names)) < 128


def test_what_users_ask_of_a_description():
    operation = grouped("f64", mode=SchedulerMode.Host)
    assert (operation.arch, operation.compute_capability, operation.is_sm90) == (80, 80, False)
    assert operation.accumulator_type().short == "f64"
    assert operation.epilogue_type(0.1, 0.5).values == (0.1, 0.5)
    assert operation.single == ampere("f64")
    source = operation.source()
    assert (source.name, source.compute_capability, source.native) == (operation.procedural_name(), 80, False)


def test_the_positions_of_the_guide():
    described = parts()
    positional = GemmOperationGrouped(*described.values(), SchedulerMode.Host)
    assert positional == GemmOperationGrouped(**described, precompute_mode=SchedulerMode.Host)
    del described["compute_capability"]
    assert GemmOperationGrouped(**described, arch=80) == grouped()


@pytest.mark.parametrize("mode", MODES)
def test_operations_are_values(mode):
    operation = grouped("bf16", mode=mode, swizzle=cutlass.IdentitySwizzle4)
    twins = [eval(repr(operation), dict(NAMES)), pickle.loads(pickle.dumps(operation)), copy.deepcopy(operation)]
    for twin in twins:
        assert twin == operation and hash(twin) == hash(operation) and twin.emit() == operation.emit()
    assert operation != grouped("bf16", mode=MODES[mode is MODES[0]], swizzle=cutlass.IdentitySwizzle4)
    assert operation != operation.single
    with pytest.raises(AttributeError, match="cannot change"):
        operation.precompute_mode = SchedulerMode.Device


REFUSED: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"precompute_mode": "Host"}, DescriptionError, ["SchedulerMode.Device or SchedulerMode.Host", "'Host'"]),
    ({"precompute_mode": None}, DescriptionError, ["precompute_mode", "None"]),
    ({"swizzling_functor": cutlass.ThreadblockSwizzleStreamK}, DescriptionError, ["IdentitySwizzle1", "StreamK"]),
    ({"swizzling_functor": cutlass.StridedDgradIdentitySwizzle1}, DescriptionError, ["swizzling_functor"]),
    ({"precompute_modus": SchedulerMode.Host}, ArgumentTypeError, ["precompute_modus", "precompute_mode"]),
    ({"compute_capability": 70}, DescriptionError, ["Volta"]),
    ({"A": None}, DescriptionError, ["A must be a TensorDescription"]),
]


@pytest.mark.parametrize(("changed", "kind", "words"), REFUSED, ids=[str(row[2]) for row in REFUSED])
def test_one_wrong_part_is_named(changed, kind, words):
    with pytest.raises(kind) as caught:
        GemmOperationGrouped(**{**parts(), **changed})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_tile_with_a_cluster_makes_a_hopper_native_group():
    operation = GemmOperationGrouped(**native_parts())
    assert operation.is_sm90 and operation.is_bounded and operation.source().native
    single = pycutlass.GemmOperationUniversal(**native_parts()).body()
    assert operation.body() == single.replace("gemm_sm90", "gemm_grouped_sm90").replace("GemmSm90", "GemmGroupedSm90")
    assert "gemm_grouped_f16_f16_128x256_64xauto_2x1_cooperative" in operation.configuration_name()
    assert eval(repr(operation), NAMES) == operation


def test_a_hopper_native_group_makes_its_schedule_on_the_device():
    with pytest.raises(DescriptionError, match=r"use precompute_mode=SchedulerMode\.Device$"):
        GemmOperationGrouped(**native_parts(), precompute_mode=SchedulerMode.Host)


def test_a_hopper_native_group_has_no_swizzle():
    with pytest.raises(
        DescriptionError, match=r"got cutlass\.IdentitySwizzle4: use swizzling_functor=cutlass\.IdentitySwizzle1$"
    ):
        GemmOperationGrouped(**native_parts(swizzle=cutlass.IdentitySwizzle4))


def test_a_hopper_native_group_takes_a_bias():
    operation = GemmOperationGrouped(**native_parts())
    sizes = [(3, 8, 16), (5, 16, 8)]
    A, B = ([np.ones(shape, np.float16) for shape in shapes] for shapes in ([(3, 16), (5, 8)], [(16, 8), (8, 16)]))
    B = [np.asfortranarray(each) for each in B]
    D = [np.empty((m, n), np.float16) for m, n, _ in sizes]
    C = [np.full((3, 8), 2, np.float16), np.arange(16, dtype=np.float16)]
    scalars = operation.epilogue_type(1.0, 1.0)
    operation.run(GemmGroupedArguments(operation, sizes, A, B, C, D, output_op=scalars))
    assert np.all(D[0] == 18)
    assert np.all(D[1] == 8 + np.arange(16))


def test_the_swizzles_of_the_original_are_taken():
    swizzles = [getattr(cutlass, f"IdentitySwizzle{size}") for size in (1, 2, 4, 8)] + [cutlass.HorizontalSwizzle]
    for swizzle in swizzles:
        assert grouped(swizzle=swizzle).swizzling_functor is swizzle


# What a group means


@settings(max_examples=60, deadline=None)
@given(
    SIZES,
    st.sampled_from(["f16", "f16_acc16", "f16_out32", "bf16", "tf32", "f32_simt", "f64", "f64_simt"]),
    st.sampled_from(LAYOUTS),
    st.sampled_from(MODES),
    st.sampled_from([(1.0, 0.0), (0.0, 1.0), (-1.25, 1.0), (1.0, -1.25), (0.0, 0.0)]),
    st.integers(0, 2**32),
)
def test_every_problem_of_a_group_is_computed(sizes, kind, layouts, mode, scalars, seed):
    group = Group(grouped(kind, layouts, mode, alignment=1, stages=3 if kind == "f64" else 2), sizes, seed)
    group.run(*scalars)
    group.check(*scalars)


def test_problems_without_k_are_beta_times_c():
    group = Group(grouped(alignment=1, stages=2), [(5, 7, 0), (3, 2, 4), (0, 3, 0)])
    group.run(3.0, 0.5)
    np.testing.assert_array_equal(group.D[0], (0.5 * group.C[0].astype(np.float32)).astype(np.float16))
    group.check(3.0, 0.5)
    group.run(3.0, 0.0)
    assert not group.D[0].any()


def test_c_is_not_read_where_beta_is_zero():
    group = Group(grouped(alignment=1, stages=2), [(5, 7, 3)] * 3)
    for each in group.C:
        each[...] = np.nan
    group.run(1.0, 0.0)
    group.check()
    group.run(C=None)
    group.check()


@pytest.mark.parametrize("layout", [ROW, COLUMN])
def test_a_bias_stands_for_all_lines(layout):
    operation = grouped("f32_simt", (ROW, ROW, layout))
    group = Group(operation, [(4, 6, 3), (7, 1, 2), (1, 5, 5), (0, 4, 2)])
    bias = [np.arange(n if layout is ROW else m, dtype=np.float32) for m, n, _ in group.sizes]
    whole = [
        np.broadcast_to(each if layout is ROW else each[:, None], (m, n))
        for each, (m, n, _) in zip(bias, group.sizes, strict=True)
    ]
    for flag in (None, True):
        group.run(2.0, -1.0, C=bias, bias=flag)
        group.check(2.0, -1.0, C=whole)
    with pytest.raises(ArgumentError, match=r"C\[0\].*24 elements"):
        group.run(2.0, -1.0, C=bias, bias=False)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "silu", "gelu_tanh"])
def test_activations(name):
    described = parts("f32_simt")
    activation = getattr(pycutlass, name)()
    f32 = cutlass.float32
    described["epilogue_functor"] = pycutlass.LinearCombinationGeneric(activation, f32, 1, f32, f32)
    group = Group(GemmOperationGrouped(**described), [(4, 6, 3), (7, 2, 9)])
    extra = (0.1,) if name == "leaky_relu" else ()
    group.run(-1.5, 0.5, *extra)
    group.check(-1.5, 0.5, *extra)


def test_every_form_of_a_tensor():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3)] * 4)
    A = [group.A[0].reshape(-1), torch.from_numpy(group.A[1]), np.pad(group.A[2], ((0, 0), (0, 5)))[:, :3], group.A[3]]
    sizes = [cutlass.gemm.GemmCoord(4, 6, 3), (4, 6, 3), [4, 6, 3], np.array([4, 6, 3])]
    arguments = group.run(A=A, problem_sizes=sizes)
    group.check()
    group.run(A=tuple(A), problem_sizes=np.array(group.sizes))
    group.check()
    assert arguments.problem_count == 4
    assert arguments.problem_sizes.tolist() == [[4, 6, 3]] * 4
    assert arguments.lda == [3, 3, 8, 3]
    assert arguments.ptr_D == [each.ctypes.data for each in group.D]
    assert arguments.total_tiles == 4
    with pytest.raises(AttributeError, match="no attribute 'ptr_E'"):
        _ = arguments.ptr_E


def test_tiles_are_counted_as_the_kernel_sees_them():
    for layout, tiles in ((ROW, 2 * 1 + 1 * 3), (COLUMN, 3 * 1 + 1 * 2)):
        operation = grouped("f32_simt", (ROW, ROW, layout), tile=(128, 64, 8))
        group = Group(operation, [(129, 64, 1), (64, 129, 1), (0, 500, 1), (500, 0, 1)])
        assert group.arguments().total_tiles == tiles


def test_one_c_may_serve_several_problems_and_be_d_itself():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3)] * 3)
    shared = [group.C[0]] * 3
    group.run(1.0, 2.0, C=shared)
    group.check(1.0, 2.0, C=shared)
    before = [each.copy() for each in group.C]
    group.D = group.C
    group.run(1.0, 2.0)
    group.check(1.0, 2.0, C=before)


def test_without_a_gpu_there_is_no_launch_configuration():
    with pytest.raises(DeviceError, match="no GPU"):
        _ = Group(grouped(alignment=1, stages=2), [(4, 6, 3)]).arguments().launch_config


# Reference


def test_the_reference_is_that_of_each_problem():
    group = Group(grouped("bf16", alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    results = gemm_grouped(group.operation, group.A, group.B, group.C, 1.5, 0.5)
    for result, a, b, c in zip(results, group.A, group.B, group.C, strict=True):
        np.testing.assert_array_equal(result, reference.gemm(group.operation.single, a, b, c, 1.5, 0.5))
