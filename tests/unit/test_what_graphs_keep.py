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
