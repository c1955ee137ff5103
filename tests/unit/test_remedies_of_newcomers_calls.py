"""What newcomers write: each message says what to write instead, and that is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from convolutions import SIMT, conv, f32, fprop
from descriptions import ROW, ampere, parts
from typer.testing import CliRunner

import pycutlass
from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    LinearCombinationGeneric,
    TensorDescription,
    TensorSpec,
    cli,
    compiler,
    conv2d_problem_size,
    cutlass,
)
from pycutlass.errors import ArgumentError, PyCutlassError

pytestmark = pytest.mark.usefixtures("without_gpu")

F32, Mode = cutlass.float32, cutlass.gemm.Mode
OPERATION = ampere("f32_simt", (ROW, ROW, ROW))
PARTS = parts("f32_simt", (ROW, ROW, ROW))
GROUP_PARTS = {name: part for name, part in PARTS.items() if name != "swizzling_functor"}
CONVOLUTION = conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT)
SCALARS = OPERATION.epilogue_type(1.0, 1.0)
SIZE = (4, 4, 4)
SQUARE, D = np.ones((4, 4), np.float32), np.empty((4, 4), np.float32)
BATCH, TARGET = np.ones((2, 4, 4), np.float32), np.empty((2, 4, 4), np.float32)
X, W, Y = (np.ones(shape, np.float32) for shape in ((1, 4, 4, 8), (8, 3, 3, 8), (1, 4, 4, 8)))
PROBLEM = conv2d_problem_size(X, W, padding=1)


def arguments(*further: Any, C: Any = None, **named: Any) -> GemmArguments:
    return GemmArguments(OPERATION, SIZE, SQUARE, SQUARE, C, D, *further, **named)


def batched(A: Any, target: Any, **named: Any) -> GemmArguments:
    return GemmArguments(OPERATION, SIZE, A, A, None, target, **named)


def described(**changes: Any) -> GemmOperationUniversal:
    return GemmOperationUniversal(**{**PARTS, **changes})


def described_with(keyword: str, named: str) -> GemmOperationUniversal:
    """Describe the operation with another keyword in the place of the one that is `named`."""
    return GemmOperationUniversal(**{keyword if name == named else name: part for name, part in PARTS.items()})


def grouped(**changes: Any) -> GemmOperationGrouped:
    return GemmOperationGrouped(**{**GROUP_PARTS, **changes})


def generic(activation: Any) -> LinearCombinationGeneric:
    return LinearCombinationGeneric(activation, F32, 1, F32, F32)


LISTED = [SQUARE, SQUARE]
#: A call, words of its message, and the remedy that they name.
CALLS: list[tuple[Callable[[], Any], str, Callable[[], Any]]] = [
    # Arguments
    (
        lambda: arguments(SCALARS, C=SQUARE),
        "by name: output_op=operation.epilogue_type(alpha, beta)",
        lambda: arguments(output_op=SCALARS, C=SQUARE),
    ),
    (
        lambda: batched(BATCH, TARGET, batch=2),
        "pass gemm_mode=cutlass.gemm.Mode.Batched where A, B and D are tensors of 2 matrices",
        lambda: batched(BATCH, TARGET, batch=2, gemm_mode=Mode.Batched),
    ),
    (
        lambda: batched(LISTED, [D, D.copy()], batch=2),
        "gemm_mode=cutlass.gemm.Mode.Array where they are lists of 2 tensors",
        lambda: batched(LISTED, [D, D.copy()], batch=2, gemm_mode=Mode.Array),
    ),
    (
        lambda: batched(BATCH, TARGET, batch=2, gemm_mode=Mode.Batched, split_k_slices=2),
        "leave split_k_slices out",
        lambda: batched(BATCH, TARGET, batch=2, gemm_mode=Mode.Batched),
    ),
    (
        lambda: arguments(output_op=PARTS["epilogue_functor"]),
        "call it, output_op=operation.epilogue_type(1.0, 0.0)",
        lambda: arguments(output_op=OPERATION.epilogue_type(1.0, 0.0)),
    ),
    (
        lambda: arguments(output_op=OPERATION.epilogue_type),
        "call it, output_op=operation.epilogue_type(1.0, 0.0)",
        lambda: arguments(output_op=OPERATION.epilogue_type(1.0, 0.0)),
    ),
    (
        lambda: arguments(output_op=(2.0, 0.0)),
        "pass output_op=operation.epilogue_type(2.0, 0.0)",
        lambda: arguments(output_op=OPERATION.epilogue_type(2.0, 0.0)),
    ),
    (
        lambda: Conv2dArguments(CONVOLUTION, PROBLEM, X, W, None, Y, cutlass.conv.SplitKMode.Serial),
        "write split_k_mode= before it",
        lambda: Conv2dArguments(CONVOLUTION, PROBLEM, X, W, None, Y, split_k_mode=cutlass.conv.SplitKMode.Serial),
    ),
    (lambda: OPERATION.epilogue_type([1.0]), "pass alpha[0]", lambda: OPERATION.epilogue_type([1.0][0])),
    (
        lambda: OPERATION.epilogue_type(1.0, np.array([[1.0]])),
        "pass beta.item()",
        lambda: OPERATION.epilogue_type(1.0, np.array([[1.0]]).item()),
    ),
    (
        lambda: GemmArguments(OPERATION, SIZE, TensorSpec((4, 4), F32), SQUARE, None, D),
        "which has no memory. It is for operation.supports",
        lambda: OPERATION.supports(SIZE, {"A": TensorSpec((4, 4), F32)}).require(),
    ),
    (lambda: arguments().run(), "Write operation.run(arguments)", lambda: OPERATION.run(arguments())),
    (lambda: arguments().synchronize(), "Write arguments.sync()", lambda: arguments().sync()),
    (lambda: OPERATION.launch(arguments()), "Write operation.run(arguments)", lambda: OPERATION.run(arguments())),
    (lambda: OPERATION.synchronize(), "Write arguments.sync()", lambda: arguments().sync()),
    (lambda: OPERATION.compile(), "pycutlass.compiler.add_module([operation])", lambda: compiler.add_module),
    (lambda: OPERATION(SQUARE, SQUARE, D), "operation.run(arguments)", lambda: OPERATION.run(arguments())),
    # Descriptions
    (
        lambda: described(swizzling_functor=4),
        "got 4. Did you mean cutlass.IdentitySwizzle4?",
        lambda: described(swizzling_functor=cutlass.IdentitySwizzle4),
    ),
    (
        lambda: grouped(swizzling_functor=2),
        "got 2. Did you mean cutlass.IdentitySwizzle2?",
        lambda: grouped(swizzling_functor=cutlass.IdentitySwizzle2),
    ),
    (
        lambda: conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT, swizzle=cutlass.ThreadblockSwizzleStreamK),
        "got cutlass.ThreadblockSwizzleStreamK",
        lambda: conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT, swizzle=cutlass.IdentitySwizzle1),
    ),
    (
        lambda: TensorDescription(cutlass.RowMajor, cutlass.RowMajor, 8),
        "got cutlass.RowMajor",
        lambda: TensorDescription(F32, cutlass.RowMajor, 4),
    ),
    *(
        (
            lambda written=written: described(compute_capability=written),
            "Did you mean 80",
            lambda: described(compute_capability=80),
        )
        for written in ("sm_80", "sm80", "8.0", "compute_80", "SM_80", 8.0, (8, 0), [8, 0])
    ),
    (lambda: generic(torch.relu), "Did you mean pycutlass.relu()?", lambda: generic(pycutlass.relu())),
    (lambda: generic(torch.nn.ReLU), "Did you mean pycutlass.relu()?", lambda: generic(pycutlass.relu())),
    (lambda: generic(torch.nn.SiLU()), "Did you mean pycutlass.silu()?", lambda: generic(pycutlass.silu())),
    (lambda: generic(np.tanh), "Did you mean pycutlass.tanh()?", lambda: generic(pycutlass.tanh())),
    (
        lambda: generic(torch.nn.functional.leaky_relu),
        "Did you mean pycutlass.leaky_relu()?",
        lambda: generic(pycutlass.leaky_relu()),
    ),
    # Names
    (lambda: compiler.compile([OPERATION]), "Did you mean add_module?", lambda: compiler.add_module),
    (lambda: pycutlass.add_module, "Did you mean compiler.add_module?", lambda: compiler.add_module),
    (lambda: pycutlass.swish, "Did you mean silu?", lambda: pycutlass.silu),
    *(
        (
            lambda name=name: getattr(pycutlass, f"LinearCombination{name}"),
            f"Write LinearCombinationGeneric(pycutlass.{activation}(), ",
            lambda activation=activation: generic(getattr(pycutlass, activation)()),
        )
        for name, activation in (
            ("Relu", "relu"),
            ("GELU", "gelu"),
            ("Gelu", "gelu"),
            ("Silu", "silu"),
            ("Sigmoid", "sigmoid"),
            ("HardSwish", "hardswish"),
            ("LeakyRelu", "leaky_relu"),
        )
    ),
    # Keywords
    (
        lambda: GemmArguments(op=OPERATION, problem_size=SIZE, A=SQUARE, B=SQUARE, D=D),
        "Did you mean operation, output_op?",
        lambda: GemmArguments(operation=OPERATION, problem_size=SIZE, A=SQUARE, B=SQUARE, D=D),
    ),
    (
        lambda: GemmArguments(OPERATION, SIZE, SQUARE, SQUARE, out=D),
        "Did you mean D?",
        lambda: GemmArguments(OPERATION, SIZE, SQUARE, SQUARE, D=D),
    ),
    (
        lambda: arguments(epilogue_op=SCALARS),
        "Did you mean output_op?",
        lambda: arguments(output_op=SCALARS, C=SQUARE),
    ),
    (lambda: arguments(mode=Mode.Gemm), "Did you mean gemm_mode?", lambda: arguments(gemm_mode=Mode.Gemm)),
    *(
        (
            lambda keyword=keyword, named=named: described_with(keyword, named),
            f"Did you mean {named}?",
            lambda named=named: described_with(named, named),
        )
        for keyword, named in (
            ("tile", "tile_description"),
            ("cc", "compute_capability"),
            ("epilogue_op", "epilogue_functor"),
            ("functor", "epilogue_functor"),
        )
    ),
    *(
        (
            lambda keyword=keyword: described(**{keyword: cutlass.IdentitySwizzle1}),
            "Did you mean swizzling_functor?",
            lambda: described(swizzling_functor=cutlass.IdentitySwizzle1),
        )
        for keyword in ("swizzle", "swizzling", "threadblock_swizzle")
    ),
    (
        lambda: grouped(scheduler=pycutlass.SchedulerMode.Host),
        "Did you mean precompute_mode?",
        lambda: grouped(precompute_mode=pycutlass.SchedulerMode.Host),
    ),
    # Problems
    (
        lambda: Conv2dArguments(CONVOLUTION, PROBLEM, X, W, Y),
        "If nothing is to be added, write Conv2dArguments(operation, problem_size, A, B, None, D)",
        lambda: Conv2dArguments(CONVOLUTION, PROBLEM, X, W, None, Y),
    ),
    (
        lambda: OPERATION.supports(SIZE, [SQUARE, SQUARE]),
        'such as {"A": A, "B": B}; got list of 2 items',
        lambda: OPERATION.supports(SIZE, {"A": SQUARE, "B": SQUARE}).require(),
    ),
    *(
        (
            lambda name=name: TensorSpec((4, 4), name),
            f"Did you mean '{dtype}'?",
            lambda dtype=dtype: TensorSpec((4, 4), dtype),
        )
        for name, dtype in (
            ("f16", "float16"),
            ("half", "float16"),
            ("torch.float16", "float16"),
            ("bf16", "bfloat16"),
            ("f32", "float32"),
            ("s8", "int8"),
            ("float61", "float64"),
        )
    ),
]


@pytest.mark.parametrize("number", range(len(CALLS)), ids=[words for _, words, _ in CALLS])
def test_the_remedy_is_named_and_taken(number: int) -> None:
    call, words, remedy = CALLS[number]
    with pytest.raises((PyCutlassError, AttributeError)) as caught:
        call()
    assert words in str(caught.value), str(caught.value)
    remedy()


def test_gpus_that_have_no_kernels_of_their_own() -> None:
    for written in ("sm_100", (10, 0), 10.0):
        with pytest.raises(PyCutlassError, match="describe compute_capability=90 without cluster_shape"):
            described(compute_capability=written)


def test_keywords_of_earlier_scripts_are_taken_and_not_listed() -> None:
    for call in (lambda: arguments(opp=1), lambda: GemmArguments(opp=1)):  # type: ignore[call-arg]
        with pytest.raises(PyCutlassError) as caught:
            call()
        assert "split_k_slices" in str(caught.value) and "split_k_splices" not in str(caught.value)
    for call in (lambda: described(zz=1), lambda: GemmOperationUniversal(zz=1)):  # type: ignore[call-arg]
        with pytest.raises(PyCutlassError) as caught:
            call()
        assert "swizzling_functor" in str(caught.value)
        assert not any(name in str(caught.value) for name in ("arch", "visitor", "direct_store", "element_epilogue"))
    with pytest.raises(PyCutlassError, match="Did you mean direct_store"):
        described(direct_stor=True)
    arguments(split_k_splices=1)
    described(visitor=False, direct_store=False, element_epilogue=F32)


def test_the_order_of_dimensions_is_not_blamed_for_dilation_and_groups() -> None:
    x, w = np.ones((2, 8, 8, 32), np.float32), np.ones((64, 3, 3, 32), np.float32)
    for given in (x, w), (torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(w).permute(0, 3, 1, 2)):
        for named in {"dilation": 20}, {"groups": 3}:
            with pytest.raises(ArgumentError) as caught:
                conv2d_problem_size(*given, **named)
            assert next(iter(named)) in str(caught.value) or "dilated" in str(caught.value)
            assert "was read as" not in str(caught.value)
    with pytest.raises(ArgumentError, match=r"was read as"):  # channels first: 32 and 32 along them go in groups of 2
        conv2d_problem_size(np.ones((2, 32, 9, 9), np.float32), np.ones((64, 16, 3, 3), np.float32), groups=2)


@pytest.mark.parametrize("command", ["ls", "rm", "export"])
def test_targets_that_are_none(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path))
    file = [str(tmp_path / "bundle")] if command == "export" else []
    wrong = CliRunner().invoke(cli.app, ["cache", command, *file, "--target", "sm80"])
    assert isinstance(wrong.exception, ArgumentError) and "Did you mean 'sm_80'?" in str(wrong.exception)
    assert "--target is 'sm80'" in str(wrong.exception)
    right = CliRunner().invoke(cli.app, ["cache", command, *file, "--target", "sm_80"])
    assert right.exception is None or "there is no kernel to export" in str(right.exception)


def test_names_of_dtypes_stay_taken() -> None:
    for name in ("bool", "uint8", "int64", "float8_e4m3fn", "bfloat16", "complex64", "uint16", "int4", "float64"):
        assert TensorSpec((4,), name).dtype == name
    for dtype in (torch.float16, np.float16, np.dtype("float16"), cutlass.float16):
        assert TensorSpec((4,), dtype).dtype == "float16"
