"""Updates of which a step fails, whichever it is: the arguments launch what they launched before, and nothing leaks.

The programs run on a stand-in for the driver (fake_gpu). Each call of the driver that an update makes is made to fail
in turn: memory that cannot be had, a copy, an event; and so is the plan, which is CUTLASS's.
"""

from __future__ import annotations

import fake_gpu
import pytest

_HARNESS = """
M, N, K = 8, 12, 16
Mode = pycutlass.cutlass.gemm.Mode
from pycutlass.launch import DeviceLaunch

def operands(seed, size=(M, N, K)):
    m, n, k = size
    return on_host(m, k, seed), on_host(k, n, seed + 1, "F"), np.full((m, n), np.nan, np.float32)

def read(D):
    if isinstance(D, (list, tuple)):
        return sum(map(read, D), [])
    return [D.now() if isinstance(D, Array) else D.copy()]

def launch(operation, arguments, D, expected):
    for each in D if isinstance(D, (list, tuple)) else [D]:
        poison = np.full(each.shape, np.nan, np.float32)
        each.set(poison) if isinstance(each, Array) else each.__setitem__(..., poison)
    operation.run(arguments)
    arguments.sync()
    for now, wanted in zip(read(D), expected, strict=True):
        assert (now == wanted).all(), (now, wanted)

def fail_each(operation, make, update, old, new):
    # `old` and `new` are D and what it must hold, before and after the update.
    arguments, number, failures = make(), 0, 0
    launch(operation, arguments, *old)
    used = pycutlass.get_allocated_size()
    while True:
        log()
        driver.fake_fail_at(number, 2)
        try:
            update(arguments)
            told = False
        except pycutlass.errors.PyCutlassError:
            told = True
        driver.fake_fail_at(-1, 0)
        calls = log()
        if len(calls) > number and calls[number].split()[0] == "cuCtxSetCurrent":
            use(0)
        if told:
            failures += 1
            launch(operation, arguments, *old)
            assert pycutlass.get_allocated_size() == used, (calls[number], pycutlass.get_allocated_size(), used)
        else:
            launch(operation, arguments, *new)
            if len(calls) <= number:
                break
            arguments = make()
            launch(operation, arguments, *old)
            used = pycutlass.get_allocated_size()
        number += 1
    arguments = make()
    launch(operation, arguments, *old)
    used, plan = pycutlass.get_allocated_size(), DeviceLaunch._plan
    for which in (1, 2):
        count = 0
        def failing(self, problem, call):
            nonlocal count
            count += 1
            if count == which:
                raise pycutlass.errors.ArgumentError("no such plan")
            plan(self, problem, call)
        DeviceLaunch._plan = failing
        try:
            update(arguments)
            told = False
        except pycutlass.errors.ArgumentError:
            told = True
        DeviceLaunch._plan = plan
        if told:
            launch(operation, arguments, *old)
            assert pycutlass.get_allocated_size() == used
    launch(operation, arguments, *(old if told else new))
    update(arguments)
    launch(operation, arguments, *new)
    return failures

def on_gpu(values):
    return [Array(0, each) for each in values] if isinstance(values, list) else Array(0, values)
"""

_CONVOLUTION = """
operation, size = fprop(), pycutlass.cutlass.conv.Conv2dProblemSize(N=2, H=5, W=4, C=3, K=6, R=3, S=3, pad_h=1, pad_w=1)

def tensor(seed, *shape):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)

def conv(x, w):
    return pycutlass.reference.conv2d(operation, size, x, w, None)

(x, w), (x2, w2) = ((tensor(seed, 2, 5, 4, 3), tensor(seed + 1, 6, 3, 3, 3)) for seed in (1, 5))
y, y2 = np.full((2, 5, 4, 6), np.nan, np.float32), np.full((2, 5, 4, 6), np.nan, np.float32)
"""

_FAMILIES = {
    "numpy operands": """
operation = gemm()
(a, b, d), (a2, b2, d2) = operands(1), operands(5)
make = lambda: pycutlass.GemmArguments(operation, (M, N, K), a, b, None, d)
assert fail_each(operation, make, lambda x: x.update(A=a2, B=b2, D=d2), (d, [a @ b]), (d2, [a2 @ b2])) >= 3
assert fail_each(operation, make, lambda x: x.update(A=a2), (d, [a @ b]), (d, [a2 @ b])) >= 3
""",
    "device operands in place of numpy ones": """
operation = gemm()
(a, b, d), (a2, b2, d2) = operands(1), operands(5)
A2, D2 = on_gpu(a2), on_gpu(d2)
make = lambda: pycutlass.GemmArguments(operation, (M, N, K), a, b, None, d)
assert fail_each(operation, make, lambda x: x.update(A=A2, D=D2), (d, [a @ b]), (D2, [a2 @ b])) >= 1
""",
    "a source and other scalars, with serial split-K": """
operation = gemm()
(a, b, d), (a2, b2, d2) = operands(1), operands(5)
c, A, B, D = on_host(M, N, 9), on_gpu(a), on_gpu(b), on_gpu(d)
make = lambda: pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, split_k_slices=2)
update = lambda x: x.update(C=c, output_op=operation.epilogue_type(2.0, 3.0))
assert fail_each(operation, make, update, (D, [a @ b]), (D, [2 * (a @ b) + 3 * c])) >= 1
""",
    "stream-K": """
operation = gemm("stream_k")
(a, b, d), (a2, b2, d2) = operands(1), operands(5)
make = lambda: pycutlass.GemmArguments(operation, (M, N, K), a, b, None, d)
assert fail_each(operation, make, lambda x: x.update(B=b2), (d, [a @ b]), (d, [a @ b2])) >= 2
""",
    "arrays of numpy": """
operation = gemm()
(A, B, D), (A2, B2, D2) = ([list(t) for t in zip(*(operands(s + i) for i in range(3)))] for s in (1, 11))
make = lambda: pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D, Mode.Array, batch=3)
old, new = (D, [a @ b for a, b in zip(A, B)]), (D2, [a @ b for a, b in zip(A2, B2)])
assert fail_each(operation, make, lambda x: x.update(A=A2, B=B2, D=D2), old, new) >= 4
assert fail_each(operation, make, lambda x: x.update(B=B2), old, (D, [a @ b for a, b in zip(A, B2)])) >= 4
""",
    "arrays on the GPU, then of numpy, with sources and other scalars": """
operation = gemm()
(A, B, D), (A2, B2, D2) = ([list(t) for t in zip(*(operands(s + i) for i in range(3)))] for s in (1, 11))
C2 = [on_host(M, N, i) for i in range(3)]
GA, GB, GD = map(on_gpu, (A, B, D))
make = lambda: pycutlass.GemmArguments(operation, (M, N, K), GA, GB, None, GD, Mode.Array, batch=3)
update = lambda x: x.update(A=A2, C=C2, D=D2, output_op=operation.epilogue_type(2.0, 3.0))
new = [2 * (a @ b) + 3 * c for a, b, c in zip(A2, B, C2)]
assert fail_each(operation, make, update, (GD, [a @ b for a, b in zip(A, B)]), (D2, new)) >= 4
GA2 = on_gpu(A2)
assert fail_each(operation, make, lambda x: x.update(A=GA2), (GD, [a @ b for a, b in zip(A, B)]),
                 (GD, [a @ b for a, b in zip(A2, B)])) >= 1
""",
    "a convolution of numpy arrays": _CONVOLUTION
    + """
make = lambda: pycutlass.Conv2dArguments(operation, size, x, w, None, y)
assert fail_each(operation, make, lambda a: a.update(A=x2, B=w2, D=y2), (y, [conv(x, w)]), (y2, [conv(x2, w2)])) >= 3
assert fail_each(operation, make, lambda a: a.update(B=w2), (y, [conv(x, w)]), (y, [conv(x, w2)])) >= 3
""",
    "a convolution on the GPU, with a source and slices": _CONVOLUTION
    + """
X, W, Y, Y2 = map(on_gpu, (x, w, y, y2))
c, bias = y2.copy(), np.arange(6, dtype=np.float32)
c[...] = 5
for source in (c, bias):
    make = lambda: pycutlass.Conv2dArguments(operation, size, X, W, None, Y, split_k_slices=2)
    update = lambda a: a.update(A=x2, C=source, D=Y2, output_op=operation.epilogue_type(2.0, 3.0))
    assert fail_each(operation, make, update, (Y, [conv(x, w)]), (Y2, [2 * conv(x2, w) + 3 * source])) >= 3
""",
    "partial sums of a convolution": _CONVOLUTION
    + """
mode = pycutlass.cutlass.conv.SplitKMode.Parallel
made = []
def make():
    made[:] = [pycutlass.Conv2dArguments(operation, size, x, w, split_k_mode=mode, split_k_slices=2)]
    return made[0]
class Sums(Array):  # the partial sums, of which the stand-in fills the first plane
    shape = (2, 5, 4, 6)
    def __init__(self):
        pass
    __del__ = __init__
    def now(self):
        return memory_at(made[0].ptr_D, self.shape).copy()
    def set(self, values):
        memory_at(made[0].ptr_D, self.shape)[...] = values
update = lambda a: a.update(A=x2, B=w2)
assert fail_each(operation, make, update, (Sums(), [conv(x, w)]), (Sums(), [conv(x2, w2)])) >= 3
""",
    "a reduction": """
operation = gemm()
(a, b, d), c = operands(1), on_host(M, N, 3)
sums = pycutlass.GemmArguments(operation, (M, N, K), a, b, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=2)
operation.run(sums)
ends, D, d2 = reduction(operation, M, N), on_gpu(d), d.copy()
make = lambda: pycutlass.ReductionArguments(ends, [M, N], 2, sums.ptr_D, D)
update = lambda x: x.update(D=d2, output_op=ends.epilogue_type(2.0, 0.0))
assert fail_each(ends, make, update, (D, [a @ b]), (d2, [2 * (a @ b)])) >= 1
""",
    "groups of numpy arrays": """
sizes, other = [(8, 12, 16), (4, 8, 12)], [(4, 8, 12), (8, 4, 20), (12, 8, 4), (16, 16, 16)]
for mode in ("device", "host"):
    operation = group(mode)
    one, two = ([operands(i, size) for i, size in enumerate(sizes)] for sizes in (sizes, other))
    (A, B, D), (A2, B2, D2) = ([list(t) for t in zip(*each)] for each in (one, two))
    make = lambda: pycutlass.GemmGroupedArguments(operation, sizes, A, B, None, D)
    def update(x):
        x.update(problem_sizes=other, A=A2, B=B2, D=D2)
    old, new = (D, [a @ b for a, b in zip(A, B)]), (D2, [a @ b for a, b in zip(A2, B2)])
    assert fail_each(operation, make, update, old, new) >= 5
""",
    "groups on the device that outgrow their table": """
sizes, other = [(8, 12, 16), (4, 8, 12)], [(4, 8, 12)] * 40
operation = group("device")
one, two = ([operands(i, size) for i, size in enumerate(sizes)] for sizes in (sizes, other))
(A, B, D), (A2, B2, D2) = ([list(t) for t in zip(*each)] for each in (one, two))
old, new = [a @ b for a, b in zip(A, B)], [a @ b for a, b in zip(A2, B2)]
A, B, D, A2, B2, D2 = map(on_gpu, (A, B, D, A2, B2, D2))
make = lambda: pycutlass.GemmGroupedArguments(operation, sizes, A, B, None, D)
def update(x):
    x.update(problem_sizes=other, A=A2, B=B2, D=D2)
assert fail_each(operation, make, update, (D, old), (D2, new)) >= 1
""",
}


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_failed_update_changes_nothing(family: str) -> None:
    fake_gpu.run(_HARNESS + _FAMILIES[family], gpus=1)


def test_a_captured_graph_sees_numpy_operands_that_are_updated() -> None:
    """As it did when it was captured: the copies stay where they are."""
    fake_gpu.run(
        _HARNESS
        + """
operation, stream = gemm(), Stream(0)
(a, b, d), (a2, b2, _) = operands(1), operands(5)
D = on_gpu(d)
arguments = pycutlass.GemmArguments(operation, (M, N, K), a, b, None, D)
with captured(stream) as graph:
    operation.run(arguments, stream)
    try:
        with busy(0, stream):
            pycutlass.GemmArguments(operation, (M, N, K), a, b, None, D)
    except pycutlass.errors.ArgumentError as error:
        assert "captured" in str(error)
    else:
        raise AssertionError("host operands were copied into a graph")
arguments.update(A=a2, B=b2)
driver.fake_run()
graph.replay()
driver.fake_run()
assert (D.now() == a2 @ b2).all()
""",
        gpus=1,
    )


def test_a_tensor_that_raises_when_it_is_asked_changes_nothing() -> None:
    fake_gpu.run(
        _HARNESS
        + """
operation = gemm()
(a, b, d), (a2, b2, _) = operands(1), operands(5)
A, B, D, A2, B2 = map(on_gpu, (a, b, d, a2, b2))
arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)

data, B2.data = B2.data, None
try:
    arguments.update(A=A2, B=B2)
except pycutlass.errors.ArgumentTypeError:
    pass
else:
    raise AssertionError("a tensor without memory was taken")
launch(operation, arguments, D, [a @ b])
B2.data = data
arguments.update(A=A2, B=B2)
launch(operation, arguments, D, [a2 @ b2])
""",
        gpus=1,
    )


@pytest.mark.parametrize("remedy", ["D.setflags(write=True)", "D = np.empty_like(D); arguments.update(D=D)"])
def test_a_result_is_not_lost_where_its_array_is_made_read_only_between_run_and_sync(remedy):
    """What the message says is done, and the result comes."""
    fake_gpu.run(f"""
a, b, nothing = on_host(8, 16, 1), on_host(16, 12, 2, "F"), np.full((8, 12), np.nan, np.float32)
operation = gemm()
multiply = group("device")
D = nothing.copy()
arguments = pycutlass.GemmArguments(operation, (8, 12, 16), a, b, None, D)
operation.run(arguments)
D.flags.writeable = False
for _ in range(2):
    said = refused(arguments.sync, "operand D was made read-only", "setflags(write=True)", "or pass another array to")
    assert said == "ArgumentError" and np.isnan(D).all()
{remedy}
arguments.sync()
assert (D == a @ b).all()
D = [nothing.copy() for _ in range(2)]
arguments = pycutlass.GemmGroupedArguments(multiply, [(8, 12, 16)] * 2, [a, a], [b, b], None, D)
multiply.run(arguments)
D[1].flags.writeable = False
refused(arguments.sync, "operand D[1] was made read-only")
D[1].flags.writeable = True
arguments.sync()
assert all((each == a @ b).all() for each in D)
""")
