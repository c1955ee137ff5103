"""Arguments that C++ makes of ordinary tensors: it takes what the checks in Python take, and as they take it."""

from __future__ import annotations

from typing import Any

import fake_gpu
import pytest
from apart import APART
from descriptions import ampere, hopper
from hypothesis import given
from hypothesis import strategies as st
from prepared_arguments import TORCH

from pycutlass import GemmProblemSize, cutlass, kernel
from pycutlass.errors import ArgumentError
from pycutlass.operation.gemm_support import check_size

_LAUNCHES = f"""{TORCH}
operation, M, N, K = gemm(), 5, 6, 7

def there(values):
    # a tensor of torch in memory of the stand-in
    array = Array(0, values)
    tensor = torch.from_numpy(memory_at(array.data.ptr, array.shape))
    tensor.array = array
    return tensor

def drawn():
    A, B = (there(np.random.randint(-4, 5, shape).astype(np.float32)) for shape in ((M, K), (N, K)))
    view = B.t()
    view.array = B.array
    return A, view, None, there(np.zeros((M, N), np.float32))

def here():
    # arguments that are made at once
    given = drawn()
    arguments = made(operation, (M, N, K), *given)
    assert is_ordinary(arguments)
    return given, arguments

def check(given, arguments, stream):
    operation.run(arguments, stream)
    arguments.sync()
    A, B, C, D = given
    assert torch.equal(D, A @ B + (0 if C is None else C)), (D, A @ B)

assert operation._prepared == ()
stream = Stream(0)
"""


def test_they_are_launched_and_updated() -> None:
    program = """
given, arguments = here()
check(given, arguments, stream)
assert arguments.launched and arguments.ptr_A == given[0].data_ptr() and arguments.ldb == K

A, B, _, D = given = drawn()
arguments.update(A=A, B=B, D=D)
check(given, arguments, stream)

C = there(np.ones((M, N), np.float32))
arguments.update(C=C, output_op=operation.epilogue_type(1.0, 1.0))
check((A, B, C, D), arguments, stream)
assert arguments.bias is False and tuple(arguments.problem_size) == (M, N, K)
try:
    arguments.update(A=torch.zeros(M, K + 1))
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:36])
check((A, B, C, D), arguments, stream)

given, arguments = here()
given[1].data = torch.zeros(N, K).t()
try:
    operation.run(arguments, stream)
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:36])
"""
    said = fake_gpu.run(_LAUNCHES + program).splitlines()
    assert said == ["operand A must have shape (5, 7), or", "the memory of operand B is not what "]


def test_threads_share_what_is_prepared() -> None:
    """Two threads make calls of one prepared kernel and launch them, each on its own stream, at the same time."""
    program = """
here()  # while one thread searches what tensors of this torch are like, others do without
operation._prepared = ()
sys.setswitchinterval(1e-5)

def work(stream):
    for _ in range(300):
        given, arguments = here()
        check(given, arguments, stream)
        given = drawn()
        arguments.update(A=given[0], B=given[1], D=given[3])
        check(given, arguments, stream)

in_threads(work, Stream(0), Stream(0))
(prepared,) = operation._prepared
here()
assert operation._prepared == (prepared,)
"""
    fake_gpu.run(_LAUNCHES + program)


def test_another_compilation_has_another_kernel() -> None:
    program = """
given, arguments = here()
before = operation.artifacts["sm_80"]
operation.artifacts["sm_80"] = dataclasses.replace(before, key="another" + before.key)
arguments = made(operation, (M, N, K), *given)
assert is_ordinary(arguments)
assert [key for key, _ in kernel._loaded] == ["another" + before.key]  # that of before has gone
check(given, arguments, stream)
assert len(operation._prepared) == 1

operation.artifacts.clear()
try:
    made(operation, (M, N, K), *given)
except pycutlass.errors.NotCompiledError:
    print("not compiled")
"""
    assert fake_gpu.run(_LAUNCHES + program) == "not compiled\n"


def test_nothing_that_is_known_keeps_memory_or_kernels() -> None:
    program = """
import gc, weakref
given, arguments = here()
tensors = [weakref.ref(tensor) for tensor in given if tensor is not None]
loaded = weakref.ref(kernel.load(operation, 0))
del given, arguments
gc.collect()
assert not any(tensor() for tensor in tensors)
assert loaded() is not None
del operation
gc.collect()
assert loaded() is None
"""
    fake_gpu.run(_LAUNCHES + program)


def test_a_gradient_that_is_asked_for_is_said_and_d_may_not_ask_for_one() -> None:
    program = """
A, B, C, D = drawn()
weights = torch.nn.Parameter(B)
with torch.no_grad():
    assert is_ordinary(made(operation, (M, N, K), A, weights, C, D)) and not said
assert is_ordinary(made(operation, (M, N, K), A, weights, C, D))
assert len(said) == 1 and said[0].startswith("operand B requires a gradient"), said
try:
    made(operation, (M, N, K), A, B, C, D.requires_grad_())
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:23])
"""
    assert fake_gpu.run(_LAUNCHES + program) == "operand D requires grad\n"


def test_what_stands_for_nothing_is_refused_all_the_same() -> None:
    program = """
here()
for epilogue in ([], "", 0, False, np.ones(2)):
    try:
        made(operation, (M, N, K), *drawn(), epilogue=epilogue)
    except pycutlass.errors.ArgumentTypeError as error:
        assert "epilogue must be a mapping" in str(error), error
    else:
        print("accepted", epilogue)
made(operation, (M, N, K), *drawn(), epilogue={})
"""
    assert fake_gpu.run(_LAUNCHES + program) == ""


def test_steps_beyond_all_addresses_are_left_to_python() -> None:
    """In 64 bits the extent of D would wrap around to a few bytes, which C is not among."""
    program = """
class Placed:
    __cuda_array_interface__ = {}

    def __init__(self, address, step, line):
        self.shape, self.strides, self.dtype = (3, 4, 4), (step, *line), np.dtype(np.float32)
        self.data = SimpleNamespace(ptr=address, device_id=0)

sys.modules["cupy"].ndarray = Placed
Mode, near = pycutlass.cutlass.gemm.Mode, 1 << 20
for step in (64, 2**50, 2**62 - 64, 2**62, 2**63 - 64):
    given = [Placed(near, 64, (16, 4)), Placed(near, 64, (4, 16)), Placed(8 * near + 2**21, 64, (16, 4))]
    how = {"gemm_mode": Mode.Batched, "batch": 3, "output_op": operation.epilogue_type(1.0, 1.0)}
    D = Placed(8 * near, step, (16, 4))
    outcomes = []
    for make in (looked_at, made):
        try:
            outcomes.append(make(operation, (4, 4, 4), *given, D, **how)._execution.call.record_bytes)
        except PyCutlassError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1], (step, outcomes)
    print(isinstance(outcomes[1], bytes))
"""
    assert fake_gpu.run(_LAUNCHES + program).split() == ["True", "True", *["False"] * 3]


def test_arguments_are_made_once() -> None:
    """What a launch may still need would go with the first ones."""
    program = """
given, arguments = here()
check(given, arguments, stream)
before = vars(arguments).copy()
try:
    arguments.__init__(operation, (M, N, K), *drawn())
except AttributeError as error:
    print(str(error)[:43])
assert vars(arguments) == before
check(given, arguments, stream)
"""
    assert fake_gpu.run(_LAUNCHES + program) == "operation of GemmArguments cannot be set, a\n"


KNOWN = [
    *(ampere(kind) for kind in ("f16", "f32_simt")),
    ampere("f16", swizzle=cutlass.HorizontalSwizzle),
    ampere("f16", swizzle=cutlass.ThreadblockSwizzleStreamK),
    hopper(),
    ampere("f16", types=("s8", "s32", "s32"), instruction=(16, 8, 32), tile=(128, 128, 64)),
    *APART.values(),
]


@given(st.sampled_from(KNOWN), st.data())
def test_sizes_that_are_taken_need_no_look(operation: Any, data: st.DataObject) -> None:
    """What C++ compares sizes with leaves nothing for the checks to refuse."""
    most, (rows, columns), least = kernel.Sizes.of(operation)
    steps = (rows, columns, 1, 1)
    near = [
        st.sampled_from([step, limit // step * step, limit // step // 2 * step])
        for limit, step in zip(most, steps, strict=True)
    ]
    m, n, k, batch = (data.draw(extent) for extent in near)
    slices = data.draw(st.integers(1, min(-(-k // least), 65535))) if least else 1
    check_size(operation, GemmProblemSize(m, n, k, split_k_slices=slices))
    check_size(operation, GemmProblemSize(m, n, k))
    check_size(operation, GemmProblemSize(m, n, k, cutlass.gemm.Mode.Batched, batch=batch))


def test_sizes_beyond_need_one() -> None:
    operation = ampere("f16")
    _, n, k, batch = kernel.Sizes.of(operation).most
    for size in ((1, n + 128, 1), (1, 1, k + 1)):  # rows go along x, where a grid has room
        with pytest.raises(ArgumentError):
            check_size(operation, GemmProblemSize(*size))
    with pytest.raises(ArgumentError):
        check_size(operation, GemmProblemSize(1, 1, 1, cutlass.gemm.Mode.Batched, batch=batch + 1))
    for operation in APART.values():
        m, n = kernel.Sizes.of(operation).steps
        assert m * n == operation.C.alignment > 1
        with pytest.raises(ArgumentError, match="the alignment of C"):
            check_size(operation, GemmProblemSize(m + 1, n + 1, 8))
