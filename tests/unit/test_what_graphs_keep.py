"""What docs/guide/torch.md says of CUDA graphs, on the stand-in GPU: what graphs keep, and what arguments keep."""

from __future__ import annotations

import fake_gpu

_GPU = """
M, N, K = 8, 12, 16
a, b = on_host(M, K, 1), on_host(K, N, 2, "F")
nothing = np.full((M, N), np.nan, np.float32)
operation, stream = gemm(), Stream(0)
A, B, D = Array(0, a), Array(0, b), Array(0, nothing)

def make(D, **how):
    return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, **how)
"""


def test_an_update_changes_nothing_of_a_graph() -> None:
    """Neither tensors nor numbers: the first have to stay alive, by whoever captured them."""
    fake_gpu.run(
        _GPU
        + """
arguments, E = make(D, output_op=operation.epilogue_type(2.0)), Array(0, nothing)
with captured(stream) as graph:
    operation.run(arguments, stream)
arguments.update(A=Array(0, 0 * a), D=E, output_op=operation.epilogue_type(3.0))
A.set(a + 1)
graph.replay()
driver.fake_run()
assert (D.now() == 2 * ((a + 1) @ b)).all(), "its tensors are read as they are then, and numbers as they were"
assert np.isnan(E.now()).all()
operation.run(arguments, stream)
arguments.sync()
assert (E.now() == 0).all()
""",
        gpus=1,
    )


def test_a_workspace_goes_with_the_arguments_although_a_graph_has_it() -> None:
    """So the page says to keep them, or to take the workspace from the graph's own pool."""
    fake_gpu.run(
        _GPU
        + """
from pycutlass import memory
arguments = make(D, split_k_slices=2)
assert memory.pool_of(0).get_allocated_size()
with captured(stream) as graph:
    operation.run(arguments, stream)
graph.replay()
driver.fake_run()
assert (D.now() == a @ b).all()
assert memory.pool_of(0).get_allocated_size(), "kept as long as the arguments are"
del arguments
assert soon(lambda: memory.pool_of(0).get_allocated_size() == 0)
""",
        gpus=1,
    )


def test_memory_beside_the_tables_of_a_group_may_belong_to_the_graph() -> None:
    """The pool of RMM has none under capture; what a chosen allocator gives then is not kept once the call is over."""
    fake_gpu.run(
        """
import weakref
from pycutlass import _core
from pycutlass.launch.grouped import TableProblem

class Needs(_core.GroupedCall):
    device_bytes = 4096  # as kernels have it that write tensor maps

class Slab:
    def __init__(self):
        self.memory, self.alive = Array(0, np.zeros(8192, np.uint8)), 0
    def allocate(self, size, stream):
        self.alive += 1
        return -(-self.memory.data.ptr // 256) * 256
    def deallocate(self, pointer, size, stream):
        self.alive -= 1

operation, stream, sizes = group("device"), Stream(0), [(8, 12, 16), (0, 6, 5), (3, 4, 7)]
a = [on_host(m, k, 1 + m) for m, _, k in sizes]
b = [on_host(k, n, 2 + n, "F") for _, n, k in sizes]
A, B = [Array(0, each) for each in a], [Array(0, each) for each in b]
D = [Array(0, np.full((m, n), np.nan, np.float32)) for m, n, _ in sizes]

def table(values, dtype=np.int64):
    return Array(0, np.array(list(values), dtype))

m, n, k = ([size[axis] for size in sizes] for axis in range(3))
addresses = [table(each.data.ptr for each in given) for given in (A, B, D)]
tables = [*addresses[:2], None, addresses[2], table(k), table(k), None, table(n)]

tables.insert(0, table(sizes, np.int32))

def make():
    return pycutlass.GemmGroupedArguments.from_device(operation, len(sizes), *tables)

first = make()
operation.run(first)  # loads the kernel
first.sync()
TableProblem.make_call = lambda self, loaded: Needs(loaded)
own, dead = Slab(), []
with busy(0, stream), captured(stream) as graph:
    refused(make, "cannot be had while a graph is captured")
    with pycutlass.allocating_with(own):
        arguments = make()
    assert own.alive == 1
    operation.run(arguments)
    weakref.finalize(arguments, dead.append, True)
    del arguments
    assert dead, "as soon as nobody has it"
assert soon(lambda: not own.alive)
for _ in range(2):
    for each in D:
        each.set(np.full(each.shape, np.nan, np.float32))
    graph.replay()
    driver.fake_run()
    assert all((d.now() == x @ y).all() for d, x, y in zip(D, a, b))
""",
        gpus=1,
    )
