"""Messages that once told newcomers something that does not work: each says what does, and that is tried here."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from convolutions import conv, fprop
from descriptions import COLUMN, ROW, ampere, hopper, native_parts, parts

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    MathInstruction,
    TensorDescription,
    TensorSpec,
    cutlass,
)
from pycutlass.compiler.session import NO_PROBLEMS
from pycutlass.errors import ArgumentTypeError, CacheError, DescriptionError, PyCutlassError
from pycutlass.report import BuildReport
from pycutlass.tensor import wrap

pytestmark = pytest.mark.usefixtures("without_gpu")

f16, f32 = cutlass.float16, cutlass.float32
RCR = ampere("f16")


def test_what_differs_of_a_d_described_apart_is_shown() -> None:
    for D in (TensorDescription(f16, ROW, 2), TensorDescription(f32, ROW, 4), TensorDescription(f16, COLUMN, 8)):
        described = parts()
        described["epilogue_functor"] = pycutlass.LinearCombination(D.element, D.alignment, f32, f32)
        with pytest.raises(DescriptionError) as caught:
            GemmOperationUniversal(**described, D=D)
        message = str(caught.value)
        assert repr(D) in message and repr(described["C"]) in message and "describe C so" in message
        made = GemmOperationUniversal(**{**described, "C": D})
        assert made.D == D


def test_a_d_of_another_type_names_the_description_of_c() -> None:
    D = TensorSpec((64, 128), f32)
    reason = RCR.supports((64, 128, 64), {"D": D}).reason
    advice = re.search(
        r"Give a TensorSpec of float16, or describe C, which D follows, as cutlass.float32 with alignment (\d), and "
        r"give the epilogue functor element_output=cutlass.float32 and epilogue_vector_length=(\d)",
        reason,
    )
    assert advice is not None, reason
    functor = pycutlass.LinearCombination(f32, int(advice[2]), f32, f32)
    described = {**parts(), "C": TensorDescription(f32, ROW, int(advice[1])), "epilogue_functor": functor}
    assert GemmOperationUniversal(**described).supports((64, 128, 64), {"D": D})
    assert RCR.supports((64, 128, 64), {"D": TensorSpec((64, 128), "float16")})


@pytest.mark.parametrize("name", ["A", "B", "D"])
def test_a_spec_of_another_layout_is_told_shape_and_strides(name: str) -> None:
    shape = {"A": (64, 32), "B": (32, 128), "D": (64, 128)}[name]
    wrong = TensorSpec(shape, f16) if name == "B" else TensorSpec(shape, f16, (1, shape[0]))
    reason = RCR.supports((64, 128, 32), {name: wrong}).reason
    found = re.search(r"give a TensorSpec of shape (\(.*?\)) with strides (\(.*?\))", reason)
    assert found is not None and "copy" not in reason, reason
    assert RCR.supports((64, 128, 32), {name: TensorSpec(eval(found[1]), f16, eval(found[2]))})


@pytest.mark.parametrize("name", ["A", "D"])
def test_a_spec_of_a_convolution_is_told_shape_and_strides(name: str) -> None:
    operation, p = conv(fprop, "optimized"), cutlass.conv.Conv2dProblemSize(2, 16, 16, 32, 32, 1, 1)
    reason = operation.supports(p, {name: TensorSpec((2, 32, 16, 16), f16)}).reason
    found = re.search(r"give a TensorSpec of shape (\(.*?\)) with strides (\(.*?\))", reason)
    assert found is not None and "copy" not in reason, reason
    assert operation.supports(p, {name: TensorSpec(eval(found[1]), f16, eval(found[2]))})


def test_the_size_of_a_convolution_needs_no_memory() -> None:
    x, w = TensorSpec((2, 16, 15, 32), f16), TensorSpec((64, 3, 3, 32), f16)
    size = pycutlass.conv2d_problem_size(x, w, padding=1)
    assert (size.N, size.H, size.W, size.C, size.K) == (2, 16, 15, 32, 64)
    x_meta, w_meta = torch.empty(2, 32, 16, 15, device="meta"), torch.empty(64, 32, 3, 3, device="meta")
    assert repr(pycutlass.conv2d_problem_size(x_meta, w_meta, padding=1)) == repr(size)
    with pytest.raises(PyCutlassError, match=r"x was read as \(N, H, W, C\)"):
        pycutlass.conv2d_problem_size(TensorSpec((2, 32, 16, 16), f16), w)


def test_a_module_is_not_what_a_member_was_meant_to_be() -> None:
    with pytest.raises(AttributeError, match=r"Did you mean Gemm\?"):
        _ = cutlass.gemm.Mode.gemm
    with pytest.raises(AttributeError, match=r"Write cutlass\.RowMajor\."):
        _ = pycutlass.MathOperation.RowMajor


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e5m2", "uint16", "int16", "float8", "complex64"])
def test_no_other_type_is_suggested(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(cutlass, name)
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(AttributeError, match=r"Did you mean float16\?"):
        _ = cutlass.flaot16


def test_depthwise_is_told_group_mode_and_algorithm_at_once() -> None:
    single = conv(fprop, "optimized", group_mode=pycutlass.GroupMode.SingleGroup)
    p = cutlass.conv.Conv2dProblemSize(N=1, H=8, W=8, C=64, K=64, R=1, S=1, groups=8)
    assert "use MultipleGroup with the analytic algorithm" in single.supports(p).reason
    assert conv(fprop, "analytic", group_mode=pycutlass.GroupMode.MultipleGroup).supports(p)


def test_a_batch_is_called_a_batch() -> None:
    size = GemmProblemSize(8, 8, 8, cutlass.gemm.Mode.Batched, 70_000)
    reason = RCR.supports(size).reason
    assert "batch must be at most 65535" in reason and "split_k_slices" not in reason
    assert ampere("f16", swizzle=cutlass.BatchedIdentitySwizzle).supports(size)


def test_a_functor_without_tensors_says_so() -> None:
    A, B = np.ones((8, 8), np.float16), np.ones((8, 8), np.float16).T
    D = np.zeros((8, 8), np.float16)
    with pytest.raises(ArgumentTypeError, match=r"LinearCombination has no tensors beside C and D.*got aux"):
        GemmArguments(RCR, (8, 8, 8), A, B, None, D, epilogue={"aux": D})


def test_bundles_are_named_and_not_the_hidden_file(tmp_path: Any) -> None:
    from pycutlass.cache import bundle

    with pytest.raises(CacheError) as caught:
        bundle.write_bundle(tmp_path / "nowhere" / "k.zip", [])
    assert "make it first" in str(caught.value) and ".pycutlass-export" not in str(caught.value)
    with pytest.raises(CacheError, match="there is no such file") as caught:
        list(bundle.read_bundle(tmp_path / "nothere.zip"))
    assert "again" not in str(caught.value)


def test_one_size_is_no_group() -> None:
    described = parts()
    described.pop("swizzling_functor")
    group = GemmOperationGrouped(**described)
    with pytest.raises(ArgumentTypeError, match=r"pass a list of problem sizes, such as \[\(256, 128, 64\)\]"):
        group.supports((256, 128, 64))
    assert group.supports([(256, 128, 64)])


def test_an_instruction_of_tensor_cores_names_the_default_of_opcode_class() -> None:
    with pytest.raises(DescriptionError, match=r"opcode_class is Simt, its default; give cutlass\.OpClass\.TensorOp"):
        MathInstruction([16, 8, 16], f16, f16, f32)
    assert MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)


def test_tensors_given_to_run_are_for_arguments() -> None:
    A = np.ones((8, 8), np.float16)
    with pytest.raises(ArgumentTypeError, match=r"make GemmArguments first, and call run\(arguments\)"):
        RCR.run(A, A, A, A)


def test_attributes_of_operations_are_suggested() -> None:
    for operation in (RCR, hopper(), GemmOperationUniversal(**native_parts())):
        with pytest.raises(AttributeError, match=r"Did you mean procedural_name\?"):
            _ = operation.procedural_nam
        assert not hasattr(operation, "_nothing")


def test_spilling_kernels_of_hopper_have_no_warps_to_choose() -> None:
    given = {field: 1 if kind in ("int", "float") else () for field, kind in BuildReport.__annotations__.items()}
    report = SimpleNamespace(**given, wgmma=False)
    report.wgmma_serialized = False
    [first, *_] = BuildReport.problems(report, is_native=True)  # type: ignore[arg-type]
    assert first.endswith("choose a smaller tile")
    [first, *_] = BuildReport.problems(report)  # type: ignore[arg-type]
    assert first.endswith("choose a smaller tile, or divide it among more warps (warp_count)")


@pytest.mark.parametrize("target", ["sm_90", "sm_90a"])
def test_strict_mode_says_what_the_family_has(target: str) -> None:
    from pycutlass.compiler.session import judge
    from pycutlass.errors import BuildReportError

    given: dict[str, Any] = {
        field: 1 if kind in ("int", "float") else () for field, kind in BuildReport.__annotations__.items()
    }
    spills = BuildReport(**{**given, "wgmma_serialized": False, "compiler": "nvcc"}).as_json()
    kernel: Any = SimpleNamespace(name="kernel", target=target, report=spills)
    with pytest.raises(BuildReportError, match=r"^strict mode refuses the kernel:") as caught:
        judge([kernel], True)
    assert ("warp" in str(caught.value)) == (target == "sm_90")
    good: Any = SimpleNamespace(name="good", target=target, report={**spills, **NO_PROBLEMS})
    with pytest.raises(BuildReportError, match=r"^strict mode refuses 1 of 2 kernels:"):
        judge([kernel, good], True)


@pytest.mark.parametrize("name", ["D", "D[0]", "destination", "A"])
@pytest.mark.parametrize("kind", ["masked", "big-endian", "conjugate", "sparse"])
def test_no_copy_is_offered_in_the_place_of_an_output(name: str, kind: str) -> None:
    array = np.ones((4, 6), np.float32)
    given: Any = {
        "masked": lambda: np.ma.masked_less(array, 0),
        "big-endian": lambda: array.astype(">f4"),
        "conjugate": lambda: torch.ones(4, 6, dtype=torch.complex64).conj(),
        "sparse": lambda: torch.from_numpy(array).to_sparse(),
    }[kind]()
    with pytest.raises(ArgumentTypeError) as caught:
        wrap(name, given)
    message = str(caught.value)
    made = re.search(r"Make (\S+) as (.*) and read the result from there", message)
    copies = re.search(r"filled|astype|to_dense|resolve", message)
    assert (made is None, copies is None) == ((True, False) if name == "A" else (False, True)), message
    if made is not None:
        assert made[1] == name
        fresh = eval(made[2], {"np": np, "torch": torch, "D": [given] if name == "D[0]" else given, name: given})
        assert wrap(name, fresh).shape == (4, 6)


def test_a_scalar_that_no_type_holds_is_sent_to_none() -> None:
    half, single = (pycutlass.LinearCombination(f16, 8, f32, compute) for compute in (f16, f32))
    with pytest.raises(PyCutlassError, match=r"compute in cutlass\.float32 \(element_epilogue\)"):
        half.epilogue_type(1e30)
    assert single.epilogue_type(1e30)
    for functor in (half, single):
        with pytest.raises(PyCutlassError, match="Scale the operands instead") as caught:
            functor.epilogue_type(1e60)
        assert "element_epilogue" not in str(caught.value)


def test_an_activation_among_the_keywords_is_for_another_functor() -> None:
    for kind in (pycutlass.LinearCombination, pycutlass.LinearCombinationClamp):
        with pytest.raises(ArgumentTypeError, match=r"LinearCombinationGeneric\(pycutlass\.relu\(\), ") as caught:
            kind(f16, 8, f32, f32, activation="relu")
        assert "Did you mean" not in str(caught.value)
    assert pycutlass.LinearCombinationGeneric(pycutlass.relu(), f16, 8, f32, f32)


def test_a_list_of_one_tensor_and_a_tensor_to_come_are_called_so() -> None:
    with pytest.raises(PyCutlassError, match=r"operand A has 1 tensor for batch=2: give one for each problem"):
        RCR.supports(GemmProblemSize(8, 8, 8, cutlass.gemm.Mode.Array, 2), {"A": [TensorSpec((8, 8), f16)]}).require()
    assert "got a TensorSpec of float32" in RCR.supports((8, 8, 8), {"A": TensorSpec((8, 8), f32)}).reason


def test_a_raster_order_that_does_nothing_is_said_once(caplog: Any) -> None:
    from pycutlass import RasterOrder

    A, B, D = np.ones((8, 8), np.float16), np.ones((8, 8), np.float16).T, np.zeros((8, 8), np.float16)
    for operation, order, said in (
        (hopper(), RasterOrder.AlongN, 0),
        (RCR, RasterOrder.Heuristic, 0),
        (RCR, RasterOrder.AlongN, 1),
    ):
        caplog.clear()
        for _ in range(2):
            GemmArguments(operation, (8, 8, 8), A, B, None, D, raster_order=order)
        assert sum("is ignored: it is for Hopper-native kernels" in record.message for record in caplog.records) == said


def test_a_variable_that_names_nothing_is_named_once(monkeypatch: Any) -> None:
    from pycutlass.compiler.tools import find_device_compiler
    from pycutlass.errors import ToolkitError
    from pycutlass.toolkit.files import without_memo

    monkeypatch.setenv("CUDA_HOME", "/nope")
    monkeypatch.delenv("PYCUTLASS_BACKEND", raising=False)
    with pytest.raises(ToolkitError) as caught:
        find_device_compiler(None, without_memo)
    assert str(caught.value).count("CUDA_HOME is /nope") == 1


def test_a_host_compiler_that_does_not_work_is_said_to_be_named_by_cxx(monkeypatch: Any) -> None:
    from pycutlass.compiler.tools import find_tools
    from pycutlass.errors import ToolkitError
    from pycutlass.toolkit.files import without_memo

    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(
        ToolkitError, match=r"(?s)CXX is /bin/false, which does not work.*Correct the variable or unset it"
    ):
        find_tools(None, without_memo)


@pytest.mark.parametrize("library", ["numpy", "torch", "cupy"])
def test_no_cast_is_offered_that_wraps_integers(library: str) -> None:
    from pycutlass.remedies import converted

    for given, wanted in (("uint8", "int8"), ("int32", "int8"), ("float32", "int8"), ("int64", "int32")):
        assert re.search(r"astype|\.to\(", converted("A", library, wanted, given)) is None
    for given, wanted in (("int8", "int32"), ("float32", "float16"), ("bfloat16", "float32")):
        assert converted("A", library, wanted, given).startswith("Pass A.")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_truth_values_are_viewed_as_bytes_of_either_sign(library: str, dtype: str) -> None:
    from pycutlass.remedies import converted

    made = {"numpy": np.array([True, False]), "torch": torch.tensor([True, False])}[library]
    said = re.search(r"Pass (A\.view\(\w+\.\w+\)), which has the same memory", converted("A", library, dtype, "bool"))
    assert said is not None
    viewed = eval(said[1], {"A": made, "np": np, "torch": torch})
    assert viewed.tolist() == [1, 0] and str(viewed.dtype).endswith(f".{dtype}"[library == "numpy" :])


@pytest.mark.parametrize("make", [lambda D: D[::-1], lambda D: np.broadcast_to(D[:1], D.shape)])
def test_a_result_is_never_written_to_a_copy(make: Any) -> None:
    A, B = np.ones((8, 8), np.float16), np.ones((8, 8), np.float16).T
    D = make(np.zeros((8, 8), np.float16))
    D = D if D.flags.writeable else np.lib.stride_tricks.as_strided(D, writeable=True)
    with pytest.raises(PyCutlassError, match="read the result from there") as caught:
        GemmArguments(RCR, (8, 8, 8), A, B, None, D)
    made = re.search(r"[Mm]ake D as (np\.empty\(.*\)) and read", str(caught.value))
    assert made is not None and "copy" not in str(caught.value)
    GemmArguments(RCR, (8, 8, 8), A, B, None, eval(made[1]))


def test_no_description_is_named_that_there_is_not() -> None:
    B, D = np.ones((8, 8), np.float16).T, np.empty((8, 8), np.float16)
    with pytest.raises(PyCutlassError, match="tensor of uint8") as caught:
        GemmArguments(RCR, (8, 8, 8), np.ones((8, 8), np.uint8), B, None, D)
    assert "describe" not in str(caught.value).split("tensor of uint8")[1]
