"""What a plan adds to a product, C and a bias, and where its kernel has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan.composed import Composed, composed
from pycutlass.plan.forms import Form
from pycutlass.plan.readings import about_c, form_of_c, is_usual, needs_source
from pycutlass.tensor import TensorView
from pycutlass.types import Element, element_of_dtype

__all__ = ["Added", "Addition", "check_added_type", "check_bias", "source_of", "told_apart"]


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
                what = (
                    f"give {name}, or make a plan without it"
                    if is_taken
                    else f"make a plan with {name}, or leave it out"
                )
                raise ArgumentError(f"this plan {has}: {what}")
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
        Of the C that the kernel of a GEMM reads.
    """

    added: Added
    epilogue: Any
    beta: Any
    of_c: Form | None = None

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
        """Return what is made of the `views` of a GEMM, in which c and bias may be.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            They do not fit the product, or would not be read.
        """
        c, bias = told_apart(views.get("c"), views.get("bias"))
        if bias is not None:
            check_bias(bias, size[1], "" if "bias" in views else "c is a vector, and so a bias; ")
        made = cls.decided(c is not None, bias is not None, epilogue, beta, of_d.is_row_major)
        source = c if made.added.takes_c else bias if made.added.reads_c else None
        return made if source is None else replace(made, of_c=form_of_c(source, size, batch, of_d))

    @classmethod
    def decided(
        cls, has_c: bool, has_bias: bool, epilogue: Any, beta: Any, by_rows: bool = True, name: str = "c"
    ) -> Addition:
        """Return where a kernel has C and a bias, and its epilogue and beta.

        Parameters
        ----------
        has_c, has_bias : bool
            What is given.
        epilogue, beta
            As the caller gives them.
        by_rows : bool
            Whether D lies by rows, along which a bias can be read as C.
        name : str
            What the caller calls C.

        Raises
        ------
        ArgumentError
            They would not be read, or are missing; or the epilogue has no place for both.
        """
        is_composed = isinstance(epilogue, Composed)  # of scales, to which all is added
        own = None if is_composed else epilogue
        if has_bias and not has_c and is_usual(beta, 0) and not needs_source(own, beta):
            beta = 1
        is_given = has_c or has_bias
        if is_given != needs_source(own, beta):
            raise ArgumentError(about_c(is_given, beta, epilogue, "bias" if has_bias and not has_c else name))
        if not is_given or (not is_composed and not (has_bias and (has_c or not by_rows))):
            return cls(Added(is_given, has_c, "c" if has_bias else ""), epilogue, beta)
        what = f"{name} and bias" if has_c else "out, whose columns are adjacent, and a bias"
        made = composed(epilogue, what=what, reads_c=has_c, has_bias=has_bias)
        return cls(Added(has_c, has_c, "port" if has_bias else ""), made, beta)


def told_apart(c: TensorView | None, bias: TensorView | None) -> tuple[TensorView | None, TensorView | None]:
    """Return C and the bias that is meant: a C that is a vector is a bias.

    Raises
    ------
    ArgumentError
        Two biases.
    """
    if c is None or c.shape is None or len(c.shape) != 1:
        return c, bias
    if bias is not None:
        raise ArgumentError("c is a vector, and so a bias, and bias is another one: add them, and give the sum")
    return None, c


def source_of(epilogue: Any, reads_c: bool, is_bias: bool) -> str | None:
    """Return what the database calls the C of a functor, ``"matrix"`` or ``"bias"``; None where none is read.

    None also of functions that always read C: their graph says so.
    """
    if not reads_c or epilogue.reads_source is not None:
        return None
    return "bias" if is_bias else "matrix"


def check_added_type(name: str, view: TensorView | None, out: Element) -> None:
    """Raise ArgumentTypeError where what is added is not of the type of the result, as which kernels read it."""
    if view is not None and view.dtype_name is not None and view.dtype_name != out.dtype_name:
        name = "bias" if len(view.shape or ()) == 1 else name  # a vector may be called either
        like = element_of_dtype(view.dtype_name)
        raise ArgumentTypeError(
            f"{name} is {view.dtype_name} and the result {out.dtype_name}: convert {name} to {out.dtype_name}, or pass "
            f"out_dtype{'' if like is None else f'={like}'}"
        )


def check_bias(bias: TensorView, columns: int, begin: str = "", line: str = "column") -> None:
    """Raise ArgumentError unless this is a contiguous vector of one number for each column, or `line`."""
    if bias.shape is None or len(bias.shape) != 1:
        raise ArgumentError(f"{begin}bias must be a vector of one number for each {line}, got shape {bias.shape}")
    if bias.shape != (columns,):
        raise ArgumentError(f"{begin}a bias has one number for each of {columns} {line}s, got shape {bias.shape}")
    if columns > 1 and bias.strides != (1,):
        raise ArgumentError(
            f"{begin}a bias must be contiguous, and this one has strides {bias.strides}: pass a contiguous copy, or "
            f"allow_copy=True to the function that makes the plan"
        )
