"""Every public call, with arguments that are right."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from attempts import Call
from convolutions import SIMT, conv, f32, fprop
from descriptions import native_parts, parts
from epilogue_functions import biased, residual
from groups import grouped
from misuse_in_one_line import in_one_line

import pycutlass
from pycutlass import cutlass
from pycutlass.calls import public
from pycutlass.epilogue import Row
from pycutlass.memory import MemoryPool

__all__ = ["CALLS"]

F32, ROW = cutlass.float32, cutlass.RowMajor
GEMM = pycutlass.GemmOperationUniversal(**parts("f32_simt", (ROW, ROW, ROW)))
GROUPED = grouped("f32_simt", (ROW, ROW, ROW))
CONV = conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT)
REDUCTION = pycutlass.ReductionOperation(
    cutlass.MatrixCoord(4, 128), GEMM.C, F32, F32, F32, pycutlass.LinearCombination(F32, 1, F32, F32), 1
)


def _f32(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _gemm(**further: Any) -> dict[str, Any]:
    return {
        "operation": GEMM, "problem_size": (4, 8, 16), "A": _f32(4, 16), "B": _f32(16, 8), "C": _f32(4, 8),
        "D": _f32(4, 8), "gemm_mode": cutlass.gemm.Mode.Gemm, "output_op": GEMM.epilogue_type(1.0, 1.0),
        "split_k_slices": 1, "batch": 1, "bias": None, "raster_order": pycutlass.RasterOrder.Heuristic,
        "launch_with_pdl": True, **further,
    }  # fmt: skip


def _batched() -> dict[str, Any]:
    batch = {"A": _f32(3, 4, 16), "B": _f32(16, 8), "C": _f32(3, 4, 8), "D": _f32(3, 4, 8)}
    return _gemm(gemm_mode=cutlass.gemm.Mode.Batched, batch=3, **batch)


def _array() -> dict[str, Any]:
    shapes = {"A": (4, 16), "B": (16, 8), "C": (4, 8), "D": (4, 8)}
    lists = {name: [_f32(*shape) for _ in range(3)] for name, shape in shapes.items()}
    return _gemm(gemm_mode=cutlass.gemm.Mode.Array, batch=3, **lists)


def _group() -> dict[str, Any]:
    shapes = {"A": (4, 16), "B": (16, 8), "C": (4, 8), "D": (4, 8)}
    lists = {name: [_f32(*shape) for _ in range(3)] for name, shape in shapes.items()}
    return {"operation": GROUPED, "problem_sizes": [(4, 8, 16)] * 3, **lists, "output_op": GROUPED.epilogue_type(1, 1)}


def _run(arguments: Any) -> None:
    arguments.operation.run(arguments)
    arguments.sync()
    repr(arguments)


_SPLIT = pycutlass.GemmArguments(
    **(_gemm() | {"gemm_mode": cutlass.gemm.Mode.GemmSplitKParallel, "split_k_slices": 2, "output_op": None})
)
GEMM.run(_SPLIT)


def _reduce() -> dict[str, Any]:
    return {
        "operation": REDUCTION, "problem_size": [4, 8], "partitions": 2, "workspace": _SPLIT.ptr_D,
        "destination": _f32(4, 8), "source": _f32(4, 8), "output_op": REDUCTION.epilogue_type(1.0, 1.0), "bias": None,
    }  # fmt: skip


_SIZE = pycutlass.conv2d_problem_size(_f32(1, 4, 4, 8), _f32(8, 3, 3, 8), padding=1)


def _conv() -> dict[str, Any]:
    A, B, C, D = _f32(1, 4, 4, 8), _f32(8, 3, 3, 8), _f32(1, 4, 4, 8), _f32(1, 4, 4, 8)
    return {
        "operation": CONV, "problem_size": _SIZE, "A": A, "B": B, "C": C, "D": D,
        "output_op": CONV.epilogue_type(1.0, 1.0), "split_k_mode": cutlass.conv.SplitKMode.Serial,
        "split_k_slices": 1, "bias": None,
    }  # fmt: skip


def _conv_parts() -> dict[str, Any]:
    return dict(zip(CONV._FIELDS, CONV._value(), strict=True))


def _use(operation: Any) -> None:
    operation.emit(), hash(operation), repr(operation)


def _updating(keywords: Callable[[], dict[str, Any]], make: Any, *further: str) -> Callable[..., Any]:
    arguments = make(**keywords())

    def update(**given: Any) -> Any:
        arguments.update(**given)
        return arguments

    return update


def _only(keywords: Callable[[], dict[str, Any]], *names: str) -> Callable[[], dict[str, Any]]:
    return lambda: {name: value for name, value in keywords().items() if name in names}


def _scalars(functor: Any) -> list[Call]:
    name = type(functor).__name__
    return [Call(f"{name}.epilogue_type", functor.epilogue_type, lambda: {"alpha": 1.0, "beta": 0.0})]


def _described() -> Iterator[Call]:
    """Values that describe a kernel."""
    f16, op = cutlass.float16, cutlass.OpClass.TensorOp
    math = pycutlass.MathInstruction([16, 8, 16], f16, f16, F32, op)
    yield Call("MathInstruction", pycutlass.MathInstruction, lambda: {
        "instruction_shape": [16, 8, 16], "element_a": f16, "element_b": f16, "element_accumulator": F32,
        "opcode_class": op, "math_operation": pycutlass.MathOperation.multiply_add}, repr)  # fmt: skip
    yield Call("TileDescription", pycutlass.TileDescription, lambda: {
        "threadblock_shape": [128, 128, 32], "stages": 3, "warp_count": [2, 2, 1], "math_instruction": math,
        "cluster_shape": None, "kernel_schedule": None}, repr)  # fmt: skip
    native = native_parts()["tile_description"].math_instruction
    yield Call("TileDescription of Hopper", pycutlass.TileDescription, lambda: {
        "threadblock_shape": [128, 128, 64], "stages": None, "warp_count": None, "math_instruction": native,
        "cluster_shape": [2, 1], "kernel_schedule": pycutlass.KernelSchedule.Cooperative}, repr)  # fmt: skip
    yield Call("TensorDescription", pycutlass.TensorDescription,
               lambda: {"element": f16, "layout": ROW, "alignment": 8}, repr)  # fmt: skip
    for name in ("LinearCombination", "LinearCombinationClamp", "FastLinearCombinationClamp"):
        out = F32 if name == "LinearCombination" else cutlass.int8
        keywords = {"element_output": out, "epilogue_vector_length": 4, "element_accumulator": cutlass.int32,
                    "element_epilogue": F32}  # fmt: skip
        functor = getattr(pycutlass, name)
        yield Call(name, functor, lambda keywords=keywords: dict(keywords), repr)
        yield from _scalars(functor(**keywords))
    generic = {"activation_functor": pycutlass.leaky_relu, "element_output": F32, "epilogue_vector_length": 4,
               "element_accumulator": F32, "element_epilogue": F32}  # fmt: skip
    yield Call("LinearCombinationGeneric", pycutlass.LinearCombinationGeneric, lambda: dict(generic), repr)
    yield from _scalars(pycutlass.LinearCombinationGeneric(**generic))
    for name in ("identity", "relu", "leaky_relu", "tanh", "sigmoid", "silu", "hardswish", "gelu", "gelu_tanh"):
        yield Call(name, getattr(pycutlass, name), lambda: {"element_compute": F32}, repr)
    yield Call("epilogue_function", pycutlass.epilogue_function, lambda: {"function": lambda x: x * 2}, repr)
    yield Call(
        "EpilogueFunction.__call__",
        biased,
        lambda: {"element_output": f16, "epilogue_vector_length": 8, "element_accumulator": F32, "bias": F32},
        repr,
    )
    yield from _scalars(residual(f16, 8))
    yield Call(
        "reduction_op",
        pycutlass.reduction_op,
        lambda: {"tensor": np.ones((1, 4, 4)), "direction": "row", "math": "Add", "factor": 2},
        repr,
    )
    described = parts("f16")
    yield Call(
        "EpilogueVisitTree",
        Tree,
        lambda: {
            "elementwise_functor": described["epilogue_functor"],
            "tile_description": described["tile_description"],
            "element_accumulator": F32,
            "elements_per_access": 8,
            "element_compute": F32,
            "element_output": f16,
        },
        lambda made: made.initialize(),
    )


class Tree(pycutlass.EpilogueVisitTree):
    """A tree of the original's."""

    def __call__(self, accum: Any, bias: Row) -> Any:
        D = accum + bias
        return D


def _operations() -> Iterator[Call]:
    universal = parts("f32_simt", (ROW, ROW, ROW))
    yield Call(
        "GemmOperationUniversal", pycutlass.GemmOperationUniversal, lambda: {**universal, "visitor": False}, _use
    )
    yield Call(
        "GemmOperationUniversal by arch",
        pycutlass.GemmOperationUniversal,
        lambda: {"arch": 80, **{name: value for name, value in universal.items() if name != "compute_capability"}},
        _use,
    )
    yield Call("GemmOperationUniversal of Hopper", pycutlass.GemmOperationUniversal, native_parts, _use)
    yield Call("GemmOperationGrouped", pycutlass.GemmOperationGrouped,
               lambda: {**universal, "precompute_mode": pycutlass.SchedulerMode.Device}, _use)  # fmt: skip
    yield Call("Conv2dOperation", pycutlass.Conv2dOperation, _conv_parts, _use)
    yield Call("ReductionOperation", pycutlass.ReductionOperation,
               lambda: dict(zip(REDUCTION._FIELDS, REDUCTION._value(), strict=True)), _use)  # fmt: skip
    for operation in (GEMM, GROUPED, CONV, REDUCTION):
        name = type(operation).__name__
        yield Call(f"{name}.run", operation.run, lambda: {"arguments": None})
    for name, make, keywords in (
        ("GemmOperationUniversal", pycutlass.GemmArguments, _gemm),
        ("GemmOperationGrouped", pycutlass.GemmGroupedArguments, _group),
        ("Conv2dOperation", pycutlass.Conv2dArguments, _conv),
        ("ReductionOperation", pycutlass.ReductionArguments, _reduce),
    ):
        yield Call(f"{name}.run on a stream", _run_on(make(**keywords())), lambda: {"stream": None})
    yield from _questions()
    yield from in_one_line()


def _run_on(arguments: Any) -> Callable[[Any], Any]:
    """Return a function that launches on one stream and waits for it."""

    def run(stream: Any) -> None:
        arguments.operation.run(arguments, stream)
        arguments.sync()

    return public(run)


def _ask_of(operation: Any, size: Any, name: str) -> Callable[[Any], Any]:
    """Return a function that asks with one operand."""

    def ask(tensor: Any) -> Any:
        return operation.supports(size, {name: tensor})

    return public(ask)


def _questions() -> Iterator[Call]:
    """What is asked of sizes and shapes, before there are tensors."""
    spec = pycutlass.TensorSpec((4, 8), F32)
    yield Call("TensorSpec", pycutlass.TensorSpec, lambda: {"shape": (4, 8), "dtype": F32, "strides": (8, 1)}, repr)
    yield Call("GemmProblemSize", pycutlass.GemmProblemSize, lambda: {
        "m": 4, "n": 8, "k": 16, "gemm_mode": cutlass.gemm.Mode.Batched, "batch": 3, "split_k_slices": 1},
        repr)  # fmt: skip
    yield Call("ReductionProblemSize", pycutlass.ReductionProblemSize,
               lambda: {"rows": 4, "columns": 8, "partitions": 2}, repr)  # fmt: skip
    yield Call("Conv2dOperation.supports", CONV.supports, lambda: {"problem_size": _SIZE, "operands": {}}, repr)
    yield Call("Conv2dOperation.output", CONV.output, lambda: {"problem_size": _SIZE}, repr)
    for operand in "AB":
        for operation, size in ((CONV, _SIZE), (GEMM, (4, 8, 16))):
            ask = _ask_of(operation, size, operand)
            yield Call(f"{type(operation).__name__}.supports {operand}", ask, lambda: {"tensor": spec}, repr)
    yield Call("GemmOperationUniversal.supports", GEMM.supports,
               lambda: {"problem_size": (4, 8, 16), "operands": {"D": spec}}, repr)  # fmt: skip
    yield Call("GemmOperationUniversal.output", GEMM.output, lambda: {"problem_size": (4, 8, 16)}, repr)
    yield Call("GemmOperationUniversal.problem_of", GEMM.problem_of, lambda: {"A": spec, "B": spec}, repr)
    yield Call("GemmOperationGrouped.supports", GROUPED.supports,
               lambda: {"problem_sizes": [(4, 8, 16)], "operands": {"D": [spec]}}, repr)  # fmt: skip
    yield Call("GemmOperationGrouped.outputs", GROUPED.outputs, lambda: {"problem_sizes": [(4, 8, 16)]}, repr)
    yield Call("ReductionOperation.supports", REDUCTION.supports,
               lambda: {"problem_size": (4, 8), "operands": {"destination": spec}}, repr)  # fmt: skip
    yield Call("ReductionOperation.output", REDUCTION.output, lambda: {"problem_size": (4, 8)}, repr)


def _arguments() -> Iterator[Call]:
    update = ("A", "B", "C", "D", "output_op")
    for name, make, keywords in (
        ("GemmArguments", pycutlass.GemmArguments, _gemm),
        ("GemmArguments of a batch", pycutlass.GemmArguments, _batched),
        ("GemmArguments of an array", pycutlass.GemmArguments, _array),
        ("Conv2dArguments", pycutlass.Conv2dArguments, _conv),
    ):
        yield Call(name, make, keywords, _run)
        yield Call(f"{name}.update", _updating(keywords, make), _only(keywords, *update), _run)
    yield Call("GemmGroupedArguments", pycutlass.GemmGroupedArguments, _group, _run)
    yield Call("GemmGroupedArguments.update", _updating(_group, pycutlass.GemmGroupedArguments),
               _only(_group, "problem_sizes", *update), _run)  # fmt: skip
    yield Call("GemmGroupedArguments.from_device", pycutlass.GemmGroupedArguments.from_device, lambda: _tables())
    yield Call("ReductionArguments", pycutlass.ReductionArguments, _reduce, _run)
    yield Call("ReductionArguments.update", _updating(_reduce, pycutlass.ReductionArguments),
               lambda: {"A": _SPLIT.ptr_D, "B": None, "C": _f32(4, 8), "D": _f32(4, 8)}, _run)  # fmt: skip


def _tables() -> dict[str, Any]:
    signature = inspect.signature(pycutlass.GemmGroupedArguments.from_device)
    return {name: None for name in signature.parameters if name != "unknown"} | {"operation": GROUPED}


def _functions() -> Iterator[Call]:
    yield Call("conv2d_problem_size", pycutlass.conv2d_problem_size, lambda: {
        "x": _f32(1, 4, 4, 8), "w": _f32(8, 3, 3, 8), "stride": 1, "padding": (1, 1), "dilation": 1, "groups": 1,
        "mode": cutlass.conv.Mode.cross_correlation, "split_k_slices": 1}, repr)  # fmt: skip
    matrix = np.ones((32, 64), np.int8)
    for name in ("interleave_columns", "interleave_rows"):
        yield Call(name, getattr(pycutlass, name), lambda: {"matrix": matrix})
    yield Call("deinterleave_columns", pycutlass.deinterleave_columns,
               lambda: {"packed": matrix.reshape(-1), "rows": 32, "columns": 64})  # fmt: skip
    yield Call("reorder_column", pycutlass.reorder_column, lambda: {"packed": matrix.reshape(-1)})
    yield Call("reorder_filter", pycutlass.reorder_filter, lambda: {"tensor": matrix.reshape(-1)})
    use = {"operation": GEMM, "problem_size": (64, 64, 64), "sm_count": 4, "threadblocks": 1}
    yield Call("tile_use", pycutlass.tile_use, lambda: use)
    yield Call("tile_descriptions", pycutlass.tile_descriptions, lambda: {"like": GEMM, "compute_capability": 90})
    yield Call("get_memory_pool", pycutlass.get_memory_pool, lambda: {"init_pool_size": 0, "max_pool_size": 2**30})
    yield Call("device_cc", pycutlass.device_cc, lambda: {"device": 0})
    for name in ("get_allocated_size", "share_with_torch", "share_with_cupy"):
        yield Call(name, getattr(pycutlass, name), dict)
    from pycutlass import Conv2dReferenceModule, GemmKind, ReferenceModule, SubstituteTemplate

    row = pycutlass.TensorDescription(F32, ROW)
    nhwc = pycutlass.TensorDescription(F32, cutlass.TensorNHWC)
    yield Call("ReferenceModule", ReferenceModule, lambda: {"A": row, "B": row, "C": row})
    yield Call("Conv2dReferenceModule", Conv2dReferenceModule,
               lambda: {"A": nhwc, "B": nhwc, "C": nhwc, "kind": fprop})  # fmt: skip
    yield Call("ReferenceModule.run_", ReferenceModule(row, row, row).run, lambda: {
        "A": _f32(64), "B": _f32(128), "C": _f32(32), "problem_size": (4, 8, 16), "alpha": 1.0, "beta": 1.0,
        "bias": False, "batch": 1})  # fmt: skip
    yield Call("Conv2dReferenceModule.run_", Conv2dReferenceModule(nhwc, nhwc, nhwc, fprop).run, lambda: {
        "A": _f32(128), "B": _f32(576), "C": _f32(128), "problem_size": _SIZE, "alpha": 1.0, "beta": 1.0,
        "bias": False})  # fmt: skip
    yield Call("SubstituteTemplate", SubstituteTemplate, lambda: {"template": "${a}", "values": {"a": "b"}})
    yield Call("GemmKind", GemmKind, lambda: {"value": "gemm"})
    for name in ("set_allocator", "allocating_with"):
        yield Call(name, getattr(pycutlass, name), lambda: {"allocator": "rmm"})
    for name in ("TorchAllocator", "CupyAllocator"):
        yield Call(name, getattr(pycutlass, name), dict)
    for name in ("add_module", "compile_many"):
        yield Call(f"compiler.{name}", getattr(pycutlass.compiler, name),
                   lambda: {"operations": [GEMM], "target": "sm_80", "strict": False})  # fmt: skip
    yield Call("export", pycutlass.export, lambda: {
        "plan": GEMM, "path": "no_such_directory/out", "format": "cubin", "problem_size": (64, 64, 64),
        "target": "sm_80"})  # fmt: skip
    yield Call("export_library", pycutlass.export_library, lambda: {
        "plans": {"plan": pycutlass.Gemm(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))},
        "path": "no_such_directory/kernels.so", "extents": [1], "target": "sm_80"})  # fmt: skip
    yield Call("load_library", pycutlass.load_library, lambda: {"path": "no_such_directory/kernels.so"})
    yield Call("DeviceTimer", pycutlass.DeviceTimer, lambda: {
        "stream": None, "device": None, "cold_l2": False, "seconds": 0.0, "least_rounds": 1, "warmup": 0,
        "batch_seconds": 0.0, "queued": True})  # fmt: skip


def _extension() -> Iterator[Call]:
    """Classes and functions of the cutlass namespace: their signatures are read from their docstrings."""
    for space in (cutlass, cutlass.gemm, cutlass.conv):
        for name in space.__all__:
            member = getattr(space, name)
            if isinstance(member, type) and hasattr(member, "__members__"):
                yield Call(name, member, lambda member=member: {"value": next(iter(member)).value})
            elif isinstance(member, type):
                yield from _bound(f"{name}", member.__init__, member)
                instance = _instance(member)
                for method in vars(member):
                    if not method.startswith("_") and callable(getattr(instance, method)):
                        yield from _bound(f"{name}.{method}", getattr(instance, method))
                    elif not method.startswith("_"):
                        yield Call(f"{name}.{method} =", _setter(member, method), lambda: {"value": 1})
            elif callable(member):
                yield from _bound(name, member)


def _setter(kind: Any, attribute: str) -> Callable[..., Any]:
    def assign(value: Any) -> None:
        with contextlib.suppress(AttributeError):  # which cannot be set
            setattr(_instance(kind), attribute, value)

    return assign


_VALID: dict[str, Any] = {
    "padding: Tensor4DCoord": cutlass.Tensor4DCoord(1, 1, 1, 1),
    "stride: MatrixCoord": cutlass.MatrixCoord(1, 1),
    "dilation: MatrixCoord": cutlass.MatrixCoord(1, 1),
    "int": 1,
    "float": 2.0,
    "SupportsIndex": 1,
    "GemmCoord": cutlass.gemm.GemmCoord(128, 128, 8),
    "MatrixCoord": cutlass.MatrixCoord(32, 64),
    "Tensor4DCoord": cutlass.Tensor4DCoord(1, 4, 4, 32),
    "Tensor3DCoord": cutlass.Tensor3DCoord(8, 32, 128),
    "Operator": cutlass.conv.Operator.fprop,
    "Conv2dProblemSize": _SIZE,
    "Mode": cutlass.conv.Mode.convolution,
}
#: A parameter in a docstring of pybind11: its name, and the last of its types.
_PARAMETER = re.compile(r"[(,] ?(\w+): (?:[\w.]+ \| )*([\w.]+)")


def _bound(name: str, function: Any, call: Any = None) -> Iterator[Call]:
    for line in re.findall(r"^(?:\d+\. )?(\w*\(.*\))(?: -> .*)?$", function.__doc__ or "", re.MULTILINE):
        if "*args" in line:
            continue
        kinds = [(p, k.split(".")[-1]) for p, k in _PARAMETER.findall(line) if p != "self"]
        valid = {p: _VALID.get(f"{p}: {k}", _VALID.get(k)) for p, k in kinds}
        yield Call(name, call or function, lambda valid=valid: dict(valid))


def _instance(kind: Any) -> Any:
    for call in _bound("", kind.__init__, kind):
        return kind(**call.keywords())
    raise AssertionError(f"{kind} has no constructor")


def _calls() -> Iterator[Call]:
    yield from _described()
    yield from _operations()
    yield from _arguments()
    yield from _functions()
    yield from _extension()
    yield Call("MemoryPool", MemoryPool, lambda: {"ordinal": 0, "init_pool_size": -1, "max_pool_size": 4})


CALLS: list[Call] = list(_calls())
