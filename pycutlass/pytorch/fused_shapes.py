"""Shapes of what an epilogue reads and writes, by the names of the function, and tensors as kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pycutlass.calls import counted
from pycutlass.errors import ArgumentError
from pycutlass.plan.spans import extent_in_memory
from pycutlass.pytorch.handles import Fused, Read, Written
from pycutlass.pytorch.shapes import element_of_operand
from pycutlass.pytorch.targets import Expected
from pycutlass.tensor import wrap

__all__ = [
    "Extents",
    "check_reads",
    "check_results",
    "expected_results",
    "folded",
    "given_scalars",
    "is_aligned",
    "laid",
    "read_in_place",
    "result_shape",
    "unfolded",
    "with_adjacent_k",
]

Tensor = torch.Tensor
_ACCESS = 16  # bytes of the widest access of a kernel
#: Results of a stack whose matrices are multiplied as one: there is one for each row.
_BY_ROWS = ("matrix", "column", "top_k")


@dataclass(frozen=True)
class Extents:
    """Extents of a product, of which some may be symbols.

    Attributes
    ----------
    batch : tuple
        Number of matrices, () where there is no batch.
    rows, columns : int
        Of the accumulator: of a convolution pixels and channels.
    images : tuple
        Shape of the result of a convolution, (N, K, P, Q); () of products.
    """

    batch: tuple[Any, ...]
    rows: Any
    columns: Any
    images: tuple[Any, ...] = ()

    def shapes(self, read: Read) -> tuple[tuple[Any, ...], ...]:
        """Return the shapes that a tensor may have."""
        columns = self.columns // 2 if read.halved else self.columns
        of_one = {"row": (columns,), "column": (self.rows,), "number": (1,)}.get(read.form, (self.rows, columns))
        if self.images and read.form in ("matrix", "source"):
            of_one = self.images
        bias = ((columns,),) if read.form == "source" else ()
        of_all = self.batch if read.form == "number" else (*self.batch, *of_one)
        return (of_one, *((of_all,) if self.batch else ()), *bias)


def check_reads(made: Fused, tensors: list[Tensor], extents: Extents) -> None:
    """Raise ArgumentError unless tensors are those of the epilogue, in order."""
    if len(tensors) != len(made.reads):
        names = ", ".join(each.name for each in made.reads) or "none"
        raise ArgumentError(
            f"the epilogue reads {counted(len(made.reads), 'tensor')}, {names}, and {len(tensors)} are "
            f"given: pass tensors in the order of the function's parameters"
        )
    for number, (read, tensor) in enumerate(zip(made.reads, tensors, strict=True)):
        name, shape = f"tensors[{number}], {read.name} of the epilogue,", tuple(tensor.shape)
        wanted = extents.shapes(read)
        if shape not in wanted:
            raise ArgumentError(
                f"{name} must be of {' or '.join(map(str, wanted))}, a {_CALLED[read.form]}; got {shape}"
            )
        dtype = torch.uint8 if tensor.dtype is torch.bool and read.dtype is None else tensor.dtype
        if read.dtype is None:
            element_of_operand(f"tensors[{number}]", dtype)
        elif dtype is not read.dtype and not (dtype is torch.bool and read.dtype in (torch.int8, torch.uint8)):
            whose = "the result" if read.form == "source" else "the function"
            raise ArgumentError(f"{name} is of {dtype}, and {whose} has {read.dtype} there: pass it.to({read.dtype})")


def check_memory(operands: dict[str, Tensor], tensors: list[Tensor]) -> None:
    """Raise ArgumentError or ArgumentTypeError for a tensor without memory, before anything makes another one of it."""
    for name, each in {**operands, **{f"tensors[{at}]": each for at, each in enumerate(tensors)}}.items():
        elements = each.storage_offset() + extent_in_memory(each)
        if each.is_meta or elements * each.element_size() > each.untyped_storage().nbytes():
            wrap(name, each)  # which says so


_CALLED = {
    "row": "Row with an element for each column",
    "column": "Column with an element for each row",
    "matrix": "Tensor of the extents of the result",
    "number": "PerBatch with a number for each matrix",
    "source": "Source, which is operand C",
}


def given_scalars(made: Fused, scalars: Any) -> dict[str, float]:
    """Return the scalars that are given, by name; raise ArgumentError where one is missing, or there are more.

    Plans know the defaults of the others, and whether the type that is computed in holds them.
    """
    if len(scalars) > len(made.scalars) or any(default is None for _, default in made.scalars[len(scalars) :]):
        names = ", ".join(
            name if default is None else f"{name} (by default {default:g})" for name, default in made.scalars
        )
        raise ArgumentError(
            f"the epilogue has {counted(len(made.scalars), 'scalar')}{', ' if names else ''}{names}, and "
            f"{len(scalars)} are given: pass scalars in the order of the function's parameters"
        )
    return dict(zip((name for name, _ in made.scalars), scalars, strict=False))


def result_shape(written: Written, extents: Extents) -> tuple[Any, ...]:
    """Return the shape of a result."""
    rows, columns = extents.rows, extents.columns // 2 if written.halved else extents.columns
    of_one = {
        "row": (columns,),
        "column": (rows,),
        "scalar": (1,),
        "row_tiles": (rows * -(-columns // max(written.extent, 1)),),
        "column_tiles": (columns * -(-rows // max(written.extent, 1)),),
        "top_k": (rows, written.extent),
    }.get(written.form, (rows, columns))
    return (*extents.batch, *of_one)


def expected_results(made: Fused, extents: Extents) -> list[Expected]:
    """Return what an operator would return."""
    results = []
    for each in made.writes:
        are_images = bool(extents.images) and each.form == "matrix"
        shape = extents.images if are_images else result_shape(each, extents)
        is_matrix = each.form in ("matrix", "top_k")
        results.append(Expected(f", {each.name} of the epilogue,", shape, each.dtype, are_images, is_matrix))
    return results


def read_in_place(made: Fused, tensors: list[Tensor]) -> list[tuple[int, Tensor]]:
    """Return the number of D with each tensor that may be the same memory: an element is read before it is written."""
    number = made.writes.index(made.output)
    return [
        (number, tensor)
        for read, tensor in zip(made.reads, tensors, strict=True)
        if read.form in ("matrix", "source") and read.halved is made.output.halved
    ]


def check_results(made: Fused, extents: Extents) -> None:
    """Raise ArgumentError for a product without elements whose results are to be made of them."""
    sizes = (*extents.batch, extents.rows, extents.columns)
    if all(sizes):
        return
    for each in made.writes:
        if all(result_shape(each, extents)):
            raise ArgumentError(
                f"{each.name} of the epilogue is made of many elements, and a result of "
                f"{extents.images or sizes} has none: leave such calls out"
            )


def folded(
    made: Fused, a: Tensor, b: Tensor, tensors: list[Tensor], extents: Extents
) -> tuple[Tensor, Tensor, list[Tensor], Extents]:
    """Return a batch as kernels take it: one matrix of all rows where that means the same, which is faster.

    Of a batch of one, the matrix is taken out.
    """
    (batch,), rows = extents.batch, extents.rows
    if batch == 1:
        alone = [_of_one(read, tensor, extents) for read, tensor in zip(made.reads, tensors, strict=True)]
        return a.reshape(a.shape[-2:]), b.reshape(b.shape[-2:]), alone, Extents((), rows, extents.columns)
    if b.dim() == 3 and b.shape[0] == 1:
        b = b[0]
    is_one = b.dim() == 2 and a.dim() == 3 and all(each.form in _BY_ROWS for each in made.writes)
    if is_one and all(_goes_by_rows(read, tensor) for read, tensor in zip(made.reads, tensors, strict=True)):
        pieces = [
            each if read.form in ("row", "number") or each.dim() == 1 else each.flatten(0, 1)
            for read, each in zip(made.reads, tensors, strict=True)
        ]
        return a.flatten(0, 1), b, pieces, Extents((), batch * rows, extents.columns)
    return a.expand(batch, *a.shape[-2:]), b.expand(batch, *b.shape[-2:]), tensors, extents


def _of_one(read: Read, tensor: Tensor, extents: Extents) -> Tensor:
    """Return the tensor of the only matrix of a batch."""
    shape = extents.shapes(read)[0]
    return tensor if tensor.dim() <= len(shape) else tensor.reshape(shape)


def _goes_by_rows(read: Read, tensor: Tensor) -> bool:
    """Return whether a tensor goes with the rows of all matrices one after the other."""
    if read.form in ("row", "number"):
        return tensor.dim() == 1 and (read.form == "row" or tensor.shape[0] == 1)
    if read.form == "source" and tensor.dim() == 1:  # a bias
        return True
    return tensor.dim() == (2 if read.form == "column" else 3)


def with_adjacent_k(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of 8 bits as tensor cores read them, copied where elements of K are not adjacent.

    Kernels of int8 for CUDA cores read others, and neither reduce nor combine pairs of columns.
    """
    return a if a.stride(-1) == 1 else a.contiguous(), b if b.stride(-2) == 1 else b.mT.contiguous().mT


def unfolded(result: Tensor, written: Written, extents: Extents) -> Tensor:
    """Return a result in its shape, which it had not where matrices of a batch were multiplied as one."""
    return result.view(result_shape(written, extents))


def laid(read: Read, tensor: Tensor, extents: Extents) -> Tensor:
    """Return a tensor as kernels read it: a copy of one whose elements are not adjacent, or whose rows not aligned."""
    if tensor.dtype is torch.bool:
        tensor = tensor.view(torch.uint8 if read.dtype is None else read.dtype)
    if read.form == "source":  # which products copy where they must
        return tensor.expand(*extents.batch, *tensor.shape) if tensor.dim() == 2 else tensor
    if read.form != "matrix":
        return tensor.contiguous()
    if tensor.dim() == 4:
        tensor = tensor.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        return tensor if is_aligned(tensor) else tensor.clone(memory_format=torch.preserve_format)
    aligned = _ACCESS // tensor.element_size()
    by_rows = tensor.stride(-1) == 1 and tensor.stride(-2) >= tensor.shape[-1] and tensor.stride(0) > 0
    is_padded = by_rows and all(step % aligned == 0 for step in tensor.stride()[:-1])
    if is_aligned(tensor) and (is_padded or tensor.is_contiguous()):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def is_aligned(tensor: torch.Tensor) -> bool:
    """Return whether a kernel can load what is at the beginning; in an export, where nothing is, libraries check it."""
    return torch.compiler.is_exporting() or tensor.data_ptr() % _ACCESS == 0
