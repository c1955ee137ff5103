"""Operands that are moved while arguments are made of them: after the look at their address, before the copy."""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import TORCH

_ALLOCATOR = """
held = {}

class Allocator:
    then = None

    def allocate(self, size, stream):
        if self.then:
            now, self.then = self.then, None
            now()
        array = Array(0, np.zeros(size + 512, np.uint8))
        pointer = -(-array.data.ptr // 256) * 256
        held[pointer] = array
        return pointer

    def deallocate(self, pointer, size, stream):
        pass

allocator = Allocator()
"""
_TENSORS = """
memory = []

def there(values):
    memory.append(Array(0, values))
    return torch.from_numpy(memory_at(memory[-1].data.ptr, values.shape))
"""
_MOVES = {"data": "it.data = there(it.numpy() + 1)", "set": "it.set_(there(it.numpy() + 1))", "transposed": "it.t_()"}


@pytest.mark.parametrize("move", _MOVES)
@pytest.mark.parametrize("name", ["A", "D"])
@pytest.mark.parametrize("family", ["gemm", "group"])
def test_a_tensor_that_the_allocator_moves_is_refused(family: str, name: str, move: str) -> None:
    fake_gpu.run(
        f"""{TORCH}{_ALLOCATOR}{_TENSORS}
grouped = {family == "group"}
operation = group("device") if grouped else gemm()
A, B, D = there(on_host(6, 6, 1)), on_host(6, 6, 2, "F"), there(np.zeros((6, 6), np.float32))
it = {name}

def move():
    {_MOVES[move]}

def make():
    if grouped:
        return pycutlass.GemmGroupedArguments(operation, [(6, 6, 6)], [A], [B], None, [D])
    return pycutlass.GemmArguments(operation, (6, 6, 6), A, B, None, D)

with pycutlass.allocating_with(allocator):
    allocator.then = move
    refused(make, "operand {name}", "was moved or changed while it was looked at")
    if {move != "transposed"}:
        arguments = make()
        operation.run(arguments)
        arguments.sync()
        assert torch.equal(D, A @ torch.from_numpy(B)), D
        del arguments
""",
        seconds=120,
    )


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("name", ["A", "B", "D"])
def test_an_array_that_the_allocator_resizes_is_refused(name: str, at: int) -> None:
    fake_gpu.run(
        f"""{_ALLOCATOR}
operation = gemm("stream_k")
M, N, K = 64, 64, 4096
A, B, D = np.ones((M, K), np.float32), np.ones((K, N), np.float32, order="F"), np.zeros((M, N), np.float32)

def resize():
    {name}.resize((1, 1), refcheck=False)

def later():
    allocator.then = resize

allocator.then = resize if {at} == 1 else later
with pycutlass.allocating_with(allocator):
    refused(lambda: pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D), "operand {name}", "was moved or")
"""
    )


def test_an_update_that_is_refused_so_changes_nothing() -> None:
    fake_gpu.run(
        f"""{_ALLOCATOR}
operation = gemm()
A, B, D = on_host(64, 32, 1), on_host(32, 64, 2, "F"), np.zeros((64, 64), np.float32)
other = on_host(64, 32, 3)
with pycutlass.allocating_with(allocator):
    arguments = pycutlass.GemmArguments(operation, (64, 64, 32), A, B, None, D)
    allocator.then = lambda: other.resize((1, 1), refcheck=False)
    refused(lambda: arguments.update(A=other), "operand A", "was moved or changed")
    operation.run(arguments)
    arguments.sync()
    assert np.array_equal(D, A @ B)
    del arguments
"""
    )


@pytest.mark.parametrize("move", _MOVES)
def test_a_tensor_that_moves_while_another_is_asked_is_read_anew(move: str) -> None:
    fake_gpu.run(
        f"""{TORCH}{_TENSORS}
operation, M = gemm(), 6
A, B, D = there(on_host(M, M, 1)), there(on_host(M, M, 2)), there(np.zeros((M, M), np.float32))
first = pycutlass.GemmArguments(operation, (M, M, M), A, B.t(), None, D)
assert is_ordinary(first)
it, asked, moved = A, torch.nn.Parameter(B.t(), requires_grad=False), []

def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "wrap" and not moved and frame.f_locals["tensor"] is asked:
        moved.append(True)
        {_MOVES[move]}

sys.setprofile(profile)
try:
    arguments = pycutlass.GemmArguments(operation, (M, M, M), A, asked, None, D)
except PyCutlassError as error:
    arguments = None
    assert {move == "transposed"}, error
sys.setprofile(None)
assert moved
if arguments is not None:
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(D, A @ B.t())
""",
        seconds=120,
    )
