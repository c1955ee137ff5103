"""Groups of ordinary tensors, whose arguments C++ makes: they are launched, updated and watched like all others."""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import ODD, TORCH

_GROUPS = f"""{TORCH}
import threading
from pycutlass.arguments.grouped import GemmGroupedArguments
starts, start = [], GemmGroupedArguments._start_ordinary

def counted(self, *given):
    starts.append(start(self, *given))
    return starts[-1]

GemmGroupedArguments._start_ordinary = counted
memory = []

def there(values):
    # a tensor of torch in memory of the stand-in
    memory.append(Array(0, values))
    return torch.from_numpy(memory_at(memory[-1].data.ptr, values.shape))

def drawn(*shape):
    return there(np.random.randint(-4, 5, shape).astype(np.float32))

def operands(sizes):
    A, B = [drawn(m, k) for m, n, k in sizes], [drawn(n, k).t() for m, n, k in sizes]
    return A, B, [drawn(m, n) for m, n, k in sizes], [there(np.zeros((m, n), np.float32)) for m, n, k in sizes]

SIZES = [(5, 6, 7), (130, 3, 9), (1, 140, 4)]
stream = Stream(0)

def check(operation, arguments, A, B, C, D):
    for each in D:
        each.fill_(-1)
    operation.run(arguments, stream)
    arguments.sync()
    for a, b, c, d in zip(A, B, C or D, D):
        assert torch.equal(d, a @ b + (0 if C is None else c)), (d, a @ b)
"""


@pytest.mark.parametrize("mode", ["device", "host"])
def test_they_are_launched_updated_and_resized(mode: str) -> None:
    program = f"operation = group({mode!r})"
    program += """
assert operation._prepared == ()
A, B, C, D = operands(SIZES)
arguments = GemmGroupedArguments(operation, SIZES, A, B, None, D)
assert starts == [True] and len(operation._prepared) == 1 and not arguments.launched
check(operation, arguments, A, B, None, D)
prepared = operation._prepared

sums = operation.epilogue_type(1.0, 1.0)
with_c = GemmGroupedArguments(operation, SIZES, A, B, C, D, output_op=sums)
assert starts == [True, True] and operation._prepared is prepared
check(operation, with_c, A, B, C, D)

A, B, C, D = operands(SIZES)
assert with_c._try_exchange(tuple(A), tuple(B), tuple(C), tuple(D))
with_c.update(A=A, B=B, C=C, D=D)
check(operation, with_c, A, B, C, D)

fewer = [(9, 2, 3), (4, 5, 6)]
A, B, C, D = operands(fewer)
with_c.update(problem_sizes=fewer, A=A, B=B, C=C, D=D)
check(operation, with_c, A, B, C, D)
more = [(9, 2, 3)] * 70
A, B, C, D = operands(more)
with_c.update(problem_sizes=more, A=A, B=B, C=C, D=D)
check(operation, with_c, A, B, C, D)
with_c.update(output_op=operation.epilogue_type(1.0, 0.0))
check(operation, with_c, A, B, None, D)

A[3].data = torch.zeros(9, 3)
refused(lambda: operation.run(with_c, stream), "operand A[3]", "is not what these arguments were made with")
try:
    with_c.update(D=[torch.zeros(9, 2).requires_grad_() for _ in more])
except pycutlass.errors.ArgumentError as error:
    assert "operand D[0] requires grad" in str(error)
else:
    raise AssertionError
"""
    fake_gpu.run(_GROUPS + program)


@pytest.mark.parametrize("what", ["it.data = there(it.numpy() + 1)", "it.t_()"])
@pytest.mark.parametrize("family", ["gemm", "group"])
def test_what_the_allocator_moves_is_refused(family: str, what: str) -> None:
    """The table of a group, and the workspace of a product, are taken behind the look at the tensors."""
    program = f"""
class Allocator:
    then = None

    def allocate(self, size, stream):
        if self.then:
            now, self.then = self.then, None
            now()
        return there(np.zeros(size, np.uint8)).data_ptr()

    def deallocate(self, pointer, size, stream):
        pass

operation = group("device") if {family == "group"} else gemm("stream_k")
M = N = 64
K = 4096
A, B, D = drawn(M, K), drawn(N, K).t(), there(np.zeros((M, N), np.float32))

def make():
    if {family == "group"}:
        return GemmGroupedArguments(operation, [(M, N, K)], [A], [B], None, [D])
    return pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)

def move():
    it = B
    {what}

allocator = Allocator()
with pycutlass.allocating_with(allocator):
    allocator.then = move
    refused(make, "operand B", "made with")
"""
    fake_gpu.run(_GROUPS + program)


def test_empty_problems_may_come_first() -> None:
    """A tensor without elements shows too little of its kind, until another one of the group has."""
    program = """
for mode in ("device", "host"):
    _core.forget_tensors()
    operation, sizes = group(mode), [(0, 6, 7), (4, 0, 2), (5, 6, 0), (5, 6, 7)]
    A, B, C, D = operands(sizes)
    arguments = GemmGroupedArguments(operation, sizes, A, B, None, D)
    assert starts.pop() is True
    assert arguments.ptr_A == [each.data_ptr() for each in A] and arguments.ptr_D[2:] == [d.data_ptr() for d in D[2:]]
    assert arguments.ptr_A[0] == arguments.ptr_A[2] == 0 and arguments.ldd == [6, 0, 6, 6]
"""
    fake_gpu.run(_GROUPS + program)


def test_threads_share_what_is_prepared() -> None:
    program = """
operation, failed = group("device"), []
A, B, C, D = operands(SIZES)
GemmGroupedArguments(operation, SIZES, A, B, None, D)
(prepared,) = operation._prepared

def work():
    try:
        mine = [operands(SIZES) for _ in range(4)]
        for _ in range(50):
            made = [GemmGroupedArguments(operation, SIZES, a, b, None, d) for a, b, _, d in mine]
            for arguments, (a, b, _, d) in zip(made, mine):
                assert arguments.ptr_A == [each.data_ptr() for each in a]
                assert arguments.ptr_D == [each.data_ptr() for each in d]
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert not failed, failed
assert operation._prepared == (prepared,) and all(starts) and len(starts) == 801
"""
    fake_gpu.run(_GROUPS + program)


def test_a_gradient_is_said_and_the_python_way_explains() -> None:
    program = """
operation = group("host")
A, B, C, D = operands(SIZES)
B[1].requires_grad_()
GemmGroupedArguments(operation, SIZES, A, B, None, D)
assert starts == [True] and len(said) == 1 and "operand B[1] requires a gradient" in said[0], said
refused(lambda: GemmGroupedArguments(operation, SIZES, A, B, None, [*D[:2], D[1][:1]]), "operand D[2]")
refused(lambda: GemmGroupedArguments(operation, SIZES, A, B, None, [*D[:2], A[0]]), "operand D[2]")
refused(lambda: GemmGroupedArguments(operation, SIZES, A, B, C, D), "beta is 0")
refused(lambda: GemmGroupedArguments(operation, SIZES, A, B, None, D[:2]), "operand D has 2 tensors")
D[0].requires_grad_()
refused(lambda: GemmGroupedArguments(operation, SIZES, A, B, None, D), "operand D[0] requires grad")
assert starts == [True] + [False] * 5
other = group("device")
other.artifacts.clear()
assert not refused(lambda: GemmGroupedArguments(other, SIZES, A, B, None, D[1:]), "D") == "NotCompiledError"
D[0].requires_grad_(False)
assert refused(lambda: GemmGroupedArguments(other, SIZES, A, B, None, D), "not been compiled") == "NotCompiledError"
"""
    fake_gpu.run(_GROUPS + program)


@pytest.mark.parametrize("problems", [2, 90])
@pytest.mark.parametrize("mode", ["device", "host"])
def test_where_the_driver_fails_no_sizes_have_changed(mode: str, problems: int) -> None:
    """Also where the group has outgrown its table, which is seen when the launch of the new sizes is made."""
    program = f"""
from fake_gpu.inside import log as calls

def state():
    call = arguments._execution.call
    names = ["ptr_A", "ptr_B", "ptr_D", "lda", "ldb", "ldd"]
    places = [getattr(arguments, name) for name in names]
    params = memory_at(call.params_address, (64,), np.uint8).tolist()
    return places, call.image, call.record_bytes, call.grid, call.device_bytes, params

operation, other, number = group({mode!r}), [(9, 2, 3), (4, 5, 6)] * {problems // 2}, 0
A, B, _, D = operands(SIZES)
a, b, _, d = map(tuple, operands(other))
arguments = GemmGroupedArguments(operation, SIZES, A, B, None, D)
failures = 0
while True:
    before = state()
    use(None)
    calls()
    driver.fake_fail_at(number, 700)
    try:
        arguments._execution.resize(np.array(other, np.int32), a, b, None, d)
        failed = False
    except pycutlass.errors.DriverError:
        failed = True
    driver.fake_fail_at(-1, 0)
    made = len(calls())
    use(None)
    if failed:
        failures += 1
        assert state() == before, number
    if made <= number:
        break
    if not failed:
        arguments.update(problem_sizes=SIZES, A=A, B=B, D=D)
    check(operation, arguments, A, B, None, D)
    number += 1
assert failures > 1
"""
    fake_gpu.run(_GROUPS + program)


def test_what_says_no_number_is_explained_in_python() -> None:
    program = f"""{ODD}
operation = group("device")
A, B, _, D = operands(SIZES)
for said in (-16, 16.0, "here"):
    for attribute in ("ptr", "device_id"):
        odd = Cupy(D[0])
        setattr(odd.data, attribute, said)
        for each in ([odd, *map(Cupy, D[1:])], [*map(Cupy, D[:2]), odd]):
            starts.clear()
            try:
                GemmGroupedArguments(operation, SIZES, [*map(Cupy, A)], [*map(Cupy, B)], None, each)
            except Exception as error:
                assert "cast" not in str(error), error
            assert starts == [False], starts
ordinary = GemmGroupedArguments(operation, SIZES, [*map(Cupy, A)], [*map(Cupy, B)], None, [*map(Cupy, D)])
for said in (-16, 16.0, "here"):
    odd = Cupy(A[0])
    odd.data.ptr = said
    assert not ordinary._try_exchange((odd, *map(Cupy, A[1:])), None, None, None)
"""
    fake_gpu.run(_GROUPS + program)
