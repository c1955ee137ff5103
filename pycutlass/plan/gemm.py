"""A plan: which kernel computes a GEMM, made once and run with any tensors of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pycutlass.calls import public
from pycutlass.errors import ArgumentError
from pycutlass.operation import GemmOperationUniversal
from pycutlass.plan import picture
from pycutlass.plan.added import Added, Addition, check_added_type
from pycutlass.plan.base import Plan
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.candidates import candidates
from pycutlass.plan.checking import checked
from pycutlass.plan.choices import Choices
from pycutlass.plan.forms import lies, maker_of, new_tensor
from pycutlass.plan.kept import ResultForm
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import Wanted, check_columns, check_epilogue, columns_of, decisive, is_gated, kind_of
from pycutlass.plan.launches import Launch
from pycutlass.plan.pick import Ranked, pick, ranking, refused
from pycutlass.plan.readings import (
    batches,
    check_ports,
    checked_form,
    device_of,
    element_of,
    given_scalars,
    named_inputs,
    packed_form,
    place,
    size_of,
)
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView

__all__ = ["Gemm", "gemm_of_kind"]

_BYTE = 8  # bits
_Size = tuple[int, int, int]


@public
class Gemm(Plan[Candidate, _Size]):
    """A plan of D = epilogue(alpha * A x B + beta * C): the kernel for a kind of GEMM, and how it is launched.

    It is for one N and K and for any M: ranges of M have kernels of their own, which are chosen and compiled when they
    are first needed. Plans are safe for threads, can be pickled and copied as a choice, without what was compiled, and
    keep the tensors of a few last runs of each thread alive until `reset_operands` is called.

    Parameters
    ----------
    a, b : tensor or TensorSpec
        Of (M, K) and (K, N), or batches of them, of which either may be a single matrix.
    c : tensor or TensorSpec, optional
        What is added, of (M, N); a vector is a bias.
    alpha, beta : number, optional
        The scalars: 1 and 0 if left out, or what an epilogue function has as its defaults. A `c` needs a `beta` other
        than 0.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function, with or without its types.
    epilogue_inputs : mapping, optional
        Tensors and scalars that it has beside C and D, by name: scalars are kept. Tensors are checked, and given to
        `run` as well; a TensorSpec stands for one.
    out : tensor or TensorSpec, optional
        The result, which says the layout that is written; by default packed rows.
    out_dtype, accumulator_dtype : element type, optional
        What is written, and summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"`` (the default), ``"tf32"`` or ``"3xtf32"``.
    bias : tensor or TensorSpec, optional
        A vector of one number for each column, which is added beside `c` or alone, as `matmul` adds it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Tensors that do not fit each other, or for which there is no kernel; the message names the remedy.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> a, b = np.ones((4, 16), np.float16), np.ones((16, 8), np.float16)
    >>> plan = pycutlass.Gemm(a, b)
    >>> float(plan.run(a, b)[0, 0])
    16.0
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        *,
        alpha: Any = None,
        beta: Any = None,
        epilogue: Any = None,
        epilogue_inputs: Mapping[str, Any] | None = None,
        out: Any = None,
        out_dtype: Any = None,
        accumulator_dtype: Any = None,
        precision: str | None = None,
        bias: Any = None,
    ) -> None:
        check_epilogue(epilogue)
        views = {"a": view_of("a", a), "b": view_of("b", b)}
        size, batch = size_of(views["a"], views["b"])
        check_columns(epilogue, size[1])
        types = element_of("a", views["a"]), element_of("b", views["b"])
        # A vector lies either way: of 8 bits, most kernels take elements of K that are adjacent.
        either = (True if types[0].bits == _BYTE else None, False if types[1].bits == _BYTE else None)
        of_a, of_b = (checked_form(*each) for each in zip("ab", (views["a"], views["b"]), types, either, strict=True))
        wanted = Wanted(epilogue, out_dtype, accumulator_dtype, precision)
        if out is not None:
            views["out"] = view_of("out", out)
            of_out = element_of("out", views["out"])
            wanted = wanted.into(of_out)
        views |= {name: view_of(name, each) for name, each in (("c", c), ("bias", bias)) if each is not None}
        of_d = packed_form(columns_of(epilogue)(size[1]), wanted.output(decisive(*types)))
        if out is not None:
            of_d = checked_form("out", views["out"], of_out, _by_rows_if_either(views, epilogue))
        for name in ("c", "bias"):
            check_added_type(name, views.get(name), wanted.output(decisive(*types)))
        addition = Addition.of(views, size, batch, of_d, epilogue, beta)
        self._added = addition.added
        wanted = replace(wanted, epilogue=addition.epilogue)
        self.kind: GemmKind = kind_of(*types, (of_a, of_b, addition.of_c, of_d), wanted)
        self._size, self._batch, self._device = size, batch, device_of(views)
        self._scalars = given_scalars(self.kind.epilogue, alpha, addition.beta, epilogue_inputs)
        check_ports(self.kind.epilogue, self.kind.D, named_inputs(epilogue_inputs), size[:2], batch or 1)
        self._choices = Choices(self.kind, size[1:], batch, self._device, self.source)
        self._check_layouts()
        self._start()

    # What users ask of a plan

    @property
    def size(self) -> tuple[int, int, int]:
        """M, N and K that the plan was made with."""
        return self._size

    @property
    def batch(self) -> int | None:
        """Number of matrices, where the plan is for a batch."""
        return self._batch

    @property
    def operation(self) -> GemmOperationUniversal:
        """The kernel for the M that the plan was made with."""
        return self.candidate.operation

    def candidates(self) -> tuple[Ranked[Candidate], ...]:
        """Return all kernels that take the problem, the likely fastest first."""
        return tuple(ranking(self.kind, *self._size, self._batch, self._choices.gpu))

    def explain(self) -> str:
        """Return, as text, which kernels were considered, what is predicted of them, and why one was chosen."""
        problem, gpu = (*self._size, self._batch), self._choices.gpu
        others = refused(self.kind, *problem, gpu)
        return picture.explained(
            *(self.candidate, self.candidates(), others, self._size, self._batch, gpu),
            why=self._choices.why(self._extent, "M"),
            kind=self.kind,
        )

    def check(self, seed: int = 0) -> float:
        """Run the kernel on random numbers and compare D with the product in float64; look at what lies around D.

        Returns
        -------
        float
            The largest error as a share of what rounding explains: at most 1.

        Raises
        ------
        ArgumentError
            D is wrong, or something was written beside it; or the epilogue has tensors of its own.
        """
        return checked(self, seed)

    # How it is done

    def _check_layouts(self) -> None:
        """Raise ArgumentError where C lies otherwise than D, and no kernel is for that."""
        if self.kind.C.layout is self.kind.D.layout:
            return
        gpu = self._choices.gpu
        if not candidates(self.kind, gpu.compute_capability, self._batch is not None):
            pick(self.kind, *self._size, self._batch, gpu)  # which says so

    @property
    def _extent(self) -> int:
        return self._size[0]

    def _problem_of(self, a: Any, b: Any, view_a: TensorView, view_b: TensorView) -> tuple[_Size, int]:
        size, batch = size_of(view_a, view_b)
        if size[1:] != self._size[1:] or batch != self._batch:
            raise ArgumentError(
                f"this plan is for N={self._size[1]}, K={self._size[2]} and {batches(self._batch)}; got "
                f"N={size[1]}, K={size[2]} and {batches(batch)}: make another plan"
            )
        return size, size[0]

    def _output_shape(self, problem: _Size) -> tuple[int, ...]:
        shape = problem[0], self.kind.epilogue.columns(problem[1])
        return shape if self._batch is None else (self._batch, *shape)

    def _launch(
        self, candidate: Candidate, problem: _Size, tensors: tuple[Any, Any, Any, Any], ports: Mapping[str, Any]
    ) -> Launch:
        return Launch(candidate, candidate.size(*problem, self._batch), tensors, self._scalars, ports)

    def _new(self, a: Any, like: ResultForm) -> Any:
        """Return memory for D, packed, in the library of `a`."""
        view, shape = like
        name = self.kind.D.type.dtype_name
        if self.kind.D.is_row_major:
            return new_tensor(a, view, shape, name)
        turned = new_tensor(a, view, (*shape[:-2], shape[-1], shape[-2]), name)
        return turned.swapaxes(-1, -2)

    def _maker(self, a: Any, like: ResultForm) -> Callable[[], Any] | None:
        return maker_of(a, *like, self.kind.D.type.dtype_name) if self.kind.D.is_row_major else None

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.kind, self._size, self._batch, self._device, self._scalars, self._added)
        return _restored, (*state, *self._choices.state())

    def __repr__(self) -> str:
        m, n, k = self._size
        return f"<Gemm of {m}x{n}x{k} (M x N x K), {batches(self._batch)}, on {place(self._device)}>"


def _by_rows_if_either(views: Mapping[str, TensorView], epilogue: Any) -> bool | None:
    """Return how a D of a single row or column is taken, which lies either way; None where nothing asks for one.

    A bias, and pairs of columns, are read along rows. A C is read as D is written.
    """
    c = views.get("c")
    if "bias" in views or is_gated(epilogue) or (c is not None and len(c.shape or ()) == 1):
        return True
    return None if c is None or c.shape is None else lies(c, True)


def _restored(
    kind: Any, size: Any, batch: Any, where: Any, scalars: Any, added: Added, chosen: Any, measured: Any
) -> Gemm:
    """Return the plan that was pickled or copied, with what was chosen."""
    plan = Gemm.__new__(Gemm)
    plan.kind, plan._size, plan._batch, plan._device = kind, size, batch, where
    plan._scalars, plan._added = scalars, added
    plan._choices = Choices(kind, size[1:], batch, where, plan.source, chosen, measured)
    plan._start()
    return plan


def gemm_of_kind(kind: GemmKind, size: Any, batch: Any, where: int | None, scalars: Any, added: Added) -> Gemm:
    """Return the plan of a problem whose kind is known, as `Gemm` makes it of tensors."""
    return _restored(kind, size, batch, where, scalars, added, {}, {})
