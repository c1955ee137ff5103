"""A plan: which kernel computes a GEMM, made once and run with any tensors of the same kind."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pycutlass import _core, compiler
from pycutlass.calls import public
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.operation import GemmOperationUniversal
from pycutlass.plan import picture
from pycutlass.plan.added import Added, Addition
from pycutlass.plan.building import build_for
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.checking import checked
from pycutlass.plan.choices import Choices
from pycutlass.plan.forms import maker_of, new_tensor
from pycutlass.plan.kept import KeptLaunches, ResultForm
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import Wanted, check_epilogue, kind_of
from pycutlass.plan.launches import Launch
from pycutlass.plan.measured import generation
from pycutlass.plan.pick import Ranked, ranking
from pycutlass.plan.readings import (
    batches,
    checked_form,
    device_of,
    element_of,
    given_scalars,
    packed_form,
    place,
    size_of,
)
from pycutlass.spec import view_of
from pycutlass.tensor import wrap

__all__ = ["Gemm"]

_NONE: Mapping[str, Any] = MappingProxyType({})


@public
class Gemm:
    """A plan of D = epilogue(alpha * A x B + beta * C): the kernel for a kind of GEMM, and how it is launched.

    It is for one N and K and for any M: ranges of M have kernels of their own, which are chosen and compiled when they
    are first needed. Plans are safe for threads, and can be pickled and copied as a choice, without what was compiled.
    Tensors of torch are not kept alive; of other libraries those of a few last runs of each thread are, until
    `reset_operands` is called.

    Parameters
    ----------
    a, b : tensor or TensorSpec
        Of (M, K) and (K, N), or batches of them, of which either may be a single matrix.
    c : tensor or TensorSpec, optional
        What is added, of (M, N); a vector is a bias.
    alpha, beta : number
        The scalars. A `c` needs a `beta` other than 0.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function, with or without its types.
    epilogue_inputs : mapping, optional
        Tensors and scalars that it has beside C and D, by name: scalars are kept, tensors are given to `run` as well.
    out : tensor or TensorSpec, optional
        The result, which says the layout that is written; by default packed rows.
    out_dtype, accumulator_dtype : element type, optional
        What is written, and summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"`` (the default), ``"tf32"`` or ``"3xtf32"``.
    bias : tensor or TensorSpec, optional
        A vector of one number for each column, which is added before the activation, beside `c` or alone. Alone it is
        multiplied by `beta`, which is 1 if left out.

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
        alpha: Any = 1,
        beta: Any = 0,
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
        types = element_of("a", views["a"]), element_of("b", views["b"])
        of_a, of_b = checked_form("a", views["a"], types[0]), checked_form("b", views["b"], types[1])
        wanted = Wanted(epilogue, out_dtype, accumulator_dtype, precision)
        if out is not None:
            views["out"] = view_of("out", out)
            if out_dtype is None and not hasattr(epilogue, "output"):  # an epilogue with types has its own
                wanted = replace(wanted, out_dtype=element_of("out", views["out"]).tag)
        of_d = checked_form("out", views["out"], element_of("out", views["out"])) if out is not None else None
        of_d = of_d or packed_form(size[1], wanted.output(types[0]))
        views |= {name: view_of(name, each) for name, each in (("c", c), ("bias", bias)) if each is not None}
        addition = Addition.of(views, size, batch, of_d, epilogue, beta)
        self._added: Added = addition.added
        wanted = replace(wanted, epilogue=addition.epilogue)
        self.kind: GemmKind = kind_of(*types, (of_a, of_b, addition.of_c, of_d), wanted)
        self._size, self._batch, self._device = size, batch, device_of(views)
        self._scalars: dict[str, Any] = given_scalars(self.kind.epilogue, alpha, addition.beta, epilogue_inputs)
        self._choices = Choices(self.kind, size[1:], batch, self._device)
        self._start()

    def _start(self) -> None:
        """Make what a plan has for itself: it is neither pickled nor copied."""
        self._held: tuple[Any, Any, Any, Any] = (None, None, None, None)
        self._port_names = tuple(port.name for port in self.kind.epilogue.ports)
        self._launches = KeptLaunches(self._port_names)
        self._waiting = self._launches.waiting  # where C++ finds it

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
    def candidate(self) -> Candidate:
        """The kernel with the options of its launch, for the M that the plan was made with."""
        return self._choices.of(self._size[0])

    @property
    def operation(self) -> GemmOperationUniversal:
        """The kernel for the M that the plan was made with."""
        return self.candidate.operation

    def candidates(self) -> tuple[Ranked, ...]:
        """Return all kernels that take the problem, the likely fastest first."""
        return tuple(ranking(self.kind, *self._size, self._batch, self._choices.gpu))

    def explain(self) -> str:
        """Return, as text, which kernels were considered, what is predicted of them, and why one was chosen."""
        return picture.explained(self.candidate, self.candidates(), self._size, self._batch, self._choices.gpu)

    def compile(self) -> None:
        """Compile the kernel for the M that the plan was made with; `run` does so where it is not yet compiled."""
        compiler.add_module(self.candidate.kernels)

    def manifest(self) -> dict[str, Any]:
        """Return what has to be compiled for the values of M that were used so far, as `compiler.manifest` does."""
        self._choices.of(self._size[0])
        chosen = self._choices.made()
        return compiler.manifest(dict.fromkeys(kernel for each in chosen for kernel in each.kernels))

    def tune(self, budget: float | str = "60s", **options: Any) -> Any:
        """Measure which kernel is the fastest for the M that the plan was made with, as `pycutlass.tune` does.

        This plan, and others of the process, choose anew afterwards.

        Parameters
        ----------
        budget : float or str
            Seconds, or text such as ``"60s"``, ``"5min"`` or ``"1h"``.
        **options
            What `pycutlass.tune` takes besides.

        Returns
        -------
        ProblemReport
            The ranking.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            As `pycutlass.tune` raises.
        DeviceError
            There is no GPU.
        """
        tune = importlib.import_module("pycutlass.tuning").tune  # when it is asked for: it knows plans
        return tune(self, budget, **options)[0]

    def check(self, seed: int = 0) -> float:
        """Run the kernel on random numbers and compare D with the product in float64; look at what lies around D.

        Returns
        -------
        float
            The largest error, in parts of what a right kernel may have: at most 1.

        Raises
        ------
        ArgumentError
            D is wrong, or something was written beside it; or the epilogue has tensors of its own.
        """
        return checked(self, seed)

    def reset_operands(self, a: Any = None, b: Any = None, c: Any = None, out: Any = None) -> None:
        """Let go of all tensors, and keep these for a `run` that is given none."""
        self._held = (a, b, c, out)
        self._launches.forget_tensors()

    def run(
        self,
        a: Any = None,
        b: Any = None,
        c: Any = None,
        out: Any = None,
        stream: Any = None,
        epilogue_inputs: Mapping[str, Any] = _NONE,
        bias: Any = None,
    ) -> Any:
        """Compute D and return it.

        Parameters
        ----------
        a, b, c : tensor
            As the plan was made for, with any M. Without `a`, those of `reset_operands`.
        out : tensor, optional
            Where D is written; by default a new tensor in the library of `a`.
        stream : optional
            An integer handle, or a stream of torch, cupy or cuda.core; by default the current stream of the tensors'
            library.
        epilogue_inputs : mapping, optional
            Tensors that the epilogue has beside C and D, by name.
        bias : tensor, optional
            The bias of a plan that was made with one; it may be given as `c` where nothing else is added.

        Raises
        ------
        ArgumentError, ArgumentTypeError, AlignmentError
            Other shapes, types, strides or devices than the plan is for; nothing was launched.
        """
        if a is None:
            a, b, c, held = self._held
            out = held if out is None else out
        c, epilogue_inputs = self._checked(a, b, c, bias, epilogue_inputs)
        form, kept = self._launches.begin(a)
        if out is None and form is not None:
            out = self._new(a, form)
        if self._launches.run_waiting((a, b, c, out), stream, epilogue_inputs):
            return out
        if kept is None or kept.is_of_graph(stream):
            return self._first(a, b, c, out, stream, epilogue_inputs)
        try:
            kept.exchange(a, b, c, out, epilogue_inputs)
        except PyCutlassError:  # the first launch says better what does not fit, if it does not fit there either
            return self._first(a, b, c, out, stream, epilogue_inputs)
        kept.run(stream)
        kept.finish()
        return out

    __call__ = run

    def run_once(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        stream: Any = None,
        epilogue_inputs: Mapping[str, Any] = _NONE,
        bias: Any = None,
    ) -> Any:
        """Compute D as `run` does, and keep no tensor: for tensors that are not seen again."""
        c, epilogue_inputs = self._checked(a, b, c, bias, epilogue_inputs)
        if self._launches.run_waiting((a, b, c, out), stream, epilogue_inputs):
            return out
        return self._first(a, b, c, out, stream, epilogue_inputs, with_tensors=False)

    # How they are done

    def _first(
        self, a: Any, b: Any, c: Any, out: Any, stream: Any, ports: Mapping[str, Any], with_tensors: bool = True
    ) -> Any:
        """Compute D with a launch that is made now, and kept for the next tensors of these shapes."""
        view_a, view_b = wrap("a", a), wrap("b", b)
        size, batch = size_of(view_a, view_b)
        if size[1:] != self._size[1:] or batch != self._batch:
            raise ArgumentError(
                f"this plan is for N={self._size[1]}, K={self._size[2]} and {batches(self._batch)}; got "
                f"N={size[1]}, K={size[2]} and {batches(batch)}: make another plan"
            )
        for name, view, described in (("a", view_a, self.kind.A), ("b", view_b, self.kind.B)):
            if view.dtype_name != described.type.dtype_name:
                raise ArgumentError(
                    f"this plan is for {name} of {described.type.dtype_name}, got {view.dtype_name}: convert it, or "
                    f"make another plan"
                )
        here = device_of({"a": view_a, "b": view_b})
        if here != self._device:
            raise ArgumentError(f"this plan is for {place(self._device)}, and a is on {place(here)}: make another plan")
        shape: tuple[int, ...] = (size[0], self.kind.epilogue.columns(size[1]))
        shape = shape if batch is None else (batch, *shape)
        # Only the shapes of the view are needed, and it would keep the first operand alive.
        form = replace(view_a, owner=None), shape
        if out is None:
            out = self._new(a, form)
        chosen_in = generation.number
        candidate = self._compiled(size[0])
        problem = candidate.size(*size, batch)
        tensors = a, b, c, out
        launch = Launch(candidate, problem, tensors, self._scalars, ports)
        launch.run(stream)
        launch.finish()
        make = maker_of(a, view_a, shape, self.kind.D.type.dtype_name) if self.kind.D.is_row_major else None
        self._launches.keep(launch, tensors, stream, ports, form, make, chosen_in, with_tensors)
        return out

    def _new(self, a: Any, form: ResultForm) -> Any:
        """Return memory for D, packed, in the library of `a`."""
        view, shape = form
        name = self.kind.D.type.dtype_name
        if self.kind.D.is_row_major:
            return new_tensor(a, view, shape, name)
        turned = new_tensor(a, view, (*shape[:-2], shape[-1], shape[-2]), name)
        return turned.swapaxes(-1, -2)

    def _compiled(self, m: int) -> Candidate:
        """Return the candidate for `m`, with what runs on the GPU where there is one."""
        candidate = self._choices.of(m)
        for kernel in candidate.kernels:
            kernel._is_compiled_when_used = True
        if self._device is not None:
            build_for(candidate.kernels, self._device)
        return candidate

    def _checked(self, a: Any, b: Any, c: Any, bias: Any, ports: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """Return C and the tensors of the epilogue; raise for what is missing, or would not be read."""
        if a is None or b is None:
            raise ArgumentError("a and b are missing: give them to run, or to reset_operands before it")
        c, placed = self._added.placed(c, bias, ports)
        if len(placed) != len(self._port_names):
            names = ", ".join(self._port_names) or "none"
            raise ArgumentError(
                f"the epilogue of this plan has the tensors {names}; epilogue_inputs has {', '.join(ports) or 'none'}"
            )
        return c, placed

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.kind, self._size, self._batch, self._device, self._scalars, self._added)
        return _restored, (*state, *self._choices.state())

    def __repr__(self) -> str:
        m, n, k = self._size
        return f"<Gemm of {m}x{n}x{k} (M x N x K), {batches(self._batch)}, on {place(self._device)}>"


if not TYPE_CHECKING:  # to type checkers they are functions
    Gemm.run = Gemm.__call__ = _core.fast_plan_run(Gemm.run)
    Gemm.run.__set_name__(Gemm, "run")


def _restored(
    kind: Any, size: Any, batch: Any, where: Any, scalars: Any, added: Added, chosen: Any, measured: Any
) -> Gemm:
    """Return the plan that was pickled or copied, with what was chosen."""
    plan = Gemm.__new__(Gemm)
    plan.kind, plan._size, plan._batch, plan._device = kind, size, batch, where
    plan._scalars, plan._added = scalars, added
    plan._choices = Choices(kind, size[1:], batch, where, chosen, measured)
    plan._start()
    return plan
