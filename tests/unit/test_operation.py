"""GEMM operations: what is valid, their text, their names, and that they are values."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from descriptions import (
    BY_SHORT_NAME,
    COLUMN,
    KINDS,
    LAYOUTS,
    ROW,
    TAG,
    ampere,
    hopper,
    native_parts,
    parts,
    run_python,
)

import pycutlass
from pycutlass import (
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    MathOperation,
    cutlass,
    device,
    kernel,
)
from pycutlass.cache import Artifact
from pycutlass.errors import ArgumentError, ArgumentTypeError, NotCompiledError
from pycutlass.operation import base

SWIZZLES = [cutlass.IdentitySwizzle1, cutlass.IdentitySwizzle2, cutlass.IdentitySwizzle4, cutlass.IdentitySwizzle8]
OTHER_SWIZZLES = [cutlass.HorizontalSwizzle, cutlass.BatchedIdentitySwizzle, cutlass.ThreadblockSwizzleStreamK]
ACTIVATIONS = [pycutlass.relu, pycutlass.leaky_relu, pycutlass.tanh, pycutlass.sigmoid, pycutlass.silu, pycutlass.gelu]
NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__}
FAST = [MathOperation.multiply_add_fast_f16, MathOperation.multiply_add_fast_bf16, MathOperation.multiply_add_fast_f32]

AMPERE_TEXT = """\
#include "pycutlass/gemm_universal.h"

using Operation = pycutlass::GemmUniversal<
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::RowMajor, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::ColumnMajor, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::RowMajor, 8>,
    float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<128, 128, 32>, cutlass::gemm::GemmShape<64, 64, 32>,
    cutlass::gemm::GemmShape<16, 8, 16>,
    cutlass::epilogue::thread::LinearCombination<cutlass::half_t, 8, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>, 3, cutlass::arch::OpMultiplyAdd>;

PYCUTLASS_KERNEL(cutlass_sm80_tensorop_s16816gemm_f16_f16_128x128_32x3_tnt_align8x8x8_5e9159d5a8c8, Operation)
"""
HOPPER_TEXT = """\
#include "pycutlass/gemm_sm90.h"

using Operation = pycutlass::GemmSm90<
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::RowMajor, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::ColumnMajor, 8>,
    pycutlass::Tensor<cutlass::half_t, cutlass::layout::RowMajor, 8>,
    float, cute::Shape<cute::Int<128>, cute::Int<256>, cute::Int<64>>,
    cute::Shape<cute::Int<2>, cute::Int<1>, cute::Int<1>>,
    cutlass::epilogue::fusion::LinearCombination<cutlass::half_t, float>,
    pycutlass::Cooperative, 0>;

PYCUTLASS_BOUNDED_KERNEL(\
cutlass_sm90_tensorop_sgemm_f16_f16_128x256_64xauto_2x1_cooperative_tnt_align8x8x8_70a1c7ab0354, Operation)
"""


def many() -> dict[tuple[Any, ...], GemmOperationUniversal]:
    """Return a product of descriptions that differ in one or more parts that matter to the kernel."""
    made: dict[tuple[Any, ...], GemmOperationUniversal] = {}
    for kind, layouts, swizzle, stages in itertools.product(KINDS, LAYOUTS, SWIZZLES, (3, 4)):
        made[kind, layouts, swizzle, stages] = ampere(kind, layouts, swizzle=swizzle, stages=stages)
    for swizzle in OTHER_SWIZZLES:
        made["f16", swizzle] = ampere("f16", swizzle=swizzle)
    for activation, make in itertools.product(ACTIVATIONS, (parts, native_parts)):
        functor = LinearCombinationGeneric(activation, cutlass.float16, 8, cutlass.float32, cutlass.float32)
        made[activation, make] = GemmOperationUniversal(**{**make(), "epilogue_functor": functor})
    clamp = LinearCombinationClamp(cutlass.float16, 8, cutlass.float32, cutlass.float32)
    made["clamp"] = GemmOperationUniversal(**{**parts(), "epilogue_functor": clamp})
    for math, layouts in itertools.product(FAST, LAYOUTS):
        made["f32", math, layouts] = ampere("f32", layouts, math=math)
    for alignment, warps, tile in itertools.product(
        (2, 4, 8), ((2, 2, 1), (4, 2, 1), (2, 4, 1)), ((128, 128, 32), (128, 128, 64), (256, 128, 32))
    ):
        made["f16", alignment, warps, tile] = ampere("f16", alignment=alignment, warps=warps, tile=tile, stages=5)
    for compute in ("f32",):
        changed = parts("f16_acc16")
        changed["epilogue_functor"] = replace(changed["epilogue_functor"], element_epilogue=TAG[compute])
        made["compute", compute] = GemmOperationUniversal(**changed)
    for operand, output, tile, cluster, schedule, stages in itertools.product(
        ("f16", "bf16"),
        ("f16", "bf16", "f32"),
        ((128, 128, 64), (128, 64, 64), (256, 64, 32)),
        ((1, 1), (2, 1), (1, 2), (2, 2)),
        (KernelSchedule.Pingpong, KernelSchedule.Cooperative),
        (None, 2, 3),
    ):
        key = (operand, output, tile, cluster, schedule, stages)
        made[key] = hopper(operand=operand, output=output, tile=tile, cluster=cluster, schedule=schedule, stages=stages)
    return made


MANY = many()

#: Prints text, name and a pickle of many operations, made in an order of its own.
DESCRIBE = """
import json, pickle, random, sys
sys.path.insert(0, {folder!r})
from descriptions import KINDS, LAYOUTS, ampere, hopper
keys = [(kind, index) for kind in KINDS for index in range(8)]
random.shuffle(keys)
made = {{f"{{kind}} {{index}}": ampere(kind, LAYOUTS[index]) for kind, index in keys}}
made["hopper"] = hopper()
print(json.dumps({{
    key: (made[key].procedural_name(), made[key].emit(), repr(made[key]), pickle.dumps(made[key]).hex())
    for key in sorted(made)
}}))
"""


def artifact(target: str) -> Artifact:
    """Return an artifact that nothing loads."""
    return Artifact("0" * 64, "kernel", target, {}, b"", b"", {})


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """A test's traceback may keep an operation alive, and with it what the test says was compiled."""
    monkeypatch.setattr(base, "_artifacts", weakref.WeakValueDictionary())


# Text and names


def test_the_text_of_an_ampere_kernel():
    assert ampere().emit() == AMPERE_TEXT
    assert ampere().rt_module.emit() == AMPERE_TEXT


def test_the_text_of_a_hopper_kernel():
    assert hopper().emit() == HOPPER_TEXT


@pytest.mark.parametrize("operation", [ampere(), hopper()], ids=["ampere", "hopper"])
def test_the_source_for_the_compiler(operation):
    source = operation.source()
    assert source.name == operation.procedural_name()
    assert source.text == operation.emit()
    assert source.compute_capability == operation.compute_capability == operation.arch
    assert source.native == operation.is_sm90


def test_no_two_kernels_share_a_name_or_a_text():
    assert len(MANY) > 1000
    assert len({operation.body() for operation in MANY.values()}) == len(MANY)
    names = [operation.procedural_name() for operation in MANY.values()]
    assert len({name.lower() for name in names}) == len(MANY)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names)
    assert max(map(len, names)) < 128


def test_names_can_be_read():
    assert ampere("f16", (ROW, COLUMN, ROW)).configuration_name() == (
        "cutlass_sm80_tensorop_s16816gemm_f16_f16_128x128_32x3_tnt_align8x8x8"
    )
    assert ampere("f64", (COLUMN, ROW, COLUMN)).configuration_name() == (
        "cutlass_sm80_tensorop_d884gemm_f64_f64_64x64_16x4_ntn_align1x1x1"
    )
    assert ampere("f32_simt").configuration_name() == "cutlass_sm80_simt_sgemm_f32_f32_128x128_8x4_tnt_align1x1x1"
    assert ampere("f32", math=MathOperation.multiply_add_fast_f32).configuration_name() == (
        "cutlass_sm80_tensorop_s16883xtf32gemm_f32_f32_128x128_16x3_tnt_align4x4x4"
    )
    assert hopper(operand="bf16", output="f32", cluster=(1, 2), stages=3).configuration_name() == (
        "cutlass_sm90_tensorop_sgemm_bf16_f32_128x256_64x3_1x2_cooperative_tnt_align8x8x4"
    )


def test_the_text_is_the_same_in_every_process_and_every_order():
    program = DESCRIBE.format(folder=str(__file__).rsplit("/", 1)[0])
    first, second = (json.loads(run_python(program, hash_seed=seed)) for seed in (1, 4242))
    assert first == second
    for key, (name, text, spelled, pickled) in first.items():
        here = hopper() if key == "hopper" else ampere(key.split()[0], LAYOUTS[int(key.split()[1])])
        assert (here.procedural_name(), here.emit(), repr(here)) == (name, text, spelled)
        there = pickle.loads(bytes.fromhex(pickled))
        assert there == here
        assert hash(there) == hash(here)


# Values


@pytest.mark.parametrize("key", list(MANY)[::23], ids=str)
def test_operations_are_values(key):
    operation = MANY[key]
    twins = [
        eval(repr(operation), dict(NAMES)),
        pickle.loads(pickle.dumps(operation)),
        copy.deepcopy(operation),
        copy.copy(operation),
    ]
    for twin in twins:
        assert twin == operation
        assert hash(twin) == hash(operation)
        assert repr(twin) == repr(operation)
        assert twin.emit() == operation.emit()


def test_operations_that_differ_are_not_equal():
    operations = list(MANY.values())
    assert len(set(operations)) == len(operations)
    assert all(operations[0] != other for other in [*operations[1:], None, "operation", operations[0].emit()])


@pytest.mark.parametrize("name", list(parts()))
def test_no_part_of_an_operation_can_be_replaced(name):
    operation = ampere()
    with pytest.raises(AttributeError, match=f"{name} of an operation cannot change"):
        setattr(operation, name, getattr(operation, name))
    assert operation == ampere()


def test_equal_operations_share_what_was_compiled():
    operation, equal = ampere(), ampere()
    operation.artifacts["sm_80"] = artifact("sm_80")
    assert (
        equal.artifacts == ampere().artifacts == pickle.loads(pickle.dumps(operation)).artifacts == operation.artifacts
    )
    assert ampere("bf16").artifacts == {}


def test_what_was_compiled_goes_with_the_last_operation_that_has_it():
    operation = ampere()
    operation.artifacts["sm_80"] = artifact("sm_80")
    del operation
    assert ampere().artifacts == {}


def test_different_ways_to_say_the_same():
    by_keyword = parts()
    capability = by_keyword.pop("compute_capability")
    swizzle = by_keyword.pop("swizzling_functor")
    assert GemmOperationUniversal(capability, *by_keyword.values()) == ampere()  # IdentitySwizzle1 is the default
    assert GemmOperationUniversal(arch=capability, **by_keyword, swizzling_functor=swizzle()) == ampere()
    assert ampere("f16", alignment=64) == ampere("f16", alignment=8)
    assert hopper(cluster=(2, 1, 1)) == hopper(cluster=(2, 1), schedule=KernelSchedule.Cooperative)


@pytest.mark.parametrize("capability", [86, 87, 89])
def test_later_ampere_style_kernels_have_the_same_text(capability):
    changed = ampere("f16", capability=capability, tile=(64, 64, 32))
    assert changed.emit() == ampere("f16", tile=(64, 64, 32)).emit()
    assert changed.compute_capability == changed.source().compute_capability == capability


@pytest.mark.parametrize(("swizzle", "size"), list(zip(SWIZZLES, (1, 2, 4, 8), strict=True)))
def test_swizzles(swizzle, size):
    assert ampere("f16", swizzle=swizzle).swizzle_size == size
    assert f"GemmIdentityThreadblockSwizzle<{size}>" in ampere("f16", swizzle=swizzle).emit()


def test_what_an_operation_says_of_itself():
    operation = ampere("bf16")
    assert operation.accumulator_type() is BY_SHORT_NAME["f32"]
    assert not operation.is_sm90
    assert hopper().is_sm90
    assert operation.epilogue_type(2.0, 3.0).values == (2.0, 3.0)


# Running


@pytest.mark.parametrize(
    ("capability", "compiled", "chosen"),
    [
        (80, ["sm_80"], "sm_80"),
        (86, ["sm_80", "sm_86", "sm_89"], "sm_86"),
        (89, ["sm_86", "sm_80"], "sm_86"),
        (90, ["sm_80", "sm_90", "sm_90a"], "sm_90a"),
        (90, ["sm_90"], "sm_90"),
    ],
)
def test_the_best_artifact_is_taken(monkeypatch, capability, compiled, chosen):
    monkeypatch.setattr(device, "describe", lambda ordinal: device.Device(ordinal, "GPU", capability, 132))
    operation = ampere()
    operation.artifacts.update({target: artifact(target) for target in compiled})
    assert kernel.select(operation, 0).target == chosen


@pytest.mark.parametrize(
    ("capability", "compiled"), [(80, ["sm_86"]), (86, ["sm_89"]), (90, ["sm_80", "sm_89"]), (100, ["sm_90", "sm_90a"])]
)
def test_a_kernel_for_other_gpus_is_refused(monkeypatch, capability, compiled):
    monkeypatch.setattr(device, "describe", lambda ordinal: device.Device(ordinal, "Some GPU", capability, 132))
    operation = ampere()
    operation.artifacts.update({target: artifact(target) for target in compiled})
    with pytest.raises(NotCompiledError) as caught:
        kernel.select(operation, 3)
    words = [operation.procedural_name(), ", ".join(compiled), "GPU 3", "Some GPU", f"sm_{capability}", "add_module"]
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_kernel_that_was_not_compiled_is_refused(monkeypatch):
    monkeypatch.setattr(device, "describe", lambda ordinal: device.Device(ordinal, "GPU", 90, 132))
    with pytest.raises(NotCompiledError, match=r"has not been compiled: call pycutlass\.compiler\.add_module"):
        kernel.select(ampere(), 0)


def test_arguments_of_another_operation_are_refused():
    A, B, D = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32, "F"), np.empty((8, 8), np.float32)
    arguments = pycutlass.GemmArguments(ampere("f32_simt"), (8, 8, 8), A, B, None, D)
    with pytest.raises(ArgumentError) as caught:
        ampere("f16").run(arguments)
    assert ampere("f32_simt").procedural_name() in str(caught.value)
    assert ampere("f16").procedural_name() in str(caught.value)
    with pytest.raises(ArgumentTypeError, match="arguments made for this operation, got int"):
        ampere("f16").run(3)


def test_what_describes_an_operation_is_set_once() -> None:
    operation = GemmOperationUniversal(**parts("f16"))
    other = operation.replace(swizzling_functor=cutlass.IdentitySwizzle4)
    before = operation.procedural_name(), hash(operation), repr(operation)
    for described in (other._value(), operation._value()):
        with pytest.raises(AttributeError, match="compute_capability of an operation cannot change: describe another"):
            operation.__init__(*described)
    assert (operation.procedural_name(), hash(operation), repr(operation)) == before
