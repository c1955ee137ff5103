"""Mistakes with epilogue functions when they are launched and computed: each is explained, in words of the user."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch
from descriptions import parts
from traced_functions import plain, refused

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass, epilogue
from pycutlass.epilogue import Row, Scalar, Tensor
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError


@pycutlass.epilogue_function
def _named(accum: Any, scale: Tensor, data: Tensor, mask: Tensor, B2: Tensor, row: Row, alpha: Scalar = 1.0) -> Any:
    x = alpha * accum * scale + data + B2 + row
    reductions = {"Squares": epilogue.sum_of_squares(x, axis=1), "most": epilogue.max(x)}
    return {"D": epilogue.where(mask != 0, x, 0.0), "T": x, **reductions}


M, N, K = 16, 24, 32
_SHARED = np.zeros(M, np.float32)


def launched(**given: Any) -> dict[str, Any]:
    """Run a function whose tensors have the names of other operands' beginnings; return what was computed."""
    described = parts("f16")
    functor = _named(described["C"].element, described["C"].alignment, cutlass.float32, mask=cutlass.int8)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    half = np.float16
    epilogue_tensors = {
        **{name: np.ones((M, N), half) for name in ("scale", "data", "B2")},
        "mask": np.ones((M, N), np.int8),
        "row": np.ones(N, half),
        "T": np.zeros((M, N), half),
        "Squares": np.zeros(M, np.float32),
        "most": np.zeros(1, np.float32),
    } | given
    D = np.zeros((M, N), half)
    arguments = pycutlass.GemmArguments(
        operation, (M, N, K), np.ones((M, K), half), np.ones((N, K), half).T, None, D, epilogue=epilogue_tensors
    )
    operation.run(arguments)
    arguments.sync()
    return {"D": D, **epilogue_tensors}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": np.ones((M, N), np.float32)}, r"Pass data.astype\(np.float16\)"),
        ({"data": np.ones((N, M), np.float16).T}, r"pass np.ascontiguousarray\(data\)"),
        ({"T": np.ones((M, N), np.float32)}, r"Make T as np.empty\(\(16, 24\), np.float16\) and read the result"),
        ({"T": np.ones((N, M), np.float16).T}, r"make T as np.empty\(\(16, 24\), T.dtype\) and read the result"),
        ({"T": np.ones((N, M), np.float16)}, "the transposed matrix. For the result itself, make T as"),
        ({"Squares": np.ones(M, np.float16)}, r"Make Squares as np.empty\(\(?16\)?, np.float32\) and read the result"),
        ({"scale": np.ones(N, np.float16)}, "a flat operand scale must have exactly 16 x 24 = 384 elements, packed in"),
        (
            {"row": np.ones(M, np.float16)},
            "operand row must be a contiguous vector of 24 elements, one for each",
        ),
        ({"mask": np.ones((M, N), np.bool_)}, r"Pass mask.view\(np.int8\), which has the same memory"),
        ({"mask": torch.ones(M, N, dtype=torch.bool)}, r"Pass mask.view\(torch.int8\), which has the same memory"),
        ({"most": np.ones(2, np.float32)}, r"operand most must be of one element; got shape \(2,\)"),
        ({"Squares": _SHARED, "most": _SHARED[:1]}, "Squares overlaps most .*: two results cannot be in one place"),
        ({"rwo": np.ones(N, np.float16)}, "the epilogue _named has no tensor rwo; it has .*Did you mean row"),
        ({"row": np.ones(2 * N, np.float16)[::2]}, r"with strides \(2,\). Pass np.ascontiguousarray\(row\)."),
        ({"row": np.ones(N, np.float16)[::-1]}, r"with strides \(-1,\). Pass np.ascontiguousarray\(row\)."),
        ({"row": torch.ones(1, dtype=torch.half).expand(N)}, r"with strides \(0,\). Pass row.contiguous\(\)."),
        ({"row": np.ones((N, 2), np.float16)}, r"got shape \(24, 2\) with strides \(2, 1\)$"),
        ({"alpha": 2.0}, r"alpha is a scalar: give output_op=operation.epilogue_type\(alpha=...\)"),
    ],
)
def test_a_tensor_that_does_not_fit_is_explained(given: dict[str, Any], said: str, without_gpu: None) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=said) as caught:
        launched(**given)
    assert "bias" not in str(caught.value)


def test_rows_of_a_tensor_may_be_of_several_dimensions_whatever_it_is_called(without_gpu: None) -> None:
    made = launched(B2=np.full((2, M // 2, N), 2.0, np.float16))
    np.testing.assert_array_equal(made["D"], np.full((M, N), K + 4.0))


def test_a_mask_may_be_a_view_of_truth_values(without_gpu: None) -> None:
    mask = np.arange(M * N).reshape(M, N) % 3 == 0
    made = launched(mask=mask.view(np.int8))
    np.testing.assert_array_equal(made["D"], np.where(mask, K + 3.0, 0))


def test_annotations_may_be_names_of_the_function_around() -> None:
    half, here = Row(cutlass.float16), cutlass.bfloat16

    @pycutlass.epilogue_function
    def function(accum: Any, one: half, two: Tensor(here), three: Scalar = 2.0) -> Any:  # type: ignore[valid-type]
        return accum * three + one + two

    assert [each.kind for each in function.graph.inputs] == [None, "f16", "bf16", None]


@pytest.mark.parametrize("name", ["lda", "ldd", "problem_sizes", "scale_A", "scale_B"])
def test_names_that_launches_have_for_something_else(name: str) -> None:
    """Groups keep their sizes and tables, and kernels their operands, under these."""

    def taking(accum: Any, x: Any) -> Any:
        return accum + x

    taking.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("accum", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Tensor),
        ]
    )

    def returning(accum: Any) -> Any:
        return {"D": accum, name: accum * 2.0}

    for function, said in ((taking, f"has a parameter {name}, which is "), (returning, f"an output {name}, which is ")):
        with pytest.raises(DescriptionError, match=f"{said}.*use another name"):
            pycutlass.epilogue_function(function)


def test_what_a_function_is_called_with_is_explained() -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"no tensor 'D' beside C and D: it has bias. The type of D comes first"
    ):
        plain(cutlass.float16, 8, D=cutlass.float32)
    with pytest.raises(ArgumentTypeError, match=r"no tensor 'C' .* The operation's description of C says its type"):
        plain(cutlass.float16, 8, C=cutlass.float32)
    for given in (np.ones((2, 2)), torch.ones(2, 2)):
        with pytest.raises(ArgumentTypeError, match=r"is given a \w+: on arrays it is computed by plain.numpy\(...\)"):
            plain(given, 8)


def test_a_function_without_scalars_says_so() -> None:
    functor = plain(cutlass.float16, 8)
    assert repr(functor.epilogue_type()) == "EpilogueScalars(computed in cutlass.float32)"
    with pytest.raises(ArgumentError, match="plain has no scalars, and got 2: leave output_op out"):
        functor.epilogue_type(1.0, 0.0)


@pytest.mark.parametrize(
    ("compute", "number", "said"),
    [
        (
            cutlass.float16,
            1e5,
            "has the number 100000, which is beyond cutlass.float16: use a smaller one, or element_epilogue=",
        ),
        (cutlass.bfloat16, 3.4e38, "beyond cutlass.bfloat16: use a smaller one, or element_epilogue=cutlass.float32"),
        (cutlass.float32, 1e39, "beyond cutlass.float32: use a smaller one, or float64 operands"),
        (cutlass.float16, 1e39, "beyond cutlass.float16: use a smaller one, or float64 operands"),
    ],
)
def test_a_number_beyond_what_is_computed_in(compute: Any, number: float, said: str) -> None:
    function = pycutlass.epilogue_function(lambda accum: accum + number)
    with pytest.raises(DescriptionError, match=said):
        function(cutlass.float16, 8, cutlass.float32, compute)
    within = pycutlass.epilogue_function(lambda accum: accum + 65504.0)
    assert within(cutlass.float16, 8, cutlass.float32, compute).compute.tag is compute


def test_the_cost_of_a_convolution_is_that_of_its_product() -> None:
    size = pycutlass.conv2d_problem_size(np.ones((1, 8, 8, 16)), np.ones((32, 3, 3, 16)), padding=1)
    with pytest.raises(ArgumentTypeError, match=r"convolution is cutlass.conv.implicit_gemm_problem_size\(operator, "):
        plain(cutlass.float16, 8).cost(size)
    product = cutlass.conv.implicit_gemm_problem_size(cutlass.conv.Operator.fprop, size)
    assert plain(cutlass.float16, 8).cost(product).read_bytes == 32 * 2


def test_a_c_that_is_not_read_is_explained() -> None:
    described = parts()
    operation = GemmOperationUniversal(
        **described | {"epilogue_functor": plain(cutlass.float16, described["C"].alignment)}
    )
    M, N, K = 16, 24, 8
    A, B, D = np.ones((M, K), np.float16), np.ones((N, K), np.float16).T, np.empty((M, N), np.float16)
    bias = np.ones(N, np.float16)
    with pytest.raises(ArgumentError, match=r"What it reads is given by name: epilogue={'bias': ...}"):
        pycutlass.GemmArguments(operation, (M, N, K), A, B, bias, D)
    with pytest.raises(ArgumentTypeError, match="the epilogue plain has no tensor 5; it has bias"):
        pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, epilogue={5: bias})
    with pytest.raises(ArgumentTypeError, match=r"to an epilogue function by its name, as in epilogue={'bias': ...}"):
        pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, bias=bias)


@pytest.mark.parametrize("default", [70000.0, 1e39])
def test_a_default_beyond_what_is_computed_in(default: float) -> None:
    def scaled(accum: Any, alpha: Scalar = default) -> Any:
        return accum * alpha

    function = pycutlass.epilogue_function(scaled)
    functor = function(cutlass.float16, 8, cutlass.float32, cutlass.float16)
    number = re.escape(
        f"scaled has the number alpha={default:g}, which is beyond cutlass.float16: give or use a smaller"
    )
    with pytest.raises(ArgumentError, match=rf"^scaled, line \d+ \(def scaled.*\): {number} one, or "):
        functor.epilogue_type()
    assert functor.epilogue_type(2).values == (2.0,)
    assert function(cutlass.float64, 2, cutlass.float64).epilogue_type().values == (default,)


def test_a_default_beyond_all_types() -> None:
    def scaled(accum: Any, alpha: Scalar = 10**400) -> Any:
        return accum * alpha

    assert "scaled has a default of alpha that is too large" in refused(scaled)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ma.masked_array(np.ones((1, 2)), [[True, False]]), r"accum is a masked array, .* pass accum.filled\(0\)"),
        (np.ones((1, 2)) * 1j, "array of numbers, got ndarray of complex128"),
        ([["1", "2"]], "array of numbers, got list"),
        (np.array([["2020", "2021"]], "M8[Y]"), "array of numbers, got ndarray of datetime64"),
        ([[None, 1.0]], "array of numbers, got list"),
        (torch.ones(1, 2, requires_grad=True), r"got Tensor: pass accum.detach\(\).cpu\(\).float\(\)"),
        (torch.ones(1, 2, dtype=torch.bfloat16), r"got Tensor: pass accum.detach\(\).cpu\(\).float\(\)"),
    ],
)
def test_what_is_no_array_of_numbers_is_not_computed(given: Any, said: str) -> None:
    with pytest.raises(ArgumentTypeError, match=said):
        plain.numpy(given, bias=[0.0, 1.0])


def test_integers_of_any_size_are_numbers() -> None:
    assert plain.numpy([[2**70, 1]], bias=[0.0, 1.0]).tolist() == [[2.0**70, 2.0]]


def test_what_has_no_elements_is_not_reduced() -> None:
    greatest = pycutlass.epilogue_function(lambda accum: {"D": accum, "most": epilogue.max(accum, axis=1)})
    with pytest.raises(
        ArgumentError, match=r"makes most of the elements of D, and an accumulator of shape \(3, 0\) has no elements"
    ):
        greatest.numpy(np.ones((3, 0)))
    with pytest.raises(ArgumentError, match=r"accumulator of plain is a matrix, of shape \(..., M, N\); got a single"):
        plain.numpy(1.0, bias=1.0)
