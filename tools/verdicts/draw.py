"""Random descriptions of every kind of operation, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

__all__ = ["KINDS", "Drawn", "drawn"]

Drawn = dict[str, Any]

#: Kinds of operations, each as often as it stands here.
KINDS = ("ampere",) * 5 + ("hopper",) * 3 + ("group",) * 2 + ("hopper group",) + ("conv",) * 4 + ("reduction",)

_TYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "int32", "int8")
_BITS = {"float64": 64, "float32": 32, "tfloat32": 32, "float16": 16, "bfloat16": 16, "int32": 32, "int8": 8}
_ROWS32, _COLUMNS32 = "RowMajorInterleaved32", "ColumnMajorInterleaved32"
_NHWC, _CHANNELS32, _FILTERS32 = "TensorNHWC", "TensorNC32HW32", "TensorC32RSK32"
_LAYOUTS = ("RowMajor", "ColumnMajor", _ROWS32, _COLUMNS32, _NHWC, _CHANNELS32, _FILTERS32)
_SATURATE = "multiply_add_saturate"
_FAST = ("multiply_add_fast_f16", "multiply_add_fast_bf16", "multiply_add_fast_f32")
#: Instructions that there have been: class, operands, accumulator, shape, operations; common ones more often.
_INSTRUCTIONS = (
    *((("TensorOp", "float16", "float32", (16, 8, 16), ("multiply_add",)),) * 3),
    ("TensorOp", "float16", "float16", (16, 8, 16), ("multiply_add",)),
    *((("TensorOp", "bfloat16", "float32", (16, 8, 16), ("multiply_add",)),) * 2),
    ("TensorOp", "float16", "float32", (16, 8, 8), ("multiply_add", _FAST[0])),
    ("TensorOp", "float16", "float16", (16, 8, 8), ("multiply_add",)),
    ("TensorOp", "bfloat16", "float32", (16, 8, 8), ("multiply_add", _FAST[1])),
    ("TensorOp", "tfloat32", "float32", (16, 8, 8), ("multiply_add",)),
    ("TensorOp", "float32", "float32", (16, 8, 8), ("multiply_add", *_FAST)),
    ("TensorOp", "float64", "float64", (8, 8, 4), ("multiply_add",)),
    ("TensorOp", "int8", "int32", (16, 8, 32), (_SATURATE, "multiply_add")),
    ("TensorOp", "int8", "int32", (8, 8, 16), (_SATURATE, "multiply_add")),
    ("Simt", "float32", "float32", (1, 1, 1), ("multiply_add",)),
    ("Simt", "float64", "float64", (1, 1, 1), ("multiply_add",)),
    ("Simt", "int8", "int32", (1, 1, 4), ("multiply_add",)),
)
_OPERATIONS = ("multiply_add", _SATURATE, *_FAST)
_OUTPUTS = {
    "float64": ("float64",),
    "float32": ("float32", "float16", "bfloat16", "int8"),
    "float16": ("float16", "float32", "bfloat16"),
    "int32": ("int32", "int8", "float32", "float16", "bfloat16"),
}
_COMPUTED = {
    "float64": ("float64",),
    "float32": ("float32", "float32", "float16"),
    "float16": ("float16", "float32"),
    "int32": ("float32", "int32"),
}
_IDENTITY = ("IdentitySwizzle1", "IdentitySwizzle2", "IdentitySwizzle4", "IdentitySwizzle8")
_SWIZZLES = (*_IDENTITY, "HorizontalSwizzle", "BatchedIdentitySwizzle", "ThreadblockSwizzleStreamK")
_DGRAD_SWIZZLES = ("StridedDgradIdentitySwizzle1", "StridedDgradIdentitySwizzle4", "StridedDgradHorizontalSwizzle")
_FUNCTORS = ("LinearCombination", "LinearCombinationClamp", "FastLinearCombinationClamp", "relu", "gelu", "tanh")
_MODES = ("Gemm", "Gemm", "GemmSplitKParallel", "Batched", "Array")
#: What each part of a description may be where it is drawn from everything, valid or not.
_ANYTHING: Mapping[str, tuple[Any, ...]] = {
    "opcode": ("TensorOp", "Simt"),
    "element_a": _TYPES,
    "element_b": _TYPES,
    "accumulator": _TYPES,
    "instruction": (
        None,
        (16, 8, 16),
        (16, 8, 8),
        (16, 8, 32),
        (8, 8, 4),
        (8, 8, 16),
        (1, 1, 1),
        (1, 1, 4),
        (64, 8, 16),
    ),
    "operation": _OPERATIONS,
    "stages": (None, 1, 2, 3, 4, 5, 6, 7, 9, 12, 20),
    "cluster": (None, (1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 1, 2)),
    "schedule": (None, "Cooperative", "Pingpong"),
    "capability": (70, 75, 80, 86, 87, 89, 90, 100, 120),
    "swizzle": (None, *_SWIZZLES, *_DGRAD_SWIZZLES),
    "functor": _FUNCTORS,
    "compute": _TYPES,
    "functor_accumulator": _TYPES,
    "functor_output": _TYPES,
    "vector": (1, 2, 4, 8, 16, 3, 32),
    "type_a": _TYPES,
    "type_b": _TYPES,
    "type_c": _TYPES,
    "type_d": (None, *_TYPES),
    "layout_a": _LAYOUTS,
    "layout_b": _LAYOUTS,
    "layout_c": _LAYOUTS,
    "layout_d": (None, *_LAYOUTS),
    "alignment_a": (1, 2, 4, 8, 16, 32, 3, 0),
    "alignment_b": (1, 2, 4, 8, 16, 32, 3, 0),
    "alignment_c": (1, 2, 4, 8, 16, 32, 3, 0),
    "precompute": ("Device", "Host"),
    "conv": ("fprop", "dgrad", "wgrad"),
    "algorithm": ("analytic", "optimized", "fixed_channels", "few_channels"),
    "stride": ("Strided", "Unity"),
    "groups": (None, "SingleGroup", "MultipleGroup"),
    "rows": (1, 2, 4, 8, 16, 64),
    "columns": (32, 64, 128, 256, 512, 96, 100, 1024),
    "partitions": (1, 2, 4, 8, 16, 64, 1000),
}


def drawn(seed: int, number: int) -> Drawn:
    """Return the description of a number: parts by name, of numbers and names alone."""
    random = Random(f"{seed}:{number}")
    kind = random.choice(KINDS)
    made = _hopper(random) if "hopper" in kind else _conv(random) if kind == "conv" else _ampere(random)
    made["kind"] = kind
    if kind == "reduction":
        _reduce(random, made)
    for _ in range(random.choice((0, 0, 0, 0, 1, 1, 1, 2, 3))):
        part = random.choice([name for name in _ANYTHING if name in made])
        made[part] = random.choice(_ANYTHING[part])
        if part == "element_a" and random.random() < 0.7:
            made["element_b"] = made[part]
    if random.random() < 0.1 and "tile" in made:
        made["tile"] = tuple(random.choice((8, 16, 32, 48, 64, 96, 100, 128, 192, 256, 512)) for _ in range(3))
    if random.random() < 0.05 and "warps" in made:
        made["warps"] = random.choice(
            (None, *(tuple(random.choice((1, 2, 3, 4, 8)) for _ in range(3)) for _ in "1234"))
        )
    made["problems"] = [_problem(random, kind) for _ in range(2)]
    return made


def _ampere(random: Random) -> Drawn:
    made = _math(random)
    layouts = [random.choice(("RowMajor", "ColumnMajor")) for _ in range(3)]
    widest = [128 // _BITS[made[name]] for name in ("element_a", "element_b")]
    output = random.choice(_OUTPUTS[made["accumulator"]])
    alignments = [_aligned(random, most) for most in (*widest, 128 // _BITS[output])]
    if made["opcode"] == "Simt":
        alignments = [4, 4, 1] if made["element_a"] == "int8" else [1, 1, 1]
    elif made["element_a"] == "float64":
        alignments[:2] = [1, 1]
    elif made["element_a"] == "int8":
        layouts[:2] = ["RowMajor", "ColumnMajor"]
        if random.random() < 0.4:
            layouts, output, alignments = [_COLUMNS32, _ROWS32, _COLUMNS32], "int8", [16, 16, 8]
    turing = made["instruction"] == (8, 8, 16) or (
        made["element_a"] == "float16" and made["instruction"] == (16, 8, 8) and random.random() < 0.5
    )
    single = any(step * _BITS[made["element_a"]] < 32 for step in alignments[:2])
    dp4a = made["instruction"] == (1, 1, 4)
    made |= {
        "stages": 2 if turing or single or dp4a else random.choice((2, 3, 3, 4, 5, 6, 8)),
        "capability": 75 if turing else random.choice((80, 80, 80, 86, 87, 89, 90)),
        "cluster": None,
        "schedule": None,
        "swizzle": random.choice(_SWIZZLES),
        "precompute": random.choice(("Device", "Host")),
    }
    _tile(random, made)
    return made | _operands(random, made, layouts, alignments, output)


def _hopper(random: Random) -> Drawn:
    operand = random.choice(("float16", "bfloat16"))
    output = random.choice(("float16", "bfloat16", "float32"))
    made = {
        "opcode": "TensorOp",
        "element_a": operand,
        "element_b": operand,
        "accumulator": "float32",
        "instruction": None,
        "operation": "multiply_add",
        "tile": (
            random.choice((64, 128, 128, 192, 256)),
            16 * random.randint(1, 16),
            random.choice((64, 64, 64, 32, 128, 16, 96)),
        ),
        "stages": random.choice((None, None, 2, 3, 4, 5, 6)),
        "warps": None,
        "cluster": random.choice(((1, 1), (2, 1), (1, 2), (2, 2))),
        "schedule": random.choice((None, "Cooperative", "Pingpong")),
        "capability": 90,
        "swizzle": random.choice(_IDENTITY),
        "precompute": "Device",
    }
    alignments = [8, 8, 128 // _BITS[output]]
    made |= _operands(random, made, ["RowMajor", "ColumnMajor", "RowMajor"], alignments, output)
    if random.random() < 0.25:  # D apart from C
        made["type_c"] = random.choice(("float16", "bfloat16", "float32"))
        made["layout_c"] = random.choice(("RowMajor", "ColumnMajor"))
        made["alignment_c"] = 128 // _BITS[made["type_c"]]
        made["type_d"], made["layout_d"] = output, random.choice(("RowMajor", "ColumnMajor"))
    return made


def _conv(random: Random) -> Drawn:
    made = _ampere(random) | {
        "conv": random.choice(("fprop", "dgrad", "wgrad")),
        "algorithm": random.choice(("optimized", "optimized", "analytic", "fixed_channels", "few_channels")),
        "stride": random.choice(("Strided", "Unity")),
        "groups": random.choice((None,) * 6 + ("SingleGroup", "MultipleGroup")),
        "swizzle": random.choice((None, *_IDENTITY, "HorizontalSwizzle")),
    }
    interleaved = made["layout_a"] == _COLUMNS32
    layouts = (_CHANNELS32, _FILTERS32, _CHANNELS32) if interleaved else (_NHWC,) * 3
    made |= dict(zip(("layout_a", "layout_b", "layout_c"), layouts, strict=True))
    if made["element_a"] == "int8":
        made["conv"] = "fprop"
    if (made["conv"] != "fprop" or made["opcode"] == "Simt") and random.random() < 0.9:
        made["algorithm"], made["groups"] = random.choice(("optimized", "analytic")), None
    if made["conv"] == "dgrad" and made["stride"] == "Strided":
        made["swizzle"] = random.choice((None, *_DGRAD_SWIZZLES[:2]))
    return made


def _reduce(random: Random, made: Drawn) -> None:
    made["vector"] = min(made["alignment_c"], random.choice((1, 2, 4, 8)))
    made |= {"rows": random.choice((1, 2, 4)), "columns": 32 * made["vector"] * random.choice((1, 2))}
    made["partitions"] = random.choice((1, 2, 4, 8))
    for name in (
        "tile",
        "warps",
        "stages",
        "swizzle",
        "precompute",
        "capability",
        "instruction",
        "operation",
        "opcode",
    ):
        made.pop(name, None)


def _math(random: Random) -> Drawn:
    opcode, operand, accumulator, shape, operations = random.choice(_INSTRUCTIONS)
    return {
        "opcode": opcode,
        "element_a": operand,
        "element_b": operand,
        "accumulator": accumulator,
        "instruction": shape,
        "operation": random.choice(operations),
    }


def _tile(random: Random, made: Drawn) -> None:
    """Add a tile: that of one warp, times so many warps."""
    m, n, k = made["instruction"]
    warps = [random.choice((1, 1, 2, 2, 3, 4, 8)), random.choice((1, 1, 2, 2, 3, 4)), random.choice((1,) * 8 + (2, 4))]
    steps = (2, 2, 2, 4, 4, 8, 3)
    if made["opcode"] == "Simt":
        warps[2], m, n, steps = 1, 8, 8, (8, 8, 8, 16, 4)
    of_warp = [random.choice((1, 2, 2, 4, 4, 6, 8)), random.choice((1, 2, 4, 4, 6, 8, 8, 16)), random.choice(steps)]
    if made["opcode"] == "Simt" and random.random() < 0.9:
        of_warp[:2] = random.choice((2, 4, 4, 8)), random.choice((4, 4, 8))
    if random.random() < 0.9:  # what can be written down whatever it is
        warps[0] = min(warps[0], 256 // (m * of_warp[0]), 16 // (warps[1] * warps[2])) or 1
        warps[1] = min(warps[1], 256 // (n * of_warp[1])) or 1
    made["warps"] = tuple(warps)
    made["tile"] = tuple(size * count * warp for size, count, warp in zip((m, n, k), of_warp, warps, strict=True))


def _operands(random: Random, made: Drawn, layouts: list[str], alignments: list[int], output: str) -> Drawn:
    operand = made["element_a"]
    if made["operation"] in _FAST:
        operand = "float32"  # which such an operation rounds
        alignments = [min(alignments[0], 4), min(alignments[1], 4), alignments[2]]
    functor = random.choice(("LinearCombination", "LinearCombination", "relu", "gelu"))
    if output == "int8":
        functor = random.choice(("LinearCombination", "LinearCombinationClamp", "FastLinearCombinationClamp"))
    elif output == "float16" and made["cluster"] is None and random.random() < 0.2:
        functor = "LinearCombinationClamp"
    return {
        "functor": functor,
        "compute": random.choice(_COMPUTED[made["accumulator"]]),
        "functor_accumulator": made["accumulator"],
        "functor_output": output,
        "vector": alignments[2],
        **dict(zip(("type_a", "type_b", "type_c"), (operand, operand, output), strict=True)),
        **dict(zip(("layout_a", "layout_b", "layout_c"), layouts, strict=True)),
        **dict(zip(("alignment_a", "alignment_b", "alignment_c"), alignments, strict=True)),
        **({"type_d": None, "layout_d": None} if random.random() < 0.02 or made["capability"] == 90 else {}),
    }


def _aligned(random: Random, most: int) -> int:
    return random.choice([step for step in (1, 2, 4, 8, 16) if step <= most] + [most] * 3)


def _problem(random: Random, kind: str) -> Any:
    def extent() -> int:
        return random.choice((0, 1, 3, 8, 16, 33, 64, 100, 128, 256, 1000, 4096, 70000))

    if kind == "conv":
        channels = random.choice((1, 3, 4, 8, 16, 24, 32, 64))
        filters, radius = random.choice((8, 16, 32, 64, 20)), random.choice((1, 3, 5, 33))
        return [random.choice((1, 2)), 16, 14, channels, filters, radius, radius, random.choice((1, 2))]
    sizes = [extent(), extent(), extent()]
    if "group" in kind:
        return [sizes, [extent(), 64, 32]]
    return [*sizes, random.choice(_MODES), random.choice((1, 1, 3)), random.choice((1, 1, 2, 16))]
