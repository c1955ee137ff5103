"""Convolutions whose problem an operation has met: C++ makes their arguments, as the checks in Python would."""

from __future__ import annotations

import fake_gpu
from prepared_arguments import TORCH

_LAUNCHES = f"""{TORCH}
operation = fprop()
size = pycutlass.cutlass.conv.Conv2dProblemSize(N=2, H=5, W=4, C=3, K=6, R=3, S=3, pad_h=1, pad_w=1)

def there(values):
    # a tensor of torch in memory of the stand-in, of (N, C, H, W) in channels_last
    array = Array(0, values)
    tensor = torch.from_numpy(memory_at(array.data.ptr, array.shape))
    if tensor.dim() == 4:
        tensor = tensor.permute(0, 3, 1, 2)
    tensor.array = array
    return tensor

def whole(*shape):
    return there(np.random.randint(-4, 5, shape).astype(np.float32))

def drawn():
    return whole(2, 5, 4, 3), whole(6, 3, 3, 3), None, there(np.zeros((2, 5, 4, 6), np.float32))

def here(**how):
    given = drawn()
    return given, made(operation, size, *given, **how)

def check(given, arguments, stream):
    operation.run(arguments, stream)
    arguments.sync()
    A, B, C, D = given
    wanted = torch.nn.functional.conv2d(A, B, padding=1)
    if C is not None:
        wanted = wanted + (C if C.dim() == 4 else C[:, None, None])
    assert torch.equal(D, wanted)

def problems():
    return [len(each.problems) for each in operation._prepared]

assert operation._prepared == ()
stream = Stream(0)
first_given, first = here()
assert not is_ordinary(first) and problems() == [1]
check(first_given, first, stream)
"""


def test_a_problem_that_was_met_is_launched_and_updated() -> None:
    program = """
given, arguments = here()
assert is_ordinary(arguments) and problems() == [1]
check(given, arguments, stream)
assert arguments.launched and arguments.ptr_A == given[0].data_ptr() and arguments.ldb == 3
assert arguments.problem_size == size and arguments.problem_size is not arguments.problem_size

A, B, _, D = given = drawn()
arguments.update(A=A, B=B, D=D)
check(given, arguments, stream)

C = whole(2, 5, 4, 6)
arguments.update(C=C, output_op=operation.epilogue_type(1.0, 1.0))
check((A, B, C, D), arguments, stream)
assert arguments.bias is False
arguments.update(C=whole(6))
assert arguments.bias is True
try:
    arguments.update(A=torch.zeros(2, 3, 5, 5))
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:36])

sums = operation.epilogue_type(1.0, 1.0)
for C in whole(6), whole(2, 5, 4, 6):
    A, B, _, D = drawn()
    arguments = made(operation, size, A, B, C, D, sums)
    assert is_ordinary(arguments) and arguments.bias is (C.dim() == 1)
    check((A, B, C, D), arguments, stream)

given, arguments = here()
given[1].data = torch.zeros(3, 6, 3, 3).permute(1, 0, 2, 3)
try:
    operation.run(arguments, stream)
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:36])
"""
    said = fake_gpu.run(_LAUNCHES + program).splitlines()
    assert said == ["operand A must have shape (2, 5, 4, ", "the memory of operand B is not what "]


def test_a_problem_is_the_same_however_its_slices_are_given() -> None:
    """Serial slices take turns at semaphores: each of the arguments has a workspace of its own."""
    program = """
SplitK = pycutlass.cutlass.conv.SplitKMode
given, arguments = here(split_k_slices=2)
assert not is_ordinary(arguments) and problems() == [2]
check(given, arguments, stream)
given = drawn()
for problem, how in ((size, {"split_k_slices": 2}), (size.reset_split_k_slices(2), {}),
                     (size.reset_split_k_slices(2), {"split_k_slices": 2})):
    arguments = made(operation, problem, *given, **how)
    assert is_ordinary(arguments) and arguments.split_k_slices == 2
    assert arguments.problem_size.split_k_slices == 2 and "workspace" in arguments._execution._buffers
    check(given, arguments, stream)
for how in ({"split_k_slices": 3}, {"split_k_mode": SplitK.NoSplit}, {"split_k_mode": SplitK.Parallel}):
    given = drawn() if how.get("split_k_mode") is not SplitK.Parallel else (*drawn()[:2], None, None)
    assert not is_ordinary(made(operation, size, *given, **how)), how
assert problems() == [4]  # partial sums are looked at each time
try:
    made(operation, size.reset_split_k_slices(2), *drawn(), split_k_slices=3)
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:31])
"""
    assert fake_gpu.run(_LAUNCHES + program) == "split_k_slices=3 disagrees with\n"


def test_a_problem_that_changes_is_another() -> None:
    program = """
given, arguments = here()
size.mode = pycutlass.cutlass.conv.Mode.convolution
assert not is_ordinary(made(operation, size, *given)) and problems() == [2]
assert arguments.problem_size != size
size.mode, size.stride_h = pycutlass.cutlass.conv.Mode.cross_correlation, 2
try:
    made(operation, size, *given)
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:28])
size.P, size.stride_h = 5, 1
assert is_ordinary(made(operation, size, *given))
assert problems() == [2]
"""
    assert fake_gpu.run(_LAUNCHES + program) == "cutlass_sm80_simt_sfprop_opt\n"


def test_the_problems_that_are_known_are_few() -> None:
    """The one that was not asked for the longest time goes."""
    program = """
import gc, weakref
def of(images):
    p = pycutlass.cutlass.conv.Conv2dProblemSize(N=images, H=2, W=2, C=1, K=1, R=1, S=1)
    return made(operation, p, whole(images, 2, 2, 1), whole(1, 1, 1, 1), None, whole(images, 2, 2, 1))

for images in range(1, 100):
    assert not is_ordinary(of(images))
    assert is_ordinary(of(1))
assert problems() == [64]
assert is_ordinary(of(99)) and is_ordinary(of(98)) and is_ordinary(of(1))
assert not is_ordinary(of(2))
"""
    fake_gpu.run(_LAUNCHES + program)


def test_threads_share_what_is_prepared() -> None:
    """Two threads make calls of one prepared kernel and launch them, each on its own stream, at the same time."""
    program = """
operation._prepared = ()
ordinary = []
sys.setswitchinterval(1e-5)

def work(stream):
    for _ in range(200):
        given, arguments = here()
        ordinary.append(is_ordinary(arguments))
        check(given, arguments, stream)
        given = drawn()
        arguments.update(A=given[0], B=given[1], D=given[3])
        check(given, arguments, stream)

in_threads(work, Stream(0), Stream(0))
assert sum(ordinary) >= 395 and problems() == [1], ordinary
"""
    fake_gpu.run(_LAUNCHES + program)


def test_another_compilation_has_another_kernel() -> None:
    program = """
before = operation.artifacts["sm_80"]
operation.artifacts["sm_80"] = dataclasses.replace(before, key="another" + before.key)
given, arguments = here()
assert not is_ordinary(arguments) and problems() == [1]
check(given, arguments, stream)
given, arguments = here()
assert is_ordinary(arguments)
check(given, arguments, stream)
operation.artifacts.clear()
try:
    here()
except pycutlass.errors.NotCompiledError:
    print("not compiled")
"""
    assert fake_gpu.run(_LAUNCHES + program) == "not compiled\n"


def test_nothing_that_is_known_keeps_tensors_or_kernels() -> None:
    program = """
import gc, weakref
from convolutions import OPERATIONS
given, arguments = here()
tensors = [weakref.ref(tensor) for tensor in (*given, *first_given) if tensor is not None]
loaded = weakref.ref(kernel.load(operation, 0))
del given, arguments, first_given, first
gc.collect()
assert soon(lambda: all(tensor() is None for tensor in tensors))  # those of a launch go when it has ended
assert loaded() is not None
OPERATIONS.clear()
del operation
gc.collect()
assert loaded() is None
"""
    fake_gpu.run(_LAUNCHES + program)


def test_what_is_refused_leaves_arguments_without_anything() -> None:
    program = """
for change in ({"D": None}, {"A": torch.zeros(2, 3, 5, 5)}, {"D": "A"}, {"C": whole(6)}):
    given = dict(zip("ABCD", drawn()))
    given |= {name: given[value] if isinstance(value, str) else value for name, value in change.items()}
    try:
        made(operation, size, *given.values())
    except pycutlass.errors.PyCutlassError as error:
        print(str(error)[:28])
arguments = here()[1]
before = vars(arguments).copy()
try:
    arguments.__init__(operation, size, *drawn())
except AttributeError as error:
    print(str(error)[:37])
assert vars(arguments) == before
"""
    assert fake_gpu.run(_LAUNCHES + program).splitlines() == [
        "operand D, the output, is mi",
        "operand A must have shape (2",
        "operand D must have shape (2",
        "C is given without output_op",
        "operation of Conv2dArguments cannot b",
    ]


def test_arrays_of_equal_extents_are_looked_at_also_where_tensors_of_torch_are_not() -> None:
    """C++ would take those of cupy whose second axis is adjacent for (N, C, H, W)."""
    program = """
size = pycutlass.cutlass.conv.Conv2dProblemSize(N=2, H=3, W=3, C=3, K=5, R=1, S=1)

def of_cupy(values, lies_otherwise=False):
    array = Array(0, np.ascontiguousarray(values.transpose(0, 2, 3, 1)) if lies_otherwise else values)
    if lies_otherwise:
        array.shape, array.strides = ([each[axis] for axis in (0, 3, 1, 2)] for each in (array.shape, array.strides))
        array.shape, array.strides = tuple(array.shape), tuple(array.strides)
    return array

values = [np.random.randint(-4, 5, shape).astype(np.float32) for shape in ((2, 3, 3, 3), (5, 1, 1, 3))]
given = lambda make: (*map(make, values), None, make(np.zeros((2, 3, 3, 5), np.float32)))
met = problems()[0] + 1
assert not is_ordinary(made(operation, size, *given(there))) and problems() == [met]
assert is_ordinary(made(operation, size, *given(there)))
A, B, _, D = given(of_cupy)
arguments = made(operation, size, A, B, None, D)
assert not is_ordinary(arguments)
operation.run(arguments)
arguments.sync()
assert np.array_equal(D.now(), np.einsum("nhwc,kc->nhwk", values[0], values[1][:, 0, 0]))
other = of_cupy(values[0], True)
for refused in (lambda: made(operation, size, other, B, None, D), lambda: arguments.update(A=other)):
    try:
        refused()
    except pycutlass.errors.ArgumentError as error:
        print(str(error)[:42])
"""
    assert fake_gpu.run(_LAUNCHES + program).splitlines() == ["operand A must be packed pixel by pixel, w"] * 2
