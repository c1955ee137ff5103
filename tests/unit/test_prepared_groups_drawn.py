"""Groups that C++ makes of tensors, compared with what the checks in Python make of the same, over drawn cases."""

from __future__ import annotations

import fake_gpu
from prepared_arguments import ODD, TORCH

_PROPERTY = """
from pycutlass.arguments.grouped import GemmGroupedArguments
from pycutlass.enums import SchedulerMode

draw = random.Random(SEED)

def described(kind, layouts, mode):
    made = pycutlass.GemmOperationGrouped(**parts(kind, layouts), precompute_mode=SchedulerMode[mode])
    return _load(made, f"grouped_{mode.lower()}")

operations = [
    described(kind, layouts, mode)
    for kind in ("f32", "f32_simt")
    for layouts in ((ROW, COLUMN, ROW), (COLUMN, ROW, COLUMN))
    for mode in ("Device", "Host")
]
for operation in operations:
    scalars = operation.epilogue_type(0.5, 2.0)
    operation._seen = [operation.epilogue_type, lambda alpha, beta=0.0, same=scalars: same]

# Whether C++ has made the launch.
ordinary = []
start = GemmGroupedArguments._start_ordinary

def recorded(self, *given):
    ordinary.append(start(self, *given))
    return ordinary[-1]

GemmGroupedArguments._start_ordinary = recorded

def made(operation, *given, **how):
    ordinary.clear()
    return GemmGroupedArguments(operation, *given, **how)

def looked_at(operation, *given, **how):
    GemmGroupedArguments._start_ordinary = lambda *given: False
    try:
        return GemmGroupedArguments(operation, *given, **how)
    finally:
        GemmGroupedArguments._start_ordinary = recorded

def tensor(described, rows, columns, memory=None, offset=0, slack=0):
    line, lines = (columns, rows) if described.is_row_major else (rows, columns)
    ld = line + slack
    if memory is None:
        memory = torch.zeros(lines * ld + offset + 64)
    return memory.as_strided((rows, columns), (ld, 1) if described.is_row_major else (1, ld), offset)

LISTS = {
    "tuples": tuple,
    "one less": lambda each: each[:-1],
    "one more": lambda each: [*each, each[0]],
    "no list": lambda each: each[0],
    "none": lambda each: None,
    "stacked": lambda each: torch.stack(each) if len({t.shape for t in each}) == 1 else each,
    "a dict": lambda each: dict(enumerate(each)),
    "empty": lambda each: [],
    "an own list": lambda each: type("Own", (list,), {})(each),
}
SIZES = {
    "coords": lambda sizes: [pycutlass.cutlass.gemm.GemmCoord(*each) for each in sizes],
    "numpy": np.array,
    "a tensor": torch.tensor,
    "lists": lambda sizes: [list(each) for each in sizes],
    "one less": lambda sizes: sizes[:-1],
    "two": lambda sizes: [each[:2] for each in sizes],
    "one": lambda sizes: sizes[0],
    "text": lambda sizes: "abc",
    "floats": lambda sizes: [tuple(map(float, each)) for each in sizes],
    "huge": lambda sizes: [(2**40, 4, 4), *sizes[1:]],
    "negative": lambda sizes: [(-4, 4, 4), *sizes[1:]],
    "longer": lambda sizes: [(each[0] + 4, *each[1:]) for each in sizes],
}

def case():
    operation = draw.choice(operations)
    count = draw.choice([1, 2, 3, 3, 5, 8])
    extents = [0, 4, 8, 12, 20] if draw.random() < 0.2 else [4, 8, 12, 20]
    sizes = [tuple(draw.choice(extents) for _ in "mnk") for _ in range(count)]
    if draw.random() < 0.2:
        sizes = [sizes[0]] * count
    if draw.random() < 0.1:
        sizes[draw.randrange(count)] = tuple(draw.randint(1, 20) for _ in "mnk")
    odd = draw.choice([None, None, None, "operand", "operand", "list", "sizes", "keyword", "overlap"])
    how = {}
    of = {"A": (operation.A, 0, 2), "B": (operation.B, 2, 1), "C": (operation.C, 0, 1), "D": (operation.C, 0, 1)}
    def one(name, size, **where):
        what, rows, columns = of[name]
        return tensor(what, size[rows], size[columns], **where)
    given = {
        name: [one(name, size, slack=draw.choice([0, 0, 4, 8]), offset=draw.choice([0, 0, 4])) for size in sizes]
        for name in of
    }
    scalars = draw.choice([None, None, (1.0, 0.0), (0.5, 2.0), (0.5, 2.0), (2.0, 1e-60), (2.0,)])
    if scalars is not None:
        how["output_op"] = draw.choice(operation._seen)(*scalars)
    if scalars is None or draw.random() < 0.2:
        given["C"] = None
        if scalars is None and draw.random() < 0.05:
            given["C"] = given["D"]
    else:
        if draw.random() < 0.3:
            given["D"] = list(given["C"])
        if draw.random() < 0.4:
            axis = 1 if operation.C.is_row_major else 0
            some = draw.random() < 0.5
            given["C"] = [
                c if some and draw.random() < 0.5 else torch.zeros(size[axis])
                for c, size in zip(given["C"], sizes)
            ]
            how |= draw.choice([{}, {}, {"bias": True}, {"bias": False}, {"bias": None}])
    name, at = draw.choice([each for each in "ABCD" if given[each] is not None]), draw.randrange(count)
    if odd == "operand" and given[name][at].dim() == 2 and min(sizes[at]):
        odd = draw.choice(sorted(ODD))
        given[name][at] = ODD[odd](given[name][at])
    elif odd == "overlap":
        memory = torch.zeros(10_000)
        other, where = draw.choice("ABCD"), draw.randrange(count)
        for each, number in ((name, at), (other, where)):
            if given[each] is not None:
                slack, offset = 4 * draw.randint(0, 20), 4 * draw.randint(0, 30)
                given[each][number] = one(each, sizes[number], memory=memory, offset=offset, slack=slack)
    elif odd == "keyword":
        further = draw.choice([
            {"bias": True}, {"bias": False}, {"bias": np.True_}, {"bias": 1}, {"reordered": True},
            {"reordered": False}, {"output_op": 1.0}, {"surprise": 1}, {"output_op": fprop().epilogue_type(1.0, 0.0)},
            {"output_op": gemm().epilogue_type(1.0, 1.0)}, {"problem_size": 1},
        ])
        odd, how = str(sorted(further)), how | further
    elif odd == "operand":
        odd = None
    often = 0.8 if odd is not None and "cupy" in odd else 0.2  # so that one array alone is odd
    if draw.random() < often:
        given = {each: ts if ts is None else [as_cupy(t) for t in ts] for each, ts in given.items()}
        odd = odd if odd is None or odd.startswith("cupy") else f"{odd}, cupy"
        odd = odd or "arrays of cupy"
    if odd in ("list", "list, cupy"):
        how_listed = draw.choice(sorted(LISTS))
        if how_listed == "stacked" and isinstance(given[name][0], Cupy):
            how_listed = "tuples"
        given[name], odd = LISTS[how_listed](given[name]), f"{odd}: {how_listed}"
    elif odd in ("sizes", "sizes, cupy"):
        how_sized = draw.choice(sorted(SIZES))
        sizes, odd = SIZES[how_sized](sizes), f"{odd}: {how_sized}"
    return odd, operation, (sizes, *(given[each] for each in "ABCD")), how

def record(execution):
    # The record, and what of it is an address in the table, which each launch has of its own, as an offset in that.
    call, table = execution.call, execution._buffers.get("table")
    raw = call.record_bytes
    size = int.from_bytes(raw[:4], "little")
    words = np.frombuffer(raw[:size], np.uint64).copy()
    words[-12:-10] = words[-12:-10] != 0  # sizes and schedule, in host memory of the call's own
    inside = (words >= table.pointer) & (words < table.pointer + table.size + 512)  # the scratch is behind, if any
    words[inside] -= np.uint64(table.pointer)
    assert inside.sum() > 8
    return words.tolist(), inside.tolist(), raw[size:], call.image, call.device_bytes, table.size

def which(tensor):
    # A slice of a tensor is made anew whenever it is asked for.
    return (tensor.data_ptr(), tensor.shape, tensor.stride()) if type(tensor) is torch.Tensor else id(tensor)

def state(arguments):
    execution = arguments._execution
    if "table" not in getattr(execution, "_buffers", {}):
        return type(execution).__name__, sorted(vars(arguments))
    pointers = [getattr(arguments, f"{kind}{name}") for kind, name in zip(["ptr_"] * 3 + ["ld"] * 3, "ABDabd")]
    if arguments.output_op.needs_source:
        pointers += [arguments.ptr_C, arguments.ldc]
    scalars = arguments.output_op
    return (
        record(execution), list(execution._buffers), execution.call.operands, pointers, repr(arguments),
        arguments.bias, arguments.launch_config, arguments.problem_sizes.tolist(), arguments.total_tiles,
        arguments.problem_count, arguments._most_tiles, (scalars.values, scalars.compute, scalars.names),
        [list(map(which, each)) if type(each) is tuple else id(each) for each in list(arguments._given.values())[1:]],
        list(arguments._given), execution.ordinal, execution.launched, list(execution._libraries.items()),
        type(arguments._run), sorted(set(vars(arguments)) | {"_run", "_try_exchange", "operation"}),
    )

def fresh(tensors):
    if tensors is None or draw.random() < 0.3:
        return None
    return tuple(copied(each) if draw.random() < 0.8 else each for each in tensors)

def changed(sizes):
    # Other sizes, of as many problems or fewer, and operands for all of them.
    return [tuple(draw.choice([4, 8]) for _ in "mnk") for _ in sizes][: draw.randint(1, len(sizes))]

counts = {}
for number in range(COUNT):
    odd, operation, given, how = case()
    first = draw.random() < 0.5
    if first:  # nothing is prepared, and perhaps nothing is known of tensors either
        operation._prepared = ()
        if draw.random() < 0.5:
            _core.forget_tensors()
    if draw.random() < 0.5:  # what looks may change how others find it: a lazy copy gets memory of its own
        other, expected = outcome(looked_at, operation, given, how)
        arguments, got = outcome(made, operation, given, how)
    else:
        arguments, got = outcome(made, operation, given, how)
        other, expected = outcome(looked_at, operation, given, how)
    at_once = arguments is not None and ordinary[-1]
    taken, all_of_them, right = counts.get((odd, first), (0, 0, 0))
    counts[odd, first] = taken + at_once, all_of_them + 1, right + (arguments is not None)
    if other is not None and arguments is not None and not at_once:
        if set(getattr(other._execution, "_buffers", ())) - {"table"}:
            continue  # each has its own copies
    different = [pair for pair in zip(expected, got) if pair[0] != pair[1]]
    shapes = [each and [getattr(t, "shape", t) for t in each] if type(each) is list else each for each in given]
    assert not different, (odd, operation, shapes, how, different)
    if not at_once or odd_memory(odd):
        continue
    tensors = [fresh(each) for each in list(arguments._given.values())[1:]]
    assert arguments._try_exchange(*tensors) == other._try_exchange(*tensors)
    assert record(arguments._execution) == record(other._execution)
    sizes = changed(arguments.problem_sizes)
    with_c = arguments.output_op.needs_source
    others = {
        name: [tensor(getattr(operation, name if name in "AB" else "C"), size[r], size[c]) for size in sizes]
        for name, r, c in (("A", 0, 2), ("B", 2, 1), ("C", 0, 1), ("D", 0, 1)) if name != "C" or with_c
    }
    results = []
    for each in (arguments, other):
        said.clear(); log._said.clear()
        try:
            each.update(problem_sizes=sizes, **others)
            results.append((state(each), list(said)))
        except PyCutlassError as error:
            results.append((type(error), str(error)))
    assert results[0] == results[1], (odd, results)
for (odd, first), (taken, all_of_them, right) in counts.items():
    print(odd, first, taken, all_of_them, right, sep="|")
"""


def counts(seed: int, count: int) -> dict[tuple[str, bool], tuple[int, int, int]]:
    """Return how many cases of each kind were taken, how many there were, and how many were right at all."""
    program = f"{TORCH}\n{ODD}\nfrom descriptions import parts\nSEED, COUNT = {seed}, {count}\n{_PROPERTY}"
    rows = [line.split("|") for line in fake_gpu.run(program, seconds=300).splitlines()]
    return {(odd, first == "True"): (int(taken), int(of), int(right)) for odd, first, taken, of, right in rows}


def test_what_is_made_at_once_is_what_the_closer_look_makes() -> None:
    """Of an operation that has been launched, and of one that meets its first tensors."""
    seen = counts(seed=1, count=1500)
    for first in (False, True):
        for usual in ("None", "arrays of cupy"):
            taken, all_of_them, right = seen[usual, first]
            assert taken > 0.6 * right > 0.2 * all_of_them, (usual, first, seen[usual, first])
    assert len(seen) > 100
    never = ["transposed", "f64", "sparse", "meta", "freed", "negated", "subclass", "own cupy", "cupy elsewhere"]
    never += ["cupy of integers", "cupy backwards", "cupy between elements", "cupy unlike itself", "numpy", "address"]
    for odd in never:
        for first in (False, True):
            assert seen.get((odd, first), (0,))[0] == 0, odd
