"""What a plan adds to a product, C and a bias, and where its kernel has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycutlass.errors import ArgumentError
from pycutlass.plan.composed import Composed, composed
from pycutlass.plan.forms import Form
from pycutlass.plan.readings import about_c, form_of_c, is_number, needs_source
from pycutlass.tensor import TensorView

__all__ = ["Added", "Addition", "check_bias", "source_of"]


@dataclass(frozen=True)
class Added:
    """What a run of a plan is given to add, and where it goes.

    Attributes
    ----------
    reads_c : bool
        Whether the kernel reads C.
    takes_c : bool
        Whether a matrix is added.
    bias : str
        Where a bias is: ``"c"``, which kernels read as equal rows where they write rows, ``"port"`` for a tensor of
        the epilogue, or ``""``.
    """

    reads_c: bool
    takes_c: bool
    bias: str = ""

    def placed(self, c: Any, bias: Any, ports: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """Return C and the tensors of the epilogue for what a run is given.

        Raises
        ------
        ArgumentError
            Something that is missing, or that would not be read.
        """
        if self.bias and not self.takes_c and bias is None:  # a vector may be called either
            c, bias = None, c
        for name, given, is_taken in (("c", c, self.takes_c), ("bias", bias, bool(self.bias))):
            if (given is not None) is not is_taken:
                has = f"reads {name}, and none is given" if is_taken else f"was made without {name}, and one is given"
                raise ArgumentError(
                    f"this plan {has}: make another plan, or {f'give {name}' if is_taken else 'leave it out'}"
                )
        if self.bias == "c":
            return bias, ports
        return c, {**ports, "bias": bias} if self.bias else ports


@dataclass(frozen=True)
class Addition:
    """What is added when a plan is made.

    Attributes
    ----------
    added : Added
        For its runs.
    epilogue, beta
        Of the kernel.
    of_c : Form or None
        Of the C that the kernel reads.
    """

    added: Added
    epilogue: Any
    beta: Any
    of_c: Form | None

    @classmethod
    def of(
        cls,
        views: Mapping[str, TensorView],
        size: tuple[int, int, int],
        batch: int | None,
        of_d: Form,
        epilogue: Any,
        beta: Any,
    ) -> Addition:
        """Return what is made of `views`, in which c and bias may be.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            They do not fit the product, or would not be read.
        """
        c, bias = views.get("c"), views.get("bias")
        if bias is not None:
            check_bias(bias, size[1])
            beta = 1 if c is None and is_number(beta, 0) else beta
        if c is not None and c.shape is not None and len(c.shape) == 1:
            if bias is not None:
                raise ArgumentError("c is a vector, and so a bias, and bias is another one: add them, and give the sum")
            check_bias(c, size[1], "c is a vector, and so a bias; ")
            c, bias = None, c
        takes_c, source = c is not None, bias if c is None else c
        is_composed = isinstance(epilogue, Composed)  # of scales, to which all is added
        if (source is not None) != needs_source(None if is_composed else epilogue, beta):
            raise ArgumentError(about_c(source, beta))
        if source is None or (not is_composed and (bias is None or (c is None and of_d.is_row_major))):
            of_c = None if source is None else form_of_c(source, size, batch, of_d)
            return cls(Added(source is not None, takes_c, "" if bias is None else "c"), epilogue, beta, of_c)
        what = "c and bias" if takes_c else "out, whose columns are adjacent, and a bias"
        made = composed(epilogue, what=what, reads_c=takes_c, has_bias=bias is not None)
        of_c = None if c is None else form_of_c(c, size, batch, of_d)
        return cls(Added(takes_c, takes_c, "" if bias is None else "port"), made, beta, of_c)


def source_of(epilogue: Any, reads_c: bool, is_bias: bool) -> str | None:
    """Return what the database calls the C of a functor, ``"matrix"`` or ``"bias"``; None where none is read.

    None also of functions that always read C: their graph says so.
    """
    if not reads_c or epilogue.reads_source is not None:
        return None
    return "bias" if is_bias else "matrix"


def check_bias(bias: TensorView, columns: int, begin: str = "", line: str = "column") -> None:
    """Raise ArgumentError unless this is a vector of one number for each column, which `line` calls otherwise."""
    if bias.shape is None or len(bias.shape) != 1:
        raise ArgumentError(f"{begin}bias must be a vector of one number for each {line}, got shape {bias.shape}")
    if bias.shape != (columns,):
        raise ArgumentError(f"{begin}a bias has one number for each of {columns} {line}s, got shape {bias.shape}")
