"""Launches of kernels with epilogue functions: slices, tables, streams, graphs and scalars in device memory."""

from typing import Any

import numpy as np
import pytest
import torch
from descriptions import parts
from epilogue_functions import FUNCTIONS, residual, tile_sums
from function_cases import check, drawn, launch
from function_kernels import KERNELS, make

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass
from pycutlass.epilogue import Tensor, gelu, sigmoid, silu, tanh


@pytest.mark.parametrize("size", [(128, 128, 8192), (264, 136, 4104), (136, 264, 65536)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_stream_k_over_long_sums(name: str, size: tuple[int, int, int]) -> None:
    """Several threadblocks add up a tile, and some of them nothing else; again and again, with barriers to be reset."""
    operation = make("ampere f16, stream-K", FUNCTIONS[name])
    given = drawn(operation, *size, scale=size[2] ** -0.25)
    arguments = launch(operation, given)
    arguments.sync()
    check(operation, given)
    written = ("D", *(port.name for port in operation.epilogue_functor.outputs))
    first = {output: given[output].clone() for output in written}
    for _ in range(20):
        for output in written:
            given[output].fill_(float("nan"))
        operation.run(arguments)
        arguments.sync()
        assert all(torch.equal(given[output], first[output]) for output in written)


@pytest.mark.parametrize(("size", "slices"), [((128, 128, 64), 2), ((264, 136, 4104), 5), ((1000, 520, 1032), 16)])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kernel", ["ampere f16", "ampere f32", "ampere f16, alignment 2"])
def test_slices_of_k(kernel: str, name: str, size: tuple[int, int, int], slices: int) -> None:
    """Slices take turns to add up a tile: always the same sums, whatever is in the workspace from before."""
    operation = make(kernel, FUNCTIONS[name])
    given = drawn(operation, *size, scale=2.0 ** -round(np.log2(size[2]) / 4))  # a power: tf32 keeps every digit
    arguments = launch(operation, given, slices=slices)
    arguments.sync()
    check(operation, given)
    written = ("D", *(port.name for port in operation.epilogue_functor.outputs))
    first = {output: given[output].clone() for output in written}
    for _ in range(10):
        for output in written:
            given[output].fill_(float("nan"))
        operation.run(arguments)
        arguments.sync()
        assert all(torch.equal(given[output], first[output]) for output in written)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tables_of_addresses(name: str) -> None:
    operation = make("ampere f16", FUNCTIONS[name])
    given = drawn(operation, 136, 264, 64, (3,))
    listed = {key: None if each is None else list(each) for key, each in given.items()}
    operands = (listed[key] for key in "ABCD")
    ports = {port.name: listed[port.name] for port in operation.epilogue_functor.ports}
    mode = cutlass.gemm.Mode.Array
    arguments = pycutlass.GemmArguments(operation, (136, 264, 64), *operands, mode, batch=3, epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    check(operation, given)
    others = drawn(operation, 136, 264, 64, (3,))
    arguments.update(A=list(others["A"]), epilogue={name: list(others[name]) for name in ports} or None)
    operation.run(arguments)
    arguments.sync()
    check(operation, given | {key: others[key] for key in ("A", *ports)})


def test_tables_that_are_on_the_device() -> None:
    operation = make("ampere f16", residual)
    given = drawn(operation, 136, 264, 64, (3,))

    def table(name: str) -> Any:
        return torch.tensor([each.data_ptr() for each in given[name]], device="cuda")

    ports = {name: table(name) for name in ("bias", "addend", "T")}
    mode, operands = cutlass.gemm.Mode.Array, (table("A"), table("B"), None, table("D"))
    arguments = pycutlass.GemmArguments(operation, (136, 264, 64), *operands, mode, batch=3, epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    check(operation, given)


@pytest.mark.parametrize("size", [(136, 264, 1024), (8, 8, 64), (1000, 520, 4096)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_behind_parallel_split_k(name: str, size: tuple[int, int, int]) -> None:
    described = parts("f16")
    gemm = GemmOperationUniversal(**described)
    functor = FUNCTIONS[name](described["C"].element, 8, cutlass.float32)
    reduction = pycutlass.ReductionOperation(
        (4, 256), described["C"], cutlass.float32, epilogue_functor=functor, count=8
    )
    pycutlass.compiler.add_module([gemm, reduction])
    m, n, k = size
    given = drawn(GemmOperationUniversal(**described | {"epilogue_functor": functor}), m, n, k, scale=k**-0.25)
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    sums = pycutlass.GemmArguments(gemm, size, given["A"], given["B"], gemm_mode=mode, split_k_slices=3)
    ports = {port.name: given[port.name] for port in functor.ports}
    arguments = pycutlass.ReductionArguments(reduction, (m, n), 3, sums.ptr_D, given["D"], given["C"], epilogue=ports)
    gemm.run(sums)
    reduction.run(arguments)
    arguments.sync()
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    check(operation, given)


@pytest.mark.parametrize("size", [(128, 128, 64), (264, 136, 72), (8, 8, 8), (1000, 520, 136)])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if "alignment" not in name])
def test_results_of_tiles(kernel: str, size: tuple[int, int, int]) -> None:
    rows, columns, _ = KERNELS[kernel]()["tile_description"].threadblock_shape
    operation = make(kernel, tile_sums(rows, columns), row_sums=cutlass.float16)
    m, n, _ = size
    given = drawn(operation, *size)
    given["row_sums"] = given["row_sums"].new_full((m * -(-n // columns),), float("nan"))
    given["column_greatest"] = given["column_greatest"].new_full((n * -(-m // rows),), float("nan"))
    launch(operation, given).sync()
    check(operation, given)


class Tree(pycutlass.EpilogueVisitTree):
    """A tree of the original's, with all that these had."""

    def __call__(self, accum: "tensor", c: "tensor", vector: "row", alpha: "scalar", beta: "scalar"):  # type: ignore # noqa
        T = alpha * (accum + vector)
        Z = pycutlass.relu.numpy(T + beta * c)
        sums = pycutlass.reduction_op(T, "row", "Add", 128)
        return Z, T, sums


@pytest.mark.parametrize("batch", [1, 3])
def test_a_tree_of_the_original(batch: int) -> None:
    described, (m, n, k) = parts("f16"), (264, 136, 72)
    f16, f32 = cutlass.float16, cutlass.float32
    tree = Tree(described["epilogue_functor"], described["tile_description"], f32, 8, f32, f16)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": tree}, visitor=True)
    pycutlass.compiler.add_module([operation])
    random = np.random.default_rng(1)
    A, B, c, vector = (
        random.integers(-2, 3, shape).astype(np.float16)
        for shape in ((batch, m, k), (batch, n, k), (batch, m, n), (batch, 1, n))
    )
    Z, T, sums = (np.full(size, np.nan, np.float16) for size in (batch * m * n, batch * m * n, batch * m * 2))
    output_op = operation.epilogue_type(
        c=c.reshape(-1), vector=vector, alpha=0.5, beta=2.0, Z=Z, T=T, sums=sums, problem_size=[m, n]
    )
    mode = cutlass.gemm.Mode.Gemm if batch == 1 else cutlass.gemm.Mode.Batched
    arguments = pycutlass.GemmArguments(
        operation, (m, n, k), A.reshape(-1), B.reshape(-1), c.reshape(-1), Z, mode, output_op=output_op, batch=batch
    )
    operation.run(arguments)
    arguments.sync()
    output_op.sync()
    product = A.astype(np.float32) @ B.astype(np.float32).swapaxes(1, 2)
    for found, wanted in zip((Z, T, sums), tree(product, c, vector, 0.5, 2.0), strict=True):
        np.testing.assert_allclose(found, wanted.reshape(-1), 2e-3, 1e-2)


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative"])
def test_a_scalar_in_device_memory(kernel: str) -> None:
    operation = make(kernel, residual)
    given = drawn(operation, 136, 264, 64)
    alpha = torch.full((1,), 2.0, device="cuda")
    arguments = launch(operation, given, alpha=alpha)
    arguments.sync()
    check(operation, given, alpha=2.0)
    alpha.fill_(-1.0)
    operation.run(arguments)
    arguments.sync()
    check(operation, given, alpha=-1.0)


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative"])
def test_in_a_graph_and_with_other_tensors(kernel: str) -> None:
    operation = make(kernel, residual)
    given, others = drawn(operation, 136, 264, 64), drawn(operation, 136, 264, 64)
    arguments = launch(operation, given)
    arguments.sync()
    arguments.update(A=others["A"], epilogue={"bias": others["bias"], "T": others["T"], "addend": others["addend"]})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    others |= {"B": given["B"], "D": given["D"]}
    for name in ("D", "T"):
        others[name].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    check(operation, others)


@pytest.mark.parametrize("kernel", ["hopper cooperative", "hopper pingpong"])
def test_reductions_of_two_streams_at_once(kernel: str) -> None:
    """Threadblocks of one launch may wait for multiprocessors that have those of the other."""
    operation = make(kernel, FUNCTIONS["reduced"])
    streams = [torch.cuda.Stream() for _ in range(2)]
    all_given = [drawn(operation, 2048, 2048, 64) for _ in streams]
    launched = [launch(operation, given) for given in all_given]
    torch.cuda.synchronize()
    for _ in range(300):
        for arguments, stream in zip(launched, streams, strict=True):
            operation.run(arguments, stream)
    torch.cuda.synchronize()
    for given in all_given:
        check(operation, given)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("kernel", ["ampere f16", "hopper pingpong"])
def test_activations_of_all_sizes(kernel: str, kind: str) -> None:
    """Of numbers near and far, infinities and NaN: B is the identity, and results are right to their type."""
    tag = {"f16": cutlass.float16, "bf16": cutlass.bfloat16, "f32": cutlass.float32}[kind]

    @pycutlass.epilogue_function
    def all_of_them(accum: Any, x: Tensor(cutlass.float32)) -> Any:
        x = x + 0.0 * accum
        return {"D": accum, "tanh": tanh(x), "sigmoid": sigmoid(x), "silu": silu(x), "gelu": gelu(x)}

    names = ("tanh", "sigmoid", "silu", "gelu")
    operation = make(kernel, all_of_them, **dict.fromkeys(names, tag))
    n = 256
    spread = torch.cat([torch.logspace(-30, 4, 20000), torch.linspace(0, 15, 40000)])
    x = torch.cat([spread, -spread, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])]).float()
    x = torch.nn.functional.pad(x, (0, -len(x) % n)).view(-1, n).cuda()
    given = drawn(operation, len(x), n, 64) | {"x": x}
    given["A"].zero_()
    launch(operation, given).sync()
    wide = x.double()
    exact = {"tanh": wide.tanh(), "sigmoid": wide.sigmoid(), "silu": wide * wide.sigmoid()}
    exact["gelu"] = wide / 2 * torch.special.erfc(-wide * 0.5**0.5)
    for name in names:
        info = torch.finfo({"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[kind])
        found, wanted = given[name].double(), exact[name].clamp(-info.max, info.max)
        found = found.clamp(-info.max, info.max)
        assert torch.equal(found.isnan() | (x == -torch.inf), wanted.isnan() | (x == -torch.inf)), name
        relative = info.eps / 2 + (6e-6 if kind == "f32" and name == "gelu" else 1e-6 if kind == "f32" else 7e-5)
        close = (found - wanted).abs() <= relative * wanted.abs() + 1e-9 + info.tiny * info.eps
        assert (close | wanted.isnan() | (x == -torch.inf)).all(), (name, x[~close][:5], found[~close][:5])


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative"])
def test_what_is_shared_by_a_batch_or_has_lines_of_its_own(kernel: str) -> None:
    operation = make(kernel, residual)
    given = drawn(operation, 136, 264, 64, (2,))
    given["bias"], given["addend"] = given["bias"][0], given["addend"][0]
    memory = torch.full((2, 136, 280), 7.0, device="cuda", dtype=given["T"].dtype)
    given["T"] = memory[..., :264]
    launch(operation, given).sync()
    assert (memory[..., 264:] == 7).all()
    check(operation, given)
