"""Arguments that C++ makes of tensors, compared with what the checks in Python make of the same, over drawn cases."""

from __future__ import annotations

import fake_gpu
from prepared_arguments import ODD, TORCH

_PROPERTY = """
draw = random.Random(SEED)
operations = [
    _load(ampere(kind, layouts), "gemm")
    for kind in ("f32", "f32_simt")
    for layouts in ((ROW, COLUMN, ROW), (ROW, ROW, ROW), (COLUMN, ROW, COLUMN))
]
operations += [
    _load(ampere("f32", swizzle=pycutlass.cutlass.ThreadblockSwizzleStreamK), "stream_k"),
    _load(ampere("f16"), "gemm_f16"),
    _load(hopper(), "gemm_f16"),
    _load(APART["transposed"], "gemm_f16"),
    _load(INTERLEAVED8, "gemm_s8"),
]
Mode = pycutlass.cutlass.gemm.Mode
TYPES = {"f32": torch.float32, "f16": torch.float16, "s8": torch.int8}

def tensor(described, rows, columns, batch, memory=None, offset=0, slack=0):
    line, lines = (columns, rows) if described.is_row_major else (rows, columns)
    if described.order.interleave > 1:
        return torch.zeros(max(batch, 1) * rows * columns, dtype=torch.int8)
    ld = line + slack
    extent = lines * ld + draw.choice([0, 0, 4]) * (slack > 0)
    if memory is None:
        memory = torch.zeros(max(batch, 1) * extent + offset + 64, dtype=TYPES[described.type.short])
    strides = (ld, 1) if described.is_row_major else (1, ld)
    if batch:
        return memory.as_strided((batch, rows, columns), (extent, *strides), offset)
    return memory.as_strided((rows, columns), strides, offset)

SIZES = {
    "list": list,
    "coord": lambda size: pycutlass.cutlass.gemm.GemmCoord(*size),
    "numpy": np.array,
    "two": lambda size: size[:2],
    "text": lambda size: "abc",
    "floats": lambda size: tuple(map(float, size)),
    "truths": lambda size: (True, *size[1:]),
    "huge": lambda size: (2**40, *size[1:]),
    "negative": lambda size: (-size[0], *size[1:]),
    "none": lambda size: (0, *size[1:]),
    "no k": lambda size: (*size[:2], 0),
}

def case():
    operation = draw.choice(operations)
    step = max(operation.C.alignment, operation.A.order.interleave)
    m, n, k = (step * draw.randint(1, 6) for _ in "mnk")
    if draw.random() < 0.1:
        m, n, k = (draw.randint(1, 20) for _ in "mnk")
    batch = draw.choice([0, 0, 0, 1, 2, 3])
    odd = draw.choice([None, None, "operand", "operand", "size", "keyword", "overlap"])
    how = {}
    if batch:
        how |= {"gemm_mode": Mode.Batched, "batch": batch}
    described = {"A": (operation.A, m, k), "B": (operation.B, k, n), "C": (operation.C, m, n), "D": (operation.D, m, n)}
    slack = {name: draw.choice([0, 0, step, 8, 3 if step == 1 else 4]) for name in described}
    given = {name: tensor(*of, batch, slack=slack[name], offset=draw.choice([0, 0, step, 4]))
             for name, of in described.items()}
    scalars = draw.choice([None, None, (1.0, 0.0), (0.5, 2.0), (2.0, 1e-60), (2.0,)])
    if scalars is not None:
        how["output_op"] = draw.choice(operation._seen)(*scalars)
    if scalars is None or draw.random() < 0.2:
        given["C"] = None
    elif draw.random() < 0.3:
        line = n if operation.C.is_row_major else m
        given["C"] = torch.zeros(line, dtype=TYPES[operation.C.type.short])
    elif draw.random() < 0.3:
        given["D"] = given["C"]
    size = (m, n, k)
    name = draw.choice("ABCD")
    if odd == "operand" and given[name] is not None and given[name].dim() > 1:
        odd = draw.choice(sorted(ODD))
        given[name] = ODD[odd](given[name])
    elif odd == "size":
        odd = draw.choice(sorted(SIZES))
        size = SIZES[odd](size)
    elif odd == "keyword":
        further = draw.choice([
            {"split_k_slices": 2}, {"split_k_slices": True}, {"split_k_slices": 0}, {"split_k_slices": 70_000},
            {"gemm_mode": Mode.GemmSplitKParallel}, {"gemm_mode": Mode.GemmSplitKParallel, "split_k_slices": 2},
            {"batch": 2}, {"batch": "2"}, {"bias": True},
            {"bias": False}, {"bias": np.True_}, {"bias": 1}, {"raster_order": 0}, {"raster_order": "AlongM"},
            {"raster_order": pycutlass.RasterOrder.AlongN}, {"launch_with_pdl": False}, {"launch_with_pdl": 1},
            {"reordered": True}, {"gemm_mode": Mode.Array}, {"gemm_mode": 0}, {"output_op": 1.0}, {"epilogue": {}},
            {"epilogue": {"x": 1}}, {"epilogue": []}, {"epilogue": np.ones(2)}, {"split_k_splices": 2},
            {"surprise": 1},
            {"output_op": group("host").epilogue_type(1.0, 0.0)},
        ])
        odd, how = str(further), how | further
    elif odd == "overlap":
        memory = torch.zeros(100_000, dtype=TYPES[operation.C.type.short])
        name, other = draw.choice(["AD", "BD", "CD", "AB"])
        slack = {each: 4 * draw.randint(0, 20) for each in "ABCD"}
        for each in (name, other):
            given[each] = tensor(*described[each], batch, memory, 4 * draw.randint(0, 30), slack[each])
    if not batch and odd is None and draw.random() < 0.2:
        how["split_k_slices"] = draw.choice([2, 2, 3, 17])
        odd = "slices"
    often = 0.8 if odd is not None and "cupy" in odd else 0.3  # so that one array alone is odd
    if draw.random() < often and operation.B.order.interleave == 1:  # what reorders B asks more of an array
        given = {name: as_cupy(each) for name, each in given.items()}
        odd = odd if odd is None or odd.startswith("cupy") else f"{odd}, cupy"
        odd = odd or "arrays of cupy"
    if draw.random() < 0.1 and odd is None:
        size, how = pycutlass.GemmProblemSize(*size, how.pop("gemm_mode", Mode.Gemm), how.pop("batch", 1)), how
    return odd, operation, (size, *(given[each] for each in "ABCD")), how

NAMES = ("gemm_mode", "batch_count", "split_k_slices", "raster_order", "launch_with_pdl", "bias", "launch_config")

def state(arguments):
    execution = arguments._execution
    if not isinstance(execution, device.DeviceLaunch):
        return type(execution).__name__
    pointers = [getattr(arguments, f"{kind}{name}") for kind, name in zip(["ptr_"] * 4 + ["ld"] * 4, "ABCDabcd")]
    scalars = arguments.output_op
    return (
        without_workspace(execution), list(execution._buffers), execution.call.operands,
        execution.call.launches_with_pdl, pointers,
        repr(arguments), [getattr(arguments, name) for name in NAMES], tuple(arguments.problem_size),
        (scalars.values, scalars.compute, scalars.names), list(map(id, arguments._given.values())),
        arguments._problem_size, scalars.beta_is_given, execution.ordinal, execution.launched,
        execution._libraries.keys(), type(arguments._run),
    )

for operation in operations:
    scalars = operation.epilogue_type(0.5, 2.0)
    operation._seen = [operation.epilogue_type, lambda alpha, beta=0.0, same=scalars: same]

for number in range(COUNT):
    odd, operation, given, how = case()
    first = draw.random() < 0.5
    if first:  # nothing is prepared, and perhaps nothing is known of tensors either
        operation._prepared = ()
        if draw.random() < 0.5:
            _core.forget_tensors()
    compared(operation, odd, given, how, first)
print_counts()
"""


def counts(seed: int, count: int) -> dict[tuple[str, bool], tuple[int, int, int]]:
    """Return how many cases of each kind were taken, how many there were, and how many were right at all."""
    program = f"{TORCH}\n{ODD}\n{_DESCRIBED}\nSEED, COUNT = {seed}, {count}\n{_PROPERTY}"
    rows = [line.split("|") for line in fake_gpu.run(program, seconds=300).splitlines()]
    return {(odd, first == "True"): (int(taken), int(of), int(right)) for odd, first, taken, of, right in rows}


_DESCRIBED = """
from apart import APART
from descriptions import ampere, hopper
from test_gemm_modes_refused import INTERLEAVED8
"""


def test_what_is_made_at_once_is_what_the_closer_look_makes() -> None:
    """Of an operation that has been launched, and of one that meets its first tensors."""
    seen = counts(seed=1, count=2000)
    for first in (False, True):
        for usual in ("None", "arrays of cupy"):
            taken, all_of_them, right = seen[usual, first]
            assert taken > 0.6 * right > 0.2 * all_of_them, (usual, first)
        assert seen["slices", first][0] > 0
    assert len(seen) > 150
    never = ["transposed", "f64", "sparse", "meta", "freed", "negated", "subclass", "huge", "no k", "own cupy"]
    never += ["cupy elsewhere", "cupy of integers", "cupy backwards", "cupy between elements", "cupy unlike itself"]
    for odd in never:
        for first in (False, True):
            assert seen.get((odd, first), (0,))[0] == 0, odd
