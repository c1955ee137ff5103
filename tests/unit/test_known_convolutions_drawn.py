"""Convolutions that C++ makes of tensors, compared with what the checks in Python make of them, over drawn cases."""

from __future__ import annotations

import fake_gpu
from prepared_arguments import ODD, TORCH

_PROPERTY = """
from convolutions import OPERATIONS, SIMT, UNITY, conv, dgrad, f32, fprop, problem, s8, s32
from pycutlass.operation.conv2d_support import extent_of

draw = random.Random(SEED)
NAMES = {
    "fprop": ["f32_simt_fprop", "f32_fprop", "f32_simt_dgrad", "f32_simt_dgrad_strided", "f32_simt_wgrad"],
    "conv_f16": [
        "f16_fprop_optimized", "f16_dgrad_strided_optimized", "f16_wgrad_optimized", "f16_fprop_few4",
        *(name for name, each in OPERATIONS.items() if each.group_mode is not None),
    ],
    "conv_s8": ["s8_fprop_interleaved", "s8_fprop"],
}
operations = [_load(OPERATIONS[name], family) for family, names in NAMES.items() for name in names]
for operation in operations:
    if operation.splits_k:
        _load(operation.partial, "fprop")
fast = conv(fprop, "optimized", (s8, s32, s8), functor=lambda *of: pycutlass.FastLinearCombinationClamp(*of[:2]))
operations.append(_load(fast, "conv_s8"))
SplitK = pycutlass.cutlass.conv.SplitKMode
TYPES = {"f32": torch.float32, "f16": torch.float16, "s8": torch.int8}

def tensor(described, extent, memory=None, offset=0, slack=0):
    n, h, w, c = extent
    if described.order.interleave > 1:
        return torch.zeros(n * h * w * c, dtype=torch.int8)
    step = c + slack
    if memory is None:
        memory = torch.zeros(n * h * w * step + offset + 64, dtype=TYPES[described.type.short])
    return memory.as_strided((n, c, h, w), (h * w * step, 1, w * step, step), offset)

#: What may be odd about one operand beside what may be about any.
ODD |= {
    "channels last": lambda t: t.permute(0, 2, 3, 1),
    "default format": lambda t: t.contiguous(),
    "backwards": lambda t: t.flip(2),
    "one image": lambda t: t[:1].expand(t.shape),
    "one image less": lambda t: t[1:],
    "every second image": lambda t: torch.cat([t, t])[::2],
    "every second row": lambda t: torch.cat([t, t], 2)[:, :, ::2],
    "every second channel": lambda t: torch.cat([t, t], 1)[:, ::2],
    "half of the channels": lambda t: torch.cat([t.permute(0, 2, 3, 1)] * 2, 3)[..., : t.shape[1]].permute(0, 3, 1, 2),
    "five dimensions": lambda t: t[..., None],
    "one channel for all": lambda t: torch.zeros(1).expand(t.shape),
    "a bias": lambda t: torch.zeros(t.shape[1], dtype=t.dtype),
    "a bias of four dimensions": lambda t: torch.zeros(1, t.shape[1], 1, 1, dtype=t.dtype),
    "a long bias": lambda t: torch.zeros(t.shape[1] + 1, dtype=t.dtype),
    "every second bias": lambda t: torch.zeros(2 * t.shape[1], dtype=t.dtype)[::2],
    "cupy as (N, C, H, W)": Cupy,
}

SIZES = {
    "another number": lambda p: 5,
    "nothing": lambda p: None,
    "a gemm": lambda p: (5, 6, 7),
    "other rows": lambda p: changed(p, H=p.H + 3, P=p.P + 1),
    "fewer outputs": lambda p: changed(p, P=1),
    "more outputs": lambda p: changed(p, P=p.P + 9),
    "no images": lambda p: changed(p, N=0),
    "no channels": lambda p: changed(p, C=0),
    "no filters": lambda p: changed(p, K=0),
    "wide channels": lambda p: changed(p, C=p.C + 1, groups=1),
    "flipped": lambda p: p.reset_mode(pycutlass.cutlass.conv.Mode.convolution),
    "strides": lambda p: changed(p, stride_h=2, P=1),
    "slices": lambda p: p.reset_split_k_slices(2),
}

def changed(p, **fields):
    p = copy.copy(p)
    for name, value in fields.items():
        setattr(p, name, value)
    return p

def as_nhwc(array):
    # whether its memory is there or not
    array.shape, array.strides = (tuple(each[axis] for axis in (0, 2, 3, 1)) for each in (array.shape, array.strides))
    return array

def as_cupy_nhwc(given):
    array = as_cupy(given)
    return as_nhwc(array) if array is not given and given.dim() == 4 else array

def copied_alike(given):
    copy = copied(given)
    return as_nhwc(copy) if isinstance(given, Cupy) and given.shape != copy.shape else copy

def drawn_problem(operation):
    while True:
        step = max(operation.C.alignment, operation.A.alignment, operation.A.order.interleave)
        if operation.group_mode is None:
            groups, channels, filters = 1, step * draw.choice([1, 1, 2, 3]), step * draw.choice([1, 1, 2])
        else:
            groups = draw.choice([1, 2, 4])
            channels, filters = groups * step * draw.choice([1, 2]), groups * draw.choice([1, 8, 64, 128])
        if draw.random() < 0.1:
            channels = filters = 4 * groups
        taps = draw.choice([(1, 1), (1, 1), (2, 3)])
        side = draw.choice([draw.randint(3, 6), channels]) if channels < 9 else draw.randint(3, 6)
        geometry = (draw.choice([1, 1, 2]), side, draw.choice([side, 4]), *taps)
        try:
            p = problem((*geometry, (1, 0), draw.choice([(1, 1), (1, 1), (2, 1)]), (1, 1)), channels, filters, groups)
        except PyCutlassError:
            continue
        if operation.supports(p):
            return p

def operands(operation, p, slack):
    described = {"A": operation.A, "B": operation.B, "C": operation.C, "D": operation.C}
    made = {name: (each, extent_of(name, operation, p)) for name, each in described.items()}
    step = max(each.alignment for each in described.values())
    return made, {name: tensor(*of, slack=slack(step), offset=draw.choice([0, 0, step])) for name, of in made.items()}

def case():
    operation = draw.choice(operations)
    p = drawn_problem(operation)
    packed = operation.conv_kind is not fprop and draw.random() < 0.5
    described, given = operands(operation, p, lambda step: 0 if packed else draw.choice([0, 0, 0, step, 8, 3]))
    odd = draw.choice([None, None, "operand", "operand", "size", "keyword", "overlap"])
    how = {}
    scalars = draw.choice([None, None, (1.0, 0.0), (0.5, 2.0), (2.0, 1e-60), (2.0,)])
    if scalars is not None:
        how["output_op"] = draw.choice(operation._seen)(*scalars)
    if scalars is None or draw.random() < 0.2:
        given["C"] = None
    elif draw.random() < 0.4:
        given["C"] = torch.zeros(described["C"][1][3], dtype=TYPES[operation.C.type.short])
    elif draw.random() < 0.3:
        given["D"] = given["C"]
    known = {}
    if draw.random() < 0.3 and operation.splits_k and not operation.C.type.is_integer:
        known = draw.choice([{"split_k_slices": 2}, {"split_k_slices": 1}, {"split_k_mode": SplitK.NoSplit}])
        how |= known
    name, size = draw.choice("ABCD"), p
    if odd == "operand" and given[name] is not None and given[name].dim() > 1 and given[name].is_floating_point():
        odd = draw.choice(sorted(ODD))
        given[name] = ODD[odd](given[name])
    elif odd == "size":
        odd = "size: " + draw.choice(sorted(SIZES))
        try:
            size = SIZES[odd[6:]](p)
        except PyCutlassError:
            odd = None
    elif odd == "keyword":
        further = draw.choice([
            {"split_k_slices": 2}, {"split_k_slices": True}, {"split_k_slices": 0}, {"split_k_slices": 70_000},
            {"split_k_slices": -1}, {"split_k_slices": np.int64(1)}, {"split_k_slices": "2"}, {"split_k_slices": 2**40},
            {"split_k_mode": SplitK.Parallel}, {"split_k_mode": SplitK.Parallel, "split_k_slices": 2},
            {"split_k_mode": SplitK.NoSplit}, {"split_k_mode": 1}, {"split_k_mode": None},
            {"bias": True}, {"bias": False}, {"bias": np.True_}, {"bias": 1}, {"reordered": True},
            {"reordered": False}, {"output_op": 1.0}, {"epilogue": {}}, {"surprise": 1}, {"D": None}, {"D": 5},
            {"output_op": group("host").epilogue_type(1.0, 0.0)},
        ])
        odd, how = str(further), how | further
        if "D" in further:
            given["D"] = how.pop("D")
    elif odd == "overlap" and operation.A.order.interleave == 1:
        memory = torch.zeros(1_000_000, dtype=TYPES[operation.C.type.short])
        for each in draw.choice(["AD", "BD", "CD", "AB"]):
            if given[each] is not None:
                given[each] = tensor(*described[each], memory, 8 * draw.randint(0, 30), 8 * draw.choice([0, 0, 3, 9]))
    often = 0.8 if odd is not None and "cupy" in odd else 0.3  # so that one array alone is odd
    if draw.random() < often and operation.A.order.interleave == 1:
        given = {name: as_cupy_nhwc(each) for name, each in given.items()}
        odd = odd if odd is None or odd.startswith("cupy") else f"{odd}, cupy"
        odd = odd or "arrays of cupy"
    return odd, operation, (size, *(given[each] for each in "ABCD")), how, (p, known)

def state(arguments):
    execution = arguments._execution
    if not isinstance(execution, device.DeviceLaunch):
        return type(execution).__name__
    pointers = [getattr(arguments, f"{kind}{name}") for kind, name in zip(["ptr_"] * 4 + ["ld"] * 4, "ABCDabcd")]
    scalars = arguments.output_op
    return (
        without_workspace(execution), list(execution._buffers), execution.call.operands, pointers, repr(arguments),
        [getattr(arguments, name) for name in ("problem_size", "split_k_mode", "split_k_slices")],
        arguments.bias, arguments.launch_config,
        (scalars.values, scalars.compute, scalars.names), list(map(id, arguments._given.values())),
        arguments._size, arguments._asked, scalars.beta_is_given, execution.ordinal, execution.launched,
        execution._libraries.keys(), type(arguments._run), arguments._launched,
    )

for operation in operations:
    scalars = operation.epilogue_type(0.5, 2.0)
    operation._seen = [operation.epilogue_type, lambda alpha, beta=0.0, same=scalars: same]

for number in range(COUNT):
    odd, operation, given, how, (p, known) = case()
    met = draw.random() < 0.8
    if draw.random() < 0.3:
        operation._prepared = ()
        if draw.random() < 0.5:
            _core.forget_tensors()
    if met:
        _, usual = operands(operation, p, lambda step: 0)
        first = made(operation, p, usual["A"], usual["B"], None, usual["D"], **known)
        del first
    compared(operation, odd, given, how, met, copied_alike)
    assert all(len(each.problems) <= 64 for each in operation._prepared)
print_counts()
assert not any(operation._prepared for operation in operations if operation.is_interleaved)
"""


def counts(seed: int, count: int) -> dict[tuple[str, bool], tuple[int, int, int]]:
    """Return how many cases of each kind were taken, how many there were, and how many were right at all."""
    program = f"{TORCH}\n{ODD}\nSEED, COUNT = {seed}, {count}\n{_PROPERTY}"
    rows = [line.split("|") for line in fake_gpu.run(program, seconds=300).splitlines()]
    return {(odd, met == "True"): (int(taken), int(of), int(right)) for odd, met, taken, of, right in rows}


def test_what_is_made_at_once_is_what_the_closer_look_makes() -> None:
    """In all directions, with groups, split-K and biases, of problems that have been met and of others."""
    seen = counts(seed=1, count=2000)
    for usual in ("None", "arrays of cupy"):
        taken, all_of_them, right = seen[usual, True]
        assert taken > 0.6 * right > 0.2 * all_of_them, usual
    assert len(seen) > 150
    never = ["f64", "sparse", "meta", "freed", "negated", "subclass", "own cupy", "cupy elsewhere", "cupy of integers"]
    never += ["cupy backwards", "cupy between elements", "cupy unlike itself", "numpy", "a list", "address"]
    never += ["size: another number", "size: no channels", "size: no images", "size: more outputs"]
    for odd in never:
        assert any((odd, met) in seen for met in (False, True)), odd
        for met in (False, True):
            assert seen.get((odd, met), (0,))[0] == 0, odd
