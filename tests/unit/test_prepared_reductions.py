"""Reductions of partial sums of this process: C++ makes their arguments, as the checks in Python would."""

from __future__ import annotations

import fake_gpu
from prepared_arguments import ODD, TORCH

_REDUCTIONS = f"""{TORCH}
Parallel = pycutlass.cutlass.gemm.Mode.GemmSplitKParallel
starts, start = [], pycutlass.ReductionArguments._start_ordinary

def counted(self, *given):
    starts.append(start(self, *given))
    return starts[-1]

pycutlass.ReductionArguments._start_ordinary = counted

def at_once():
    # whether C++ made the last arguments
    return starts[-1]

def there(values):
    # a tensor of torch in memory of the stand-in
    array = Array(0, values)
    tensor = torch.from_numpy(memory_at(array.data.ptr, array.shape))
    tensor.array = array
    return tensor

def sums_of(operation, m, n, slices, k=8):
    given = (there(np.random.randint(-4, 5, shape).astype(np.float32)) for shape in ((m, k), (n, k)))
    A, B = given
    view = B.t()
    view.array = B.array
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, view, gemm_mode=Parallel, split_k_slices=slices)
    return A, view, arguments
"""

_LAUNCHES = f"""{_REDUCTIONS}
operation, M, N = gemm(), 5, 6
ends, stream = reduction(operation, M, N), Stream(0)

def check(sums, D, arguments, stream):
    A, B, partial = sums
    operation.run(partial, stream)
    ends.run(arguments, stream)
    arguments.sync()
    assert torch.equal(D, A @ B)

def here(slices=2):
    sums, D = sums_of(operation, M, N, slices), there(np.zeros((M, N), np.float32))
    arguments = made(ends, [M, N], slices, sums[2].ptr_D, D)
    return sums, D, arguments
"""


def test_they_are_launched_and_updated() -> None:
    program = """
sums, D, arguments = here()
assert at_once() and arguments.problem_size == (M, N) and arguments.partitions == 2 and arguments.bias is None
made(ends, D.shape, 2, sums[2].ptr_D, D)  # a torch.Size
assert at_once()
try:
    ends.run(arguments)
except pycutlass.errors.ArgumentError as error:
    print(str(error)[:44])
check(sums, D, arguments, stream)
assert arguments.launched and arguments.ptr_A == sums[2].ptr_D

other = there(np.zeros((M, N), np.float32))
arguments.update(D=other)
check(sums, other, arguments, stream)
source = there(np.ones((M, N), np.float32))
arguments.update(C=source, output_op=ends.epilogue_type(1.0, 0.0))
check(sums, other, arguments, stream)
more = sums_of(operation, M, N, 2)
arguments.update(A=more[2].ptr_D)
check(more, other, arguments, stream)
for size in ((M, N), pycutlass.cutlass.MatrixCoord(M, N), pycutlass.ReductionProblemSize(M, N, 2)):
    how = () if isinstance(size, pycutlass.ReductionProblemSize) else (2,)
    ordinary = pycutlass.ReductionArguments(ends, size, *how, workspace=more[2].ptr_D, destination=other)
    check(more, other, ordinary, stream)
    print(at_once())
"""
    said = fake_gpu.run(_LAUNCHES + program).splitlines()
    assert said == ["the partial sums have not been computed yet:", "True", "True", "True"]


def test_they_keep_the_sums() -> None:
    program = """
import gc
sums, D, arguments = here()
address = sums[2].ptr_D
operation.run(sums[2])
sums[2].sync()
wanted = sums[0] @ sums[1]
del sums
gc.collect()
assert split_k.planes_at(address) is not None
ends.run(arguments)
arguments.sync()
assert torch.equal(D, wanted)
del arguments
gc.collect()
assert soon(lambda: split_k.planes_at(address) is None)
"""
    fake_gpu.run(_LAUNCHES + program)


def test_threads_share_what_is_prepared() -> None:
    program = """
import threading
here()  # while one thread searches what tensors of this torch are like, others do without
ends._prepared = ()
streams, errors = [Stream(0), Stream(0)], []
starts.clear()
sys.setswitchinterval(1e-5)

def work(stream):
    try:
        for _ in range(150):
            sums, D, arguments = here()
            check(sums, D, arguments, stream)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
assert sum(starts) == 300, "one of them took a closer look"
(prepared,) = ends._prepared
here()
assert ends._prepared == (prepared,)
"""
    fake_gpu.run(_LAUNCHES + program)


def test_another_compilation_has_another_kernel() -> None:
    program = """
here()
(first,) = ends._prepared
before = ends.artifacts["sm_80"]
ends.artifacts["sm_80"] = dataclasses.replace(before, key="another" + before.key)
sums, D, arguments = here()
assert at_once() and len(ends._prepared) == 1 and ends._prepared != (first,)
check(sums, D, arguments, stream)
ends.artifacts.clear()
try:
    here()
except pycutlass.errors.NotCompiledError:
    print("not compiled")
"""
    assert fake_gpu.run(_LAUNCHES + program) == "not compiled\n"


_PROPERTY = """
from descriptions import ampere
draw = random.Random(SEED)
gemms = [_load(ampere(kind, (ROW, COLUMN, C)), "gemm") for kind in ("f32_simt", "f32") for C in (ROW, COLUMN)]
for each in gemms:
    _load(each.partial, "gemm")

def ending(operation):
    count = operation.C.alignment
    shape = pycutlass.cutlass.MatrixCoord(4, 32 * count)
    functor = operation.epilogue_functor
    types = operation.C, pycutlass.cutlass.float32
    return _load(pycutlass.ReductionOperation(shape, *types, epilogue_functor=functor, count=count), "reduction")

pairs = [(operation, ending(operation)) for operation in gemms]

def tensor(described, rows, columns, memory=None, offset=0, slack=0):
    line, lines = (columns, rows) if described.is_row_major else (rows, columns)
    ld = line + slack
    memory = torch.zeros(lines * ld + offset + 64) if memory is None else memory
    return memory.as_strided((rows, columns), (ld, 1) if described.is_row_major else (1, ld), offset)

SIZES = {
    "tuple": tuple,
    "of torch": torch.Size,
    "coord": lambda size: pycutlass.cutlass.MatrixCoord(*size),
    "numpy": np.array,
    "three": lambda size: (*size, 1),
    "floats": lambda size: tuple(map(float, size)),
    "truths": lambda size: (True, size[1]),
    "turned": lambda size: size[::-1],
    "larger": lambda size: (size[0] + 1, size[1]),
    "none": lambda size: (0, size[1]),
    "text": lambda size: "ab",
}

def case():
    operation, ends = draw.choice(pairs)
    step, slices = operation.C.alignment, draw.choice([1, 2, 2, 3])
    m, n = step * draw.randint(1, 6), step * draw.randint(1, 6)
    sums = sums_of(operation, m, n, slices, 16)[2]
    D, C = (tensor(ends.C, m, n, slack=draw.choice([0, 0, step, 3 if step == 1 else 4])) for _ in "DC")
    odd = draw.choice([None, None, "operand", "operand", "size", "keyword", "overlap"])
    how, size, workspace = {}, [m, n], sums.ptr_D
    scalars = draw.choice([None, None, (1.0, 0.0), (0.5, 2.0), (2.0,)])
    if scalars is not None:
        how["output_op"] = ends.epilogue_type(*scalars)
    if scalars is None or draw.random() < 0.2:
        C = None
    elif draw.random() < 0.3:
        C = torch.zeros(n if ends.C.is_row_major else m)
    elif draw.random() < 0.3:
        D = C
    if odd == "operand":
        odd = draw.choice(sorted(ODD))
        if C is None or C.dim() == 1 or draw.random() < 0.6:
            D = ODD[odd](D)
        else:
            C = ODD[odd](C)
    elif odd == "size":
        odd = "size: " + draw.choice(sorted(SIZES))
        size = SIZES[odd[6:]](size)
    elif odd == "keyword":
        further = draw.choice([
            {"bias": True}, {"bias": False}, {"bias": np.True_}, {"bias": 1}, {"surprise": 1}, {"output_op": 1.0},
            {"partitions": 4}, {"partitions": 0}, {"partitions": True}, {"partitions": "2"}, {"workspace": None},
            {"workspace": np.int64(workspace)}, {"workspace": workspace + 4}, {"workspace": 4096}, {"workspace": D},
            {"workspace": float(workspace)},
        ])
        odd, how = str(sorted(further)) + ("" if "workspace" in further else str(further)), how | further
    elif odd == "overlap":
        memory = torch.zeros(10_000)
        D = tensor(ends.C, m, n, memory, 4 * draw.randint(0, 9), 4 * draw.randint(0, 3))
        C = C if C is None else tensor(ends.C, m, n, memory, 4 * draw.randint(0, 9), 4 * draw.randint(0, 3))
    if draw.random() < (0.8 if odd is not None and "cupy" in odd else 0.3):
        C, D = as_cupy(C), as_cupy(D)
        odd = odd if odd is None or odd.startswith("cupy") else f"{odd}, cupy"
        odd = odd or "arrays of cupy"
    named = {"partitions": slices, "workspace": workspace, "destination": D, "source": C} | how
    return odd, ends, size, named, sums

def state(arguments):
    execution = arguments._execution
    if not isinstance(execution, device.DeviceLaunch):
        return type(execution).__name__
    pointers = [getattr(arguments, f"{kind}{name}") for kind, name in zip(["ptr_"] * 3 + ["ld"] * 3, "ACDacd")]
    scalars = arguments.output_op
    return (
        execution.call.record_bytes, list(execution._buffers.items()), execution.call.operands, pointers,
        repr(arguments), (arguments.problem_size, arguments.partitions, arguments.bias, arguments.launch_config),
        (scalars.values, scalars.compute, scalars.names), scalars.beta_is_given,
        [(name, id(each)) for name, each in arguments._given.items()], execution.ordinal, execution.launched,
        execution._libraries.keys(), arguments._planes, arguments._launched, arguments._partials,
    )

counts = {}
for number in range(COUNT):
    odd, ends, size, named, sums = case()
    if draw.random() < 0.3:
        ends._prepared = ()
        if draw.random() < 0.5:
            _core.forget_tensors()
    if draw.random() < 0.5:  # what looks may change how others find it: a lazy copy gets memory of its own
        other, expected = outcome(looked_at, ends, (size,), named)
        starts.clear()
        arguments, got = outcome(made, ends, (size,), named)
        ordinary = starts == [True]
    else:
        starts.clear()
        arguments, got = outcome(made, ends, (size,), named)
        ordinary = starts == [True]
        other, expected = outcome(looked_at, ends, (size,), named)
    taken, all_of_them, right = counts.get(odd, (0, 0, 0))
    if other is not None and not ordinary and set(getattr(other._execution, "_buffers", ())) - {"sums A"}:
        continue  # each has its own copies
    different = [pair for pair in zip(expected, got) if pair[0] != pair[1]]
    assert not different, (odd, ends, size, named, different)
    counts[odd] = taken + ordinary, all_of_them + 1, right + (arguments is not None)
    launched = arguments is not None and isinstance(arguments._execution, device.DeviceLaunch)
    if launched and not odd_memory(odd):
        tensors = [named["source"], named["destination"]]
        tensors = [t if isinstance(t, (torch.Tensor, Cupy)) else None for t in tensors]
        fresh = [None, None, *(None if t is None or draw.random() < 0.5 else copied(t) for t in tensors)]
        assert arguments._try_exchange(*fresh) == other._try_exchange(*fresh)
        assert arguments._execution.call.record_bytes == other._execution.call.record_bytes
for odd, (taken, all_of_them, right) in counts.items():
    print(odd, taken, all_of_them, right, sep="|")
"""


def test_what_is_made_at_once_is_what_the_closer_look_makes() -> None:
    program = f"{_REDUCTIONS}\n{ODD}\nSEED, COUNT = 1, 2000\n{_PROPERTY}"
    rows = [line.split("|") for line in fake_gpu.run(program, seconds=300).splitlines()]
    seen = {odd: (int(taken), int(of), int(right)) for odd, taken, of, right in rows}
    for usual in ("None", "arrays of cupy"):
        taken, all_of_them, right = seen[usual]
        assert taken > 0.9 * right > 0.2 * all_of_them, usual
    assert len(seen) > 80
    never = ("f64", "sparse", "meta", "freed", "negated", "subclass", "numpy", "a list", "address", "size: none")
    assert sum(odd in seen for odd in never) > 7
    for odd in never:
        assert seen.get(odd, (0,))[0] == 0, odd
