"""Tensors of every library, alone and mixed, give the same result; what does not fit is refused before any launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import OPERATIONS, f16

import pycutlass
from pycutlass import cutlass, device
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError

M, N, K = 136, 264, 72
OPERATION = OPERATIONS["f16_tnt"]


def host_operands() -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng()
    A = rng.standard_normal((M, K)).astype(np.float16)
    B = np.asfortranarray(rng.standard_normal((K, N)).astype(np.float16))
    C = rng.standard_normal((M, N)).astype(np.float16)
    return A, B, C, np.full((M, N), np.nan, np.float16)


def to_torch(array: Any) -> Any:
    import torch

    if array.ndim == 2 and array.flags.f_contiguous:
        return torch.from_numpy(array.T).cuda().T
    return torch.from_numpy(array).cuda()


def to_cupy(array: Any) -> Any:
    import cupy

    return cupy.asarray(array, order="F" if array.flags.f_contiguous else "C")


class OnlyDlpack:
    """A tensor of a library that nobody has heard of."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


WRAPPERS = {
    "torch": to_torch,
    "cupy": to_cupy,
    "numpy": lambda array: array,
    "dlpack": lambda array: OnlyDlpack(to_cupy(array)),
}


def values(tensor: Any) -> Any:
    if isinstance(tensor, OnlyDlpack):
        tensor = tensor.array
    if isinstance(tensor, np.ndarray):
        return tensor
    return tensor.cpu().numpy() if hasattr(tensor, "cpu") else tensor.get()


def run(A: Any, B: Any, C: Any, D: Any) -> None:
    arguments = pycutlass.GemmArguments(
        OPERATION, cutlass.gemm.GemmCoord(M, N, K), A, B, C, D, output_op=OPERATION.epilogue_type(1.0, 0.5)
    )
    OPERATION.run(arguments)
    arguments.sync()


def check(A: Any, B: Any, C: Any, D: Any) -> None:
    exact = A.astype(float) @ B.astype(float) + 0.5 * C.astype(float)
    np.testing.assert_allclose(values(D).astype(float), exact, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("library", WRAPPERS)
def test_each_library(library: str) -> None:
    A, B, C, D = host_operands()
    wrapped = [WRAPPERS[library](operand) for operand in (A, B, C, D)]
    run(*wrapped)
    check(A, B, C, wrapped[3])


@pytest.mark.parametrize(
    "libraries",
    [
        ("torch", "cupy", "numpy", "torch"),
        ("numpy", "torch", "dlpack", "cupy"),
        ("cupy", "numpy", "torch", "numpy"),
        ("dlpack", "dlpack", "cupy", "torch"),
    ],
)
def test_mixed_libraries(libraries: tuple[str, ...]) -> None:
    A, B, C, D = host_operands()
    wrapped = [WRAPPERS[library](operand) for library, operand in zip(libraries, (A, B, C, D), strict=True)]
    run(*wrapped)
    check(A, B, C, wrapped[3])


def test_mixed_libraries_are_ordered_on_their_streams() -> None:
    import cupy
    import torch

    A, B, C, _ = host_operands()
    side_torch, side_cupy = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(side_torch), side_cupy:
        torch.cuda._sleep(20_000_000)
        slow_A = to_torch(A) * 1
        cupy_B, cupy_D = to_cupy(B), cupy.full((M, N), np.nan, np.float16)
        arguments = pycutlass.GemmArguments(
            OPERATION, (M, N, K), slow_A, cupy_B, to_torch(C), cupy_D, output_op=OPERATION.epilogue_type(1.0, 0.5)
        )
        OPERATION.run(arguments)
        result = cupy_D.copy()  # on cupy's stream, with no wait in between
    side_cupy.synchronize()
    check(A, B, C, result)
    side_torch.synchronize()
    del arguments


def test_pointers() -> None:
    import torch
    from cuda.bindings import driver

    A, B, C, _ = host_operands()
    tensors = [to_torch(operand) for operand in (A, B, C)] + [torch.full((M, N), float("nan"), device="cuda").half()]
    for wrap in (int, driver.CUdeviceptr):
        tensors[3].fill_(float("nan"))
        run(*[wrap(tensor.data_ptr()) for tensor in tensors])
        check(A, B, C, tensors[3])


def test_flat_tensors_are_packed_in_the_declared_layout() -> None:
    A, B, C, D = host_operands()
    flat = [A.reshape(-1), B.T.reshape(-1), C.reshape(-1), D.reshape(-1)]
    run(*flat)
    check(A, B, C, D)
    run(*[to_torch(operand) for operand in flat[:3]], D)
    check(A, B, C, D)


def test_numpy_results_come_back_into_strided_arrays() -> None:
    A, B, C, _ = host_operands()
    wide = np.zeros((M, N + 24), np.float16)
    run(A, B, C, wide[:, 8 : 8 + N])
    check(A, B, C, wide[:, 8 : 8 + N])
    assert not wide[:, :8].any() and not wide[:, 8 + N :].any()


def test_bfloat16_in_numpy() -> None:
    import ml_dtypes

    operation = OPERATIONS["bf16_tnt"]
    rng = np.random.default_rng()
    A = rng.standard_normal((M, K)).astype(ml_dtypes.bfloat16)
    B = np.asfortranarray(rng.standard_normal((K, N)).astype(ml_dtypes.bfloat16))
    D = np.full((M, N), np.nan, ml_dtypes.bfloat16)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_allclose(D.astype(float), A.astype(float) @ B.astype(float), rtol=1e-2, atol=1e-2)


def bad_inputs() -> dict[str, tuple[dict[str, Any], type[Exception], str]]:
    import torch

    def full(*shape: int, dtype: Any = torch.float16) -> Any:
        return torch.zeros(shape, device="cuda", dtype=dtype)

    big = full(M * K + 8)
    return {
        "dtype": ({"A": full(M, K, dtype=torch.float32)}, ArgumentTypeError, "operand A must be float16"),
        "shape": ({"B": full(K, N + 8)}, ArgumentError, "operand B must have shape"),
        "layout": ({"B": full(K, N)}, ArgumentError, "described as ColumnMajor"),
        "stride": ({"A": full(M, 2 * K)[:, ::2]}, ArgumentError, "step of 1 along columns"),
        "broadcast": ({"A": full(1, K).expand(M, K)}, ArgumentError, "leading dimension of operand A is 0"),
        "pointer": ({"A": big[1 : 1 + M * K]}, AlignmentError, "multiple of 16 bytes"),
        "ld": ({"A": full(M, K + 4)[:, :K]}, AlignmentError, "leading dimension"),
        "cpu": ({"A": torch.zeros(M, K, dtype=torch.float16)}, ArgumentError, r"A = A\.cuda\(0\)"),
        "host pointer": (
            {"A": np.zeros((M, K), np.float16).ctypes.data},
            ArgumentError,
            "no memory that a GPU can reach",
        ),
        "nothing": ({"D": None}, ArgumentError, "operand D is missing"),
        "no source": ({"C": None}, ArgumentError, "C is None"),
        "object": ({"A": [[1.0]]}, ArgumentTypeError, "operand A must be a tensor"),
        "keyword": ({"split_k_slice": 1}, ArgumentTypeError, "split_k_slice"),
        "sparse": ({"A": torch.eye(8, device="cuda").to_sparse()}, ArgumentTypeError, "to_dense"),
    }


def test_bad_input_is_refused_before_anything_is_launched() -> None:
    A, B, C, _ = host_operands()
    good = {"A": to_torch(A), "B": to_torch(B), "C": to_torch(C), "D": to_torch(np.full((M, N), 7, np.float16))}
    for name, (changed, error, words) in bad_inputs().items():
        with pytest.raises(error, match=words):
            pycutlass.GemmArguments(
                OPERATION, (M, N, K), **{**good, **changed}, output_op=OPERATION.epilogue_type(1.0, 1.0)
            )
        assert (good["D"] == 7).all(), name


def test_d_over_a_is_refused() -> None:
    import torch

    square = torch.zeros(128, 128, device="cuda", dtype=f16 and torch.float16)
    other = torch.zeros(128, 128, device="cuda", dtype=torch.float16)
    with pytest.raises(ArgumentError, match="D overlaps A"):
        pycutlass.GemmArguments(OPERATION, (128, 128, 128), square, other.T, None, square)


def test_columns_of_one_allocation_do_not_overlap() -> None:
    import torch

    both = torch.randn(M, K + N, device="cuda").half()
    B = torch.randn(N, K, device="cuda").half().T
    A, D = both[:, :K], both[:, K:]
    expected = A.double() @ B.double()
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, None, D)
    OPERATION.run(arguments)
    arguments.sync()
    torch.testing.assert_close(D.double(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.skipif(device.count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", ["f16_tnt", "hopper_pingpong"])
def test_other_devices(name: str) -> None:
    import torch

    operation = OPERATIONS[name]
    tensors = [torch.randn(s, device="cuda:1").half() for s in ((M, K), (N, K), (M, N))]
    A, B, D = tensors[0], tensors[1].T, tensors[2]
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    arguments.sync()
    torch.testing.assert_close(D.double(), A.double() @ B.double(), rtol=2e-3, atol=2e-3)
    assert torch.cuda.current_device() == 0
    with pytest.raises(ArgumentError, match="all operands must be on one GPU"):
        pycutlass.GemmArguments(operation, (M, N, K), A.to("cuda:0"), B, None, D)
