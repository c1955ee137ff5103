# ruff: noqa: F821
"""Trees of the original: classes whose ``__call__`` is traced, and is their reference on arrays."""

import pickle
import re
import sys
from typing import Any

import numpy as np
import pytest
from convolutions import conv, fprop
from descriptions import parts

import pycutlass
from pycutlass import EpilogueVisitTree, GemmArguments, GemmOperationUniversal, cutlass, leaky_relu, reduction_op, tanh
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError, PyCutlassError

M, N, K = 72, 136, 40
TILE = (64, 64, 32)


class Broadcast(EpilogueVisitTree):
    """Two outputs, of which none is called D."""

    def __call__(
        self,
        accum: "tensor",
        c: "tensor",
        vector: "column",
        alpha: "scalar",
        beta: "scalar",
    ) -> Any:
        T = accum + vector
        scale_T = leaky_relu.numpy(alpha * T, 0.2)
        Z = scale_T - beta * c
        return Z, T


class Reduces(EpilogueVisitTree):
    """The reductions of both directions."""

    def __call__(self, accum: "tensor", c: "tensor", alpha: "scalar", beta: "scalar") -> Any:
        D = alpha * accum + tanh.numpy(beta * c)
        rows = reduction_op(D, "row", "Add", TILE[1])
        columns = reduction_op(D, "column", "Add", TILE[0])
        return D, rows, columns


def tree(kind: type[EpilogueVisitTree], **changes: Any) -> Any:
    described = parts("f16", tile=TILE) | changes
    C = described["C"]
    made = kind(
        described["epilogue_functor"],
        described["tile_description"],
        cutlass.float32,
        C.alignment,
        cutlass.float32,
        C.element,
    )
    return made


def make(kind: type[EpilogueVisitTree], **changes: Any) -> GemmOperationUniversal:
    described = parts("f16", tile=TILE) | changes
    return GemmOperationUniversal(**described | {"epilogue_functor": tree(kind, **changes)}, visitor=True)


def drawn(batch: int) -> dict[str, Any]:
    random = np.random.default_rng(2)

    def each(*shape: int) -> Any:
        return random.integers(-2, 3, (batch, *shape)).astype(np.float16)

    B = np.asfortranarray(each(K, N)[0]) if batch == 1 else each(N, K).swapaxes(1, 2)
    return {"A": each(M, K), "B": B, "c": each(M, N), "vector": each(M, 1)}


@pytest.mark.parametrize("mode", ["Gemm", "Batched", "Array"])
def test_a_launch_is_what_the_class_says(mode: str, without_gpu: None) -> None:
    operation, reference = make(Broadcast), tree(Broadcast)
    batch = 1 if mode == "Gemm" else 3
    given = drawn(batch)
    Z, T = np.empty((batch, M, N), np.float16), np.empty(batch * M * N, np.float16)
    output_op = operation.epilogue_type(
        c=given["c"].reshape(-1), vector=given["vector"], alpha=0.5, beta=2.0, Z=Z, T=T, problem_size=[M, N]
    )
    A, B, D = given["A"], given["B"], Z
    options: dict[str, Any] = {"gemm_mode": cutlass.gemm.Mode[mode], "batch": batch}
    if mode == "Gemm":
        A, D, options = A[0], Z[0], {}
        output_op = operation.epilogue_type(
            c=given["c"].reshape(-1), vector=given["vector"], alpha=0.5, beta=2.0, Z=D, T=T, problem_size=[M, N]
        )
    if mode == "Array":
        A, B = list(A), list(B)
    arguments = GemmArguments(operation, (M, N, K), A, B, given["c"], D, output_op=output_op, **options)
    operation.run(arguments)
    output_op.sync()
    sums = given["A"].astype(np.float32) @ given["B"].astype(np.float32)
    wanted_Z, wanted_T = reference(sums, given["c"], given["vector"], 0.5, 2.0)
    np.testing.assert_array_equal(Z, wanted_Z.astype(np.float16))
    np.testing.assert_array_equal(T.reshape(batch, M, N), wanted_T.astype(np.float16))


@pytest.mark.parametrize("batch", [1, 2])
def test_sums_are_of_tiles(batch: int, without_gpu: None) -> None:
    operation, reference = make(Reduces), tree(Reduces)
    given = drawn(batch)
    across, down = -(-N // TILE[1]), -(-M // TILE[0])
    D = np.empty((batch, M, N), np.float16)
    rows, columns = np.full(batch * M * across, np.nan, np.float16), np.full(batch * N * down, np.nan, np.float16)
    output_op = operation.epilogue_type(
        D=D if batch > 1 else D[0], alpha=1.0, beta=0.5, c=given["c"], rows=rows, columns=columns, problem_size=[M, N]
    )
    options = {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": batch} if batch > 1 else {}
    A = given["A"] if batch > 1 else given["A"][0]
    arguments = GemmArguments(operation, (M, N, K), A, given["B"], output_op=output_op, **options)
    operation.run(arguments)
    arguments.sync()
    sums = given["A"].astype(np.float32) @ given["B"].astype(np.float32)
    wanted = reference(sums, given["c"].astype(np.float32), 1.0, 0.5)
    np.testing.assert_allclose(D, wanted[0], 1e-3, 1e-3)
    np.testing.assert_allclose(rows, wanted[1], 2e-3, 0.1)
    np.testing.assert_allclose(columns, wanted[2], 2e-3, 0.1)


def test_sums_of_arrays_take_ragged_tiles() -> None:
    x = np.arange(24.0).reshape(1, 4, 6)
    np.testing.assert_array_equal(reduction_op(x, "row", "Add", 4), [*x[0, :, :4].sum(1), *x[0, :, 4:].sum(1)])
    np.testing.assert_array_equal(reduction_op(x, "column", "Add", 3), [*x[0, :3].sum(0), *x[0, 3:].sum(0)])


def test_equal_classes_make_equal_kernels() -> None:
    class Other(EpilogueVisitTree):
        def __call__(self, accum: "tensor", c: "tensor", vector: "column", alpha: "scalar", beta: "scalar") -> Any:
            T = accum + vector
            Z = leaky_relu.numpy(alpha * T, 0.2) - beta * c
            return Z, T

    operation = make(Broadcast)
    assert make(Other).epilogue_functor.graph == operation.epilogue_functor.graph
    assert pickle.loads(pickle.dumps(operation)) == operation


class _Alone(EpilogueVisitTree):
    def __call__(self, accum: "tensor", alpha: "scalar") -> Any:  # type: ignore
        T = alpha * accum
        D = T
        return D


class _Other(EpilogueVisitTree):
    def __call__(self, accum: "tensor", alpha: "scalar") -> Any:  # type: ignore
        D = alpha * accum
        T = D
        return T


class _Both(EpilogueVisitTree):
    def __call__(self, accum: "tensor", alpha: "scalar") -> Any:  # type: ignore
        T = alpha * accum
        D = T
        return T, D


@pytest.mark.parametrize(
    ("kind", "main", "outputs"), [(_Alone, "D", {"D"}), (_Other, "T", {"D"}), (_Both, "D", {"D", "T"})]
)
def test_an_output_has_the_name_that_is_returned(kind: Any, main: str, outputs: set[str]) -> None:
    functor = tree(kind).functor
    assert functor.main == main and {name for name, _ in functor.graph.outputs} == outputs


class _WithoutSelf(EpilogueVisitTree):
    def __call__(accum: "tensor", alpha: "scalar") -> Any:  # type: ignore # noqa
        return accum * alpha


class _WithoutAny(EpilogueVisitTree):
    def __call__() -> Any:  # type: ignore
        return None


@pytest.mark.parametrize(("kind", "first"), [(_WithoutSelf, "accum"), (_WithoutAny, "nothing")])
def test_self_comes_first(kind: Any, first: str) -> None:
    with pytest.raises(DescriptionError, match=f"has {first} as its first parameter, which is self in a class: def"):
        tree(kind).initialize()


def test_a_profiler_stays() -> None:
    def profiler(*_: Any) -> None:
        """Do nothing."""

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        tree(Broadcast).initialize()
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)


def returning(expression: str) -> type[EpilogueVisitTree]:
    """Return a class that returns what is written here: nothing is parsed from source text."""
    total = "total = reduction_op(D, 'row', 'Add', 64)"
    names: dict[str, Any] = {"EpilogueVisitTree": EpilogueVisitTree, "reduction_op": reduction_op}
    exec(
        f"class Tree(EpilogueVisitTree):\n"
        f"    def __call__(self, accum: 'tensor', x: 'tensor', a: 'scalar'):\n"
        f"        D = a * accum - x\n"
        f"        {total if 'total' in expression else ''}\n"
        f"        return {expression}\n",
        names,
    )
    return names["Tree"]  # type: ignore[no-any-return]


def test_a_class_that_has_no_source_is_traced() -> None:
    functor = tree(returning("D")).functor
    assert [port.name for port in functor.inputs] == ["x"] and functor.scalar_names == ("a",)
    assert [node.node for node in functor.graph.values] == ["input", "input", "multiply", "input", "subtract"]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("D + 1.0", "which is none of its variables: outputs have their names, so write D = ..., and return D"),
        ("D, D", "Tree returns D, D: return each variable once"),
        ("total", "returns no tensor: a kernel writes one at least"),
        ("None", "which is none of its variables"),
        ("D, x", "an output x, which is also an input: use another name"),
        ("D, total, total", "return each variable once"),
    ],
)
def test_what_a_class_cannot_return(expression: str, said: str) -> None:
    with pytest.raises(PyCutlassError, match=rf"^__call__, line \d+.*: .*{said}"):
        tree(returning(expression)).initialize()


def test_the_whole_matrix_is_called_d() -> None:
    class Tree(EpilogueVisitTree):
        def __call__(self, accum: "tensor"):  # type: ignore[name-defined,no-untyped-def,override]
            D = reduction_op(accum, "row", "Add", 64)
            T = 2.0 * accum
            return T, D

    with pytest.raises(DescriptionError, match=r"Tree returns a reduction as D.*as in return T, total$"):
        tree(Tree).initialize()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("both", "Add", 64), "'row' or 'column'"),
        (("row", "Max", 64), "'Add'"),
        (("row", "Add", 0), "got 'row', 'Add', 0"),
    ],
)
def test_reductions_that_there_are_not(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(DescriptionError, match=said):
        reduction_op(np.ones((1, 2, 2)), *arguments)


def test_tiles_of_another_size_are_refused() -> None:
    with pytest.raises(DescriptionError, match=r"rows of the epilogue has a result for each tile of 64 columns, and"):
        make(Reduces, tile_description=parts("f16", tile=(64, 128, 32))["tile_description"])


def test_what_a_launch_lacks_is_named() -> None:
    operation = make(Broadcast)
    with pytest.raises(ArgumentError, match=r"Broadcast takes Z, c, vector, T, alpha, beta; vector, Z are missing"):
        operation.epilogue_type(c=1 << 20, T=1 << 21, alpha=1.0, beta=0.0)
    with pytest.raises(ArgumentTypeError, match="Did you mean vector"):
        operation.epilogue_type(c=1 << 20, T=1 << 21, Z=1 << 22, vector=1 << 23, vectr=1, alpha=1.0, beta=0.0)
    with pytest.raises(ArgumentTypeError, match=r"problem_size must be \[M, N\], got 3"):
        operation.epilogue_type(c=1 << 20, T=1 << 21, Z=1 << 22, vector=1 << 23, alpha=1.0, beta=0.0, problem_size=3)


def test_another_problem_than_the_launch_s_is_refused(without_gpu: None) -> None:
    operation, given, Z = make(Broadcast), drawn(1), np.empty((M, N), np.float16)
    tensors = {"c": given["c"], "vector": given["vector"], "Z": Z, "T": Z.copy(), "alpha": 1.0, "beta": 0.0}

    def launch(**options: Any) -> GemmArguments:
        output_op = operation.epilogue_type(**tensors, **options)
        return GemmArguments(operation, (M, N, K), given["A"][0], given["B"], None, Z, output_op=output_op)

    with pytest.raises(
        ArgumentError, match=rf"problem_size=\[{N}, {M}\], and the arguments are for {M} x {N} "
    ) as refused:
        launch(problem_size=[N, M])
    told = re.search(r"give epilogue_type problem_size=(\[\d+, \d+\]), or leave it out$", str(refused.value))
    assert told, refused.value
    arguments = launch(problem_size=eval(told[1]))
    launch()
    with pytest.raises(ArgumentError, match="and the arguments are for"):
        arguments.update(output_op=operation.epilogue_type(**tensors, problem_size=[M, N + 1]))


def test_results_without_a_launch_are_none(without_gpu: None) -> None:
    operation, given = make(Broadcast), drawn(1)
    Z, T = np.empty((M, N), np.float16), np.empty((M, N), np.float16)
    output_op = operation.epilogue_type(c=given["c"], vector=given["vector"], alpha=1.0, beta=1.0, Z=Z, T=T)
    with pytest.raises(ArgumentError, match="no launch to wait for: keep the GemmArguments"):
        output_op.sync()


def test_what_is_no_tree_says_so() -> None:
    with pytest.raises(DescriptionError, match="EpilogueVisitTree does not say what it computes"):
        tree(EpilogueVisitTree).initialize()
    with pytest.raises(ArgumentTypeError, match="tile_description must be a TileDescription"):
        Broadcast(None, None, cutlass.float32, 8, cutlass.float32, cutlass.float16)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="elementwise_functor must be an epilogue functor"):
        Broadcast("relu", None, cutlass.float32, 8, cutlass.float32, cutlass.float16)  # type: ignore[arg-type]


@pytest.mark.compile
def test_it_builds() -> None:
    pycutlass.compiler.add_module([make(Reduces)])


@pytest.mark.parametrize("given", ["the class", "its functor"])
def test_other_operations_take_it_as_a_function(given: str, without_gpu: None) -> None:
    """The original had trees for GEMMs alone; here they are of the same graph as functions, which all families take."""
    random = np.random.default_rng(3)
    A, B, c = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((16, 32), (8, 32), (16, 8)))
    exact = 2.0 * A.astype(float) @ B.T.astype(float) + c

    class Added(EpilogueVisitTree):
        def __call__(self, accum: "tensor", c: "tensor", alpha: "scalar"):  # type: ignore[name-defined,no-untyped-def,override]
            T = alpha * accum + c
            return T

    made: Any = tree(Added)
    made = made if given == "the class" else made.functor
    described = parts("f16")

    group = pycutlass.GemmOperationGrouped(**described | {"epilogue_functor": made})
    D = np.empty((16, 8), np.float16)
    options: dict[str, Any] = {"output_op": group.epilogue_type(alpha=2.0), "epilogue": {"c": [c]}}
    launch: Any = pycutlass.GemmGroupedArguments(group, [(16, 8, 32)], [A], [B.T], None, [D], **options)
    group.run(launch)
    launch.sync()
    np.testing.assert_array_equal(D, exact)

    convolution = conv(fprop, "optimized", functor=lambda *types: made)
    x, w, y, image = (each.reshape(-1, 1, 1, each.shape[1]) for each in (A, B, np.empty_like(c), c))
    size = pycutlass.conv2d_problem_size(x, w)
    options = {"output_op": convolution.epilogue_type(alpha=2.0), "epilogue": {"c": image}}
    launch = pycutlass.Conv2dArguments(convolution, size, x, w, None, y, **options)
    convolution.run(launch)
    launch.sync()
    np.testing.assert_array_equal(y.reshape(16, 8), exact)

    for call in (pycutlass.matmul, pycutlass.Gemm):
        with pytest.raises(ArgumentTypeError, match="describe that kernel as GemmOperationUniversal, or write"):
            call(A, B.T, epilogue=made)
