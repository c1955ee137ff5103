"""Plans as tables in C, which pycutlass/exports/c/kernel.h declares."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pycutlass.cache import Artifact
from pycutlass.exports.described import Described, ExportedTensor, Variant
from pycutlass.operation import Operation

__all__ = ["Stored", "tables"]

_LAYOUTS = {"rows": "ROWS", "columns": "COLUMNS", "line": "LINE", "pixels": "PIXELS"}
_NOTHING = "0"

#: What was compiled for each kernel.
Stored = Mapping[Operation, Artifact]


def tables(plans: Sequence[Described], stored: Stored, name: str = "", *, is_built_there: bool = False) -> str:
    """Return plans.c.

    Parameters
    ----------
    plans : sequence of Described
        What there is.
    stored : mapping
        The artifacts of their kernels.
    name : str
        Of the function that returns the library; none where it is empty.
    is_built_there : bool
        Whether whoever builds the program compiles its kernels, whose digests are not known then.
    """
    artifacts = list({artifact.key: artifact for artifact in stored.values()}.values())
    number_of = {artifact.key: number for number, artifact in enumerate(artifacts)}
    numbers = {operation: number_of[artifact.key] for operation, artifact in stored.items()}
    targets = [_target(plan, stored) for plan in plans]
    lines = ["// What kernel.h declares, written by PyCUTLASS.", '#include "kernel.h"', ""]
    for number in range(len(artifacts)):
        lines += [
            f"extern unsigned char const kernel_{number}_cubin[], kernel_{number}_cubin_end[];",
            f"extern unsigned char const kernel_{number}_host[], kernel_{number}_host_end[];",
        ]
    lines += ["", "stored_kernel const stored_kernels[] = {"]
    for number, artifact in enumerate(artifacts):
        digests = (0, 0) if is_built_there else (zlib.crc32(artifact.cubin), zlib.crc32(artifact.host))
        sides = ", ".join(f"kernel_{number}_{side}, kernel_{number}_{side}_end" for side in ("cubin", "host"))
        lines.append(
            f"    {{{_text(artifact.name)}, {_text(artifact.target)}, {sides}, {digests[0]:#x}u, {digests[1]:#x}u}},"
        )
    lines += ["};", f"uint32_t const stored_kernel_count = {len(artifacts)};", ""]
    for number, plan in enumerate(plans):
        lines += _plan(number, plan, numbers)
    lines += ["pycutlass_plan_info const plan_infos[] = {"]
    lines += [f"    {_info(number, plan, targets[number])}," for number, plan in enumerate(plans)]
    lines += ["};", "plan_table const plan_tables[] = {"]
    lines += [f"    {_table(number, plan)}," for number, plan in enumerate(plans)]
    lines += ["};", f"uint32_t const plan_count = {len(plans)};"]
    if name:
        returns = '__attribute__((visibility("default"))) pycutlass_library const* '
        lines += [
            "",
            "pycutlass_library const* pycutlass_get_library(void);",
            f"{returns}{name}(void);",
            f"pycutlass_library const* {name}(void) {{ return pycutlass_get_library(); }}",
        ]
    return "\n".join(lines) + "\n"


def _target(plan: Described, stored: Stored) -> str:
    return ", ".join(sorted({stored[kernel].target for kernel in plan.kernels}))


def _plan(number: int, plan: Described, numbers: Mapping[Operation, int]) -> list[str]:
    lines = [f"static pycutlass_tensor_info const tensors_{number}[] = {{"]
    alignment = plan.variant_of(plan.m).alignment
    lines += [f"    {_tensor(*each)}," for each in zip(plan.tensors, alignment, strict=True)]
    lines += ["};", f"static pycutlass_scalar_info const scalars_{number}[] = {{"]
    on_device = {scalar.name for scalar in plan.epilogue.scalar_table if scalar.on_device}
    compute = plan.epilogue.compute.code
    lines += [
        f"    {{{_text(name)}, {value!r}, {int(name in on_device)}, {compute}, {{0}}}},"
        for name, value in plan.scalars.items()
    ] or ["    {0, 0, 0, 0, {0}},"]
    in_place = ", ".join(str(int(each.in_place)) for each in plan.tensors)
    lines += ["};", f"static uint8_t const in_place_{number}[] = {{{in_place}}};"]
    for index, variant in enumerate(plan.variants):
        values = ", ".join(map(str, variant.alignment))
        lines += [f"static uint8_t const alignment_{number}_{index}[] = {{{values}}};"]
    lines += [f"static plan_variant const variants_{number}[] = {{"]
    lines += [f"    {_variant(number, index, each, numbers)}," for index, each in enumerate(plan.variants)]
    return [*lines, "};", ""]


def _tensor(tensor: ExportedTensor, alignment: int) -> str:
    extents = ", ".join(map(str, tensor.extents))
    return (
        f"{{{_text(tensor.name)}, {tensor.element.code}, PYCUTLASS_{_LAYOUTS[tensor.layout]}, {len(tensor.extents)}, "
        f"{int(tensor.written)}, {int(tensor.shared)}, {alignment}, 0, {{{extents or _NOTHING}}}}}"
    )


def _variant(number: int, index: int, variant: Variant, numbers: Mapping[Operation, int]) -> str:
    reduction = -1 if variant.reduction is None else numbers[variant.reduction]
    fields: tuple[Any, ...] = (
        *(variant.least, variant.most, numbers[variant.operation], reduction, variant.mode, variant.slices),
        *(variant.max_swizzle, variant.raster_order, variant.m_step, variant.sum_bytes, int(variant.is_pdl)),
        *(f"alignment_{number}_{index}", variant.byte_limit),
    )
    return f"{{{', '.join(map(str, fields))}}}"


def _info(number: int, plan: Described, target: str) -> str:
    return (
        f"{{{_text(plan.name)}, {_text(plan.what)}, {_text(target)}, {len(plan.tensors)}, {len(plan.scalars)}, "
        f"tensors_{number}, scalars_{number}, {plan.most_extent}, 0, {{0}}}}"
    )


def _table(number: int, plan: Described) -> str:
    functor = plan.epilogue
    names = list(plan.scalars)
    beta = names.index("beta") if functor.reads_source is None and "beta" in names else -1
    fields: tuple[Any, ...] = (
        *(
            "FAMILY_GEMM" if plan.family == "gemm" else "FAMILY_CONV2D",
            plan.n,
            plan.k,
            plan.batch,
            f"{{{', '.join(map(str, plan.conv)) or _NOTHING}}}",
        ),
        *(f"{{{', '.join(map(str, plan.roles))}}}", plan.first_port, f"in_place_{number}", int(plan.by_rows)),
        *(int(plan.family == "dgrad"), int(plan.family == "wgrad"), beta, len(plan.variants), f"variants_{number}"),
    )
    return f"{{{', '.join(map(str, fields))}}}"


def _text(text: str) -> str:
    """Return a string of C."""
    return json.dumps(text, ensure_ascii=True).replace("\\u", "u") if text.isascii() else json.dumps(ascii(text)[1:-1])
