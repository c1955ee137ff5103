"""Grouped GEMM without a GPU: descriptions, checks of whole groups, overlaps, updates, and what the host computes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import COLUMN, KINDS, LAYOUTS, ROW, ampere, native_parts, parts, poisoned, random_matrix
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import pycutlass
from pycutlass import SchedulerMode, TensorDescription, cutlass, reference
from pycutlass.arguments.grouped import GemmGroupedArguments
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError, DeviceError
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


def grouped(kind: str = "f16", layouts: Any = (ROW, COLUMN, ROW), mode: Any = None, **options: Any) -> Any:
    """Return a grouped operation; `options` are those of `parts`."""
    described = parts(kind, layouts, **options)
    return (
        GemmOperationGrouped(**described) if mode is None else GemmOperationGrouped(**described, precompute_mode=mode)
    )


class Group:
    """Operands of a group in host memory."""

    def __init__(self, operation: GemmOperationGrouped, sizes: Any, seed: Any = 0) -> None:
        rng = np.random.default_rng(seed)
        self.operation, self.sizes = operation, [tuple(size) for size in sizes]
        self.A = [random_matrix(operation.A, m, k, rng) for m, _, k in self.sizes]
        self.B = [random_matrix(operation.B, k, n, rng) for _, n, k in self.sizes]
        self.C = [random_matrix(operation.C, m, n, rng) for m, n, _ in self.sizes]
        self.D = [poisoned(operation.C, m, n) for m, n, _ in self.sizes]

    def arguments(self, *scalars: float, **changed: Any) -> GemmGroupedArguments:
        given: dict[str, Any] = {"problem_sizes": self.sizes, "A": self.A, "B": self.B, "C": self.C, "D": self.D}
        given["output_op"] = self.operation.epilogue_type(*scalars) if scalars else None
        return GemmGroupedArguments(self.operation, **{**given, **changed})

    def run(self, *scalars: float, **changed: Any) -> GemmGroupedArguments:
        arguments = self.arguments(*scalars, **changed)
        self.operation.run(arguments)
        arguments.sync()
        return arguments

    def check(self, alpha: float = 1.0, beta: float = 0.0, *extra: float, C: Any = None) -> None:
        """Compare D with a product in f64, element by element; NaN never passes."""
        C = self.C if C is None else C
        activation = self.operation.epilogue_functor.activation
        for (_, _, k), a, b, c, d in zip(self.sizes, self.A, self.B, C, self.D, strict=True):
            exact = alpha * (a.astype(float) @ b.astype(float))
            exact = exact + beta * c.astype(float) if beta else exact
            if activation is not None:
                exact = activation.numpy(exact, *extra)
            relative, absolute = reference.tolerance(self.operation.single, k, abs(alpha))
            # tf32 instructions leave out the low bits of both operands: 2^-10 of each factor of every term.
            slack = np.zeros_like(exact)
            if self.operation.tile_description.math_instruction.a.short in ("f32", "tf32"):
                slack = 2.0**-9 * abs(alpha) * (abs(a.astype(float)) @ abs(b.astype(float)))
            assert np.all(abs(d.astype(float) - exact) <= absolute + relative * abs(exact) + slack), (d, exact)


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
    assert (operation.arch, operation.compute_capability, operation.is_native) == (80, 80, False)
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
    ({"swizzling_functor": cutlass.BatchedIdentitySwizzle}, DescriptionError, ["IdentitySwizzle8", "Batched"]),
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
    assert operation.is_native and operation.is_bounded and operation.source().native
    single = pycutlass.GemmOperationUniversal(**native_parts()).body()
    assert operation.body() == single.replace("gemm_sm90", "gemm_grouped_sm90").replace("GemmSm90", "GemmGroupedSm90")
    assert "gemm_grouped_f16_f16_128x256_64xauto_2x1_cooperative" in operation.configuration_name()
    assert eval(repr(operation), NAMES) == operation


def test_a_hopper_native_group_makes_its_schedule_on_the_device():
    with pytest.raises(DescriptionError, match=r"precompute_mode=SchedulerMode\.Device, or describe an Ampere-style"):
        GemmOperationGrouped(**native_parts(), precompute_mode=SchedulerMode.Host)


def test_a_hopper_native_group_has_no_swizzle():
    with pytest.raises(DescriptionError, match=r"use cutlass\.IdentitySwizzle1, got cutlass\.IdentitySwizzle4"):
        GemmOperationGrouped(**native_parts(swizzle=cutlass.IdentitySwizzle4))


def test_a_bias_of_a_hopper_native_group_is_refused():
    operation = GemmOperationGrouped(**native_parts())
    sizes = [(3, 8, 16), (5, 16, 8)]
    A, B = ([np.ones(shape, np.float16) for shape in shapes] for shapes in ([(3, 16), (5, 8)], [(16, 8), (8, 16)]))
    B = [np.asfortranarray(each) for each in B]
    D = [np.empty((m, n), np.float16) for m, n, _ in sizes]
    scalars = operation.epilogue_type(1.0, 1.0)
    with pytest.raises(ArgumentError, match=r"C\[1\] is a bias.*stages and warp_count, no cluster_shape"):
        C = [np.ones((3, 8), np.float16), np.ones(16, np.float16)]
        GemmGroupedArguments(operation, sizes, A, B, C, D, output_op=scalars)
    C = [np.full((m, n), 2, np.float16) for m, n, _ in sizes]
    operation.run(GemmGroupedArguments(operation, sizes, A, B, C, D, output_op=scalars))
    assert np.all(D[0] == 18) and np.all(D[1] == 10)


def test_the_swizzles_of_the_original_are_taken():
    swizzles = [getattr(cutlass, f"IdentitySwizzle{size}") for size in (1, 2, 4, 8)] + [cutlass.HorizontalSwizzle]
    for swizzle in swizzles:
        assert grouped(swizzle=swizzle).swizzling_functor is swizzle


# What a group means

extents = st.integers(0, 40)
groups = st.lists(st.tuples(extents, extents, extents), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    groups,
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
    group.run(3.0)
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


# What is refused

GOOD = Group(grouped(), [(8, 16, 24), (16, 8, 8), (0, 8, 8)])


def changed(name: str, number: int, tensor: Any) -> dict[str, Any]:
    """Return one operand of the good group with one tensor exchanged."""
    tensors = list(getattr(GOOD, name))
    tensors[number] = tensor
    return {name: tensors}


def half(*shape: int) -> NDArray[Any]:
    return np.zeros(shape, np.float16)


BAD: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"A": GOOD.A[:2]}, ArgumentError, ["operand A has 2 tensors", "3 problems"]),
    ({"D": [*GOOD.D, half(1, 8)]}, ArgumentError, ["operand D has 4 tensors", "3 problems"]),
    ({"problem_sizes": GOOD.sizes[:1]}, ArgumentError, ["operand A has 3 tensors", "1 problems"]),
    ({"B": None}, ArgumentError, ["operand B is missing", "list of 3 tensors"]),
    ({"C": None}, ArgumentError, ["C is None", "epilogue_type(alpha, 0)"]),
    ({"A": np.zeros((3, 8, 24), np.float16)}, ArgumentTypeError, ["operand A must be a list", "ndarray"]),
    ({"D": "tensors"}, ArgumentTypeError, ["operand D must be a list", "str"]),
    ({"problem_sizes": []}, ArgumentError, ["empty", "at least one"]),
    ({"problem_sizes": 3}, ArgumentTypeError, ["problem_sizes must be a list", "int"]),
    ({"problem_sizes": [(8, 16, 24), (16, 8), (0, 8, 8)]}, ArgumentTypeError, ["problem_sizes[1]", "(16, 8)"]),
    ({"problem_sizes": [(8, 16, 24), (16, 8, 8.0), (0, 8, 8)]}, ArgumentTypeError, ["problem_sizes[1]", "8.0"]),
    ({"problem_sizes": [(8, 16, 24), (16, 8, 8), (-1, 8, 8)]}, ArgumentError, ["problem_sizes[2]", "-1"]),
    ({"problem_sizes": [(8, 16, 2**31), (16, 8, 8), (0, 8, 8)]}, ArgumentError, ["problem_sizes[0]", "2147483648"]),
    (changed("A", 1, GOOD.A[1].astype(np.float32)), ArgumentTypeError, ["operand A[1]", "float16", "float32"]),
    (changed("B", 0, torch.zeros(24, 16)), ArgumentTypeError, ["operand B[0]", "torch tensor of float32"]),
    (changed("A", 2, np.zeros((0, 8), np.float32)), ArgumentTypeError, ["operand A[2]", "float32"]),
    (changed("A", 0, half(8, 32)), ArgumentError, ["operand A[0]", "(8, 24)", "(8, 32)"]),
    (changed("D", 2, half(1, 8)), ArgumentError, ["operand D[2]", "no elements", "(1, 8)"]),
    (changed("B", 1, half(8, 8)), ArgumentError, ["operand B[1]", "ColumnMajor", "contiguous()"]),
    (changed("A", 0, half(8, 28)[:, :24]), AlignmentError, ["operand A[0]", "leading dimension", "28"]),
    (changed("A", 0, half(200)[4:196].reshape(8, 24)), AlignmentError, ["operand A[0]", "16 bytes"]),
    (changed("C", 1, None), ArgumentTypeError, ["operand C[1]", "NoneType"]),
    ({"output_op": 1.0}, ArgumentTypeError, ["output_op", "float"]),
    ({"split_k_slices": 2}, ArgumentTypeError, ["split_k_slices", "problem_sizes"]),
    ({"operation": ampere()}, ArgumentTypeError, ["GemmOperationGrouped", "GemmOperationUniversal"]),
]


@pytest.mark.parametrize(("change", "kind", "words"), BAD, ids=[str(row[2]) for row in BAD])
def test_one_wrong_thing_is_named(change, kind, words):
    given = {
        "operation": GOOD.operation,
        "problem_sizes": GOOD.sizes,
        **{name: getattr(GOOD, name) for name in "ABCD"},
        "output_op": GOOD.operation.epilogue_type(1.0, 1.0),
    }
    with pytest.raises(kind) as caught:
        GemmGroupedArguments(**{**given, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_good_group_is_good():
    GOOD.run(1.0, 1.0)
    GOOD.check(1.0, 1.0)


def test_a_read_only_d_is_refused():
    target = half(16, 8)
    target.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"D\[1\] is a read-only numpy array"):
        GOOD.arguments(**changed("D", 1, target))


def test_fast_clamp_holds_for_small_k_only():
    described = parts("f32_simt")
    s8, s32 = cutlass.int8, cutlass.int32
    instruction = pycutlass.MathInstruction(
        [16, 8, 32], s8, s8, s32, cutlass.OpClass.TensorOp, pycutlass.MathOperation.multiply_add_saturate
    )
    described["tile_description"] = pycutlass.TileDescription([128, 128, 64], 3, [2, 2, 1], instruction)
    A, B = TensorDescription(s8, ROW, 16), TensorDescription(s8, COLUMN, 16)
    described |= {"A": A, "B": B, "C": TensorDescription(s8, ROW, 16)}
    described["epilogue_functor"] = pycutlass.FastLinearCombinationClamp(s8, 16)
    operation = GemmOperationGrouped(**described)
    with pytest.raises(ArgumentError, match="K of at most 256, got K=272"):
        GemmGroupedArguments(operation, [(16, 16, 256), (16, 16, 272)], [], [], None, [])


def test_arguments_of_one_kind_do_not_run_an_operation_of_another():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3)])
    arguments = group.arguments()
    with pytest.raises(ArgumentError, match="were made for"):
        grouped(alignment=1, stages=2, mode=SchedulerMode.Host).run(arguments)
    with pytest.raises(ArgumentTypeError, match="must be a GemmOperationUniversal, got GemmOperationGrouped"):
        pycutlass.GemmArguments(group.operation, (4, 6, 3), group.A[0], group.B[0], None, group.D[0])


# Overlaps


def test_d_over_what_another_problem_reads_is_refused():
    both = half(2, 8, 8)
    sizes = [(8, 8, 8)] * 2
    group = Group(grouped(), sizes)
    for change, words in (
        ({"D": [both[0], both[1]], "A": [group.A[0], both[0]]}, r"D\[0\] overlaps A\[1\].*read"),
        ({"D": [both[0], both[1]], "B": [both[1].T, group.B[1]]}, r"D\[1\] overlaps B\[0\].*read"),
        ({"D": [both[0], both[0]]}, r"D\[[01]\] overlaps D\[[01]\].*two problems cannot write to one place"),
        ({"D": [both[0], both[1]], "C": [both[1], both[0]]}, r"D\[1\] overlaps C\[0\]"),
        ({"D": [both.reshape(-1)[:64], both.reshape(-1)[8:72]]}, r"overlaps D"),
    ):
        with pytest.raises(ArgumentError, match=words):
            group.arguments(1.0, 1.0, **change)
    group.arguments(1.0, 0.0, D=[both[0], both[1]], C=[both[1], both[0]])  # this C is not read


def test_columns_of_one_allocation_do_not_overlap():
    wide = half(16, 40)
    group = Group(grouped(), [(16, 8, 8)] * 3)
    group.A = [wide[:, 8 * i : 8 * i + 8] for i in range(2)] + [group.A[2]]
    group.D = [wide[:, 8 * i + 16 : 8 * i + 24] for i in range(3)]
    for target in group.A[:2]:
        target[...] = 1
    group.run()
    group.check()


# Updates


def test_update_takes_other_tensors_sizes_and_scalars():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    arguments = group.arguments(1.0, 1.0)
    other = Group(group.operation, group.sizes, seed=1)
    arguments.update(A=other.A, D=other.D)
    other.B, other.C = group.B, group.C
    group.operation.run(arguments)
    other.check(1.0, 1.0)
    arguments.update(output_op=group.operation.epilogue_type(-2.0))
    group.operation.run(arguments)
    other.check(-2.0)
    larger = Group(group.operation, [(9, 1, 8), (0, 0, 0), (3, 3, 3)], seed=2)
    arguments.update(problem_sizes=larger.sizes, A=larger.A, B=larger.B, C=larger.C, D=larger.D)
    group.operation.run(arguments)
    larger.check(-2.0)
    assert (arguments.problem_count, arguments.ptr_A) == (3, [each.ctypes.data for each in larger.A])


def test_update_changes_nothing_where_it_raises():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    arguments = group.arguments(1.0, 1.0)
    before = (arguments.ptr_A, arguments.ptr_B, arguments.ptr_C, arguments.ptr_D)
    other = Group(group.operation, group.sizes, seed=1)
    for wrong in (
        {"A": other.A, "B": other.B[:1]},
        {"D": [group.A[0], other.D[1]]},
        {"D": [other.D[0], group.A[0].reshape(-1)[:10]]},
        {"problem_sizes": [(4, 6, 3)]},
        {"problem_sizes": [(4, 6, 3), (5, 2, 8)]},
        {"A": other.A, "output_op": "none"},
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            arguments.update(**wrong)
        assert before == (arguments.ptr_A, arguments.ptr_B, arguments.ptr_C, arguments.ptr_D)
        assert arguments.problem_sizes.tolist() == [[4, 6, 3], [5, 2, 7]]
    group.operation.run(arguments)
    group.check(1.0, 1.0)
    with pytest.raises(TypeError, match="lda"):
        arguments.update(lda=[1, 2])


def test_a_list_that_changes_later_changes_nothing():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    given = list(group.A)
    arguments = group.arguments(A=given)
    given.clear()
    arguments.update(D=group.D)
    group.operation.run(arguments)
    group.check()


# Tables


def tables(group: Group, **changed: Any) -> dict[str, Any]:
    """Return a group as tables in host memory, which is where the host executes it."""

    def pointers(arrays: Any) -> Any:
        return np.array([each.ctypes.data for each in arrays], np.int64)

    def strides(description: TensorDescription, arrays: Any) -> Any:
        axis = 0 if description.is_row_major else 1
        return np.array([each.strides[axis] // each.itemsize for each in arrays], np.int64)

    operation = group.operation
    given: dict[str, Any] = {
        "problem_count": len(group.sizes),
        "problem_sizes": np.array(group.sizes, np.int32),
        **{f"ptr_{name}": pointers(getattr(group, name)) for name in "ABCD"},
        **{f"ld{n.lower()}": strides(getattr(operation, "C" if n == "D" else n), getattr(group, n)) for n in "ABCD"},
    }
    return {**given, **changed}


@settings(max_examples=20, deadline=None)
@given(groups, st.sampled_from(LAYOUTS), st.sampled_from([(1.0, 0.0), (-1.25, 1.0)]))
def test_problems_from_tables(sizes, layouts, scalars):
    group = Group(grouped("f32_simt", layouts), sizes)
    output_op = group.operation.epilogue_type(*scalars)
    arguments = GemmGroupedArguments.from_device(group.operation, **tables(group), output_op=output_op)
    group.operation.run(arguments)
    arguments.sync()
    group.check(*scalars)


def test_tables_are_read_when_the_kernel_runs():
    group = Group(grouped("f32_simt"), [(4, 6, 3), (5, 2, 7)])
    given = tables(group, ptr_C=None, ldc=None)
    arguments = GemmGroupedArguments.from_device(group.operation, **given, most_tiles=9)
    group.operation.run(arguments)
    group.check()
    given["problem_sizes"][1] = 0
    given["ptr_A"][1] = 0
    other = Group(group.operation, group.sizes, seed=3)
    given["ptr_A"][0], group.A[0] = other.A[0].ctypes.data, other.A[0]
    before = group.D[1].copy()
    group.operation.run(arguments)
    group.sizes, group.A, group.B, group.D = group.sizes[:1], group.A[:1], group.B[:1], [group.D[0]]
    group.C = group.C[:1]
    group.check()
    np.testing.assert_array_equal(before, arguments_target(given, 1, before))
    assert (arguments.total_tiles, arguments.problem_count) == (9, 2)
    assert arguments.ptr_A is given["ptr_A"] and arguments.ldd is given["ldd"]


def arguments_target(given: dict[str, Any], number: int, like: NDArray[Any]) -> NDArray[Any]:
    """Return a D by the address in its table."""
    import ctypes

    memory: Any = (ctypes.c_char * like.nbytes).from_address(int(given["ptr_D"][number]))
    return np.frombuffer(memory, like.dtype).reshape(like.shape)


def test_other_tables_take_the_place_of_the_first():
    group = Group(grouped("f32_simt"), [(4, 6, 3), (5, 2, 7)])
    arguments = GemmGroupedArguments.from_device(group.operation, **tables(group))
    other = Group(group.operation, group.sizes, seed=5)
    given = tables(other)
    arguments.update(A=given["ptr_A"], B=given["ptr_B"], D=given["ptr_D"], output_op=group.operation.epilogue_type(2.0))
    group.operation.run(arguments)
    other.check(2.0)


TABLES: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"problem_sizes": np.zeros((2, 3), np.int64)}, ArgumentTypeError, ["problem_sizes", "int32", "int64"]),
    ({"problem_sizes": np.zeros((3, 3), np.int32)}, ArgumentError, ["problem_sizes", "(2, 3)", "(3, 3)"]),
    ({"problem_sizes": np.zeros((3, 2), np.int32).T}, ArgumentError, ["problem_sizes", "contiguous", "(1, 2)"]),
    ({"ptr_A": np.zeros(2, np.int32)}, ArgumentTypeError, ["ptr_A", "int64", "int32"]),
    ({"ptr_B": np.zeros(4, np.int64)[::2]}, ArgumentError, ["ptr_B", "contiguous"]),
    ({"ptr_D": None}, ArgumentError, ["ptr_D is missing"]),
    ({"ptr_C": None}, ArgumentError, ["ptr_C is missing"]),
    ({"ldc": None}, ArgumentError, ["ldc is missing"]),
    ({"lda": np.zeros(3, np.int64)}, ArgumentError, ["lda", "(2,)", "problem_count=2", "(3,)"]),
    ({"ldb": [1, 2]}, ArgumentTypeError, ["ldb", "list"]),
    ({"ptr_A": 4096}, ArgumentTypeError, ["ptr_A", "int64", "an address"]),
    ({"problem_count": 0}, ArgumentError, ["problem_count", "0"]),
    ({"problem_count": "2"}, ArgumentTypeError, ["problem_count", "'2'"]),
    ({"most_tiles": -1}, ArgumentError, ["most_tiles", "-1"]),
    ({"operation": grouped("f32_simt", mode=SchedulerMode.Host)}, ArgumentError, ["SchedulerMode.Device", "sizes"]),
    ({"operation": ampere("f32_simt")}, ArgumentTypeError, ["GemmOperationGrouped"]),
]


@pytest.mark.parametrize(("change", "kind", "words"), TABLES, ids=[str(row[2]) for row in TABLES])
def test_one_wrong_table_is_named(change, kind, words):
    group = Group(grouped("f32_simt"), [(4, 6, 3), (5, 2, 7)])
    given = {"operation": group.operation, "output_op": group.operation.epilogue_type(1.0, 1.0), **tables(group)}
    with pytest.raises(kind) as caught:
        GemmGroupedArguments.from_device(**{**given, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)


# Reference


def test_the_reference_is_that_of_each_problem():
    group = Group(grouped("bf16", alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    results = gemm_grouped(group.operation, group.A, group.B, group.C, 1.5, 0.5)
    for result, a, b, c in zip(results, group.A, group.B, group.C, strict=True):
        np.testing.assert_array_equal(result, reference.gemm(group.operation.single, a, b, c, 1.5, 0.5))
