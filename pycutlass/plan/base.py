"""What plans of all families do the same way: scalars, runs, what is kept of them, copies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pycutlass import _core, compiler
from pycutlass.calls import public
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.operands.epilogue import port_views
from pycutlass.operands.overlaps import renamed
from pycutlass.plan.added import Added, check_bias, source_of
from pycutlass.plan.building import build_for, compile_for
from pycutlass.plan.choices import Chosen
from pycutlass.plan.gradients import check_gradients, kept_scalars, tensors_among
from pycutlass.plan.kept import KeptLaunches, ResultForm
from pycutlass.plan.launches import PlanLaunch
from pycutlass.plan.measured import generation
from pycutlass.plan.misfits import misfit
from pycutlass.plan.predicted import Ranked
from pycutlass.plan.readings import about_ports, device_of, named_inputs, place
from pycutlass.plan.tunable import TunablePlan
from pycutlass.tensor import TensorView, wrap

__all__ = ["NO_INPUTS", "Plan"]

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})
#: What a plan calls the operands of its kernels.
_NAMES = {"A": "a", "B": "b", "D": "out", "destination": "out"}
_Kernel = TypeVar("_Kernel", bound=Any)
_Problem = TypeVar("_Problem")


@public
class Plan(TunablePlan, ABC, Generic[_Kernel, _Problem]):
    """A plan of D = epilogue(alpha * A x B + beta * C): kernels for one kind of problem, and how they are launched."""

    kind: Any
    _line = "column"  # what a bias has one number for
    _device: int | None
    _scalars: dict[str, Any]
    _device_scalars: dict[str, Any]
    _added: Added
    _choices: Chosen[_Kernel]

    def _start(self) -> None:
        """Make what a plan has for itself: it is neither pickled nor copied."""
        self._held: tuple[Any, Any, Any, Any] = (None, None, None, None)
        self._port_names = tuple(port.name for port in self.kind.epilogue.ports)
        self._launches = KeptLaunches(self._port_names, self._added.bias)
        self._waiting = self._launches.waiting  # where C++ finds it
        self._device_scalars = tensors_among(self._scalars)

    # What families do their own way

    @property
    @abstractmethod
    def _extent(self) -> int:
        """The one extent that runs may change, as the plan was made with."""

    @abstractmethod
    def _problem_of(self, a: Any, b: Any, view_a: TensorView, view_b: TensorView) -> tuple[_Problem, int]:
        """Return the problem that two tensors make, with the extent that runs may change, or raise."""

    @abstractmethod
    def _output_shape(self, problem: _Problem) -> tuple[int, ...]:
        """Return the shape of D in memory."""

    @abstractmethod
    def _new(self, a: Any, like: ResultForm) -> Any:
        """Return memory for D, packed, in the library of `a`."""

    def _maker(self, a: Any, like: ResultForm) -> Callable[[], Any] | None:
        """Return what makes such a D again without looking at a tensor, where the library of `a` has one: else None."""
        return None

    @abstractmethod
    def _launch(
        self, candidate: _Kernel, problem: _Problem, tensors: tuple[Any, Any, Any, Any], ports: Mapping[str, Any]
    ) -> PlanLaunch:
        """Return a candidate with tensors."""

    @abstractmethod
    def candidates(self) -> tuple[Ranked[_Kernel], ...]:
        """Return all kernels that take the problem, the likely fastest first."""

    # What users ask of a plan

    @property
    def _reads_c(self) -> bool:
        return self._added.reads_c

    @property
    def source(self) -> str | None:
        """What a functor reads as C, ``"matrix"`` or ``"bias"``; None where it reads none, or always does."""
        return source_of(self.kind.epilogue, self._added.reads_c, self._added.bias == "c")

    @property
    def candidate(self) -> _Kernel:
        """The kernel with the options of its launch, for the problem that the plan was made with."""
        return self._choices.of(self._extent)

    def compile(self) -> None:
        """Compile the kernel for the problem that the plan was made with; `run` does so where it is not compiled."""
        compile_for(self.candidate.kernels, self._device)

    def manifest(self) -> dict[str, Any]:
        """Return what has to be compiled, as `compiler.manifest` does.

        That is the kernels of the problem that the plan was made with, and of those that were run so far.
        """
        self._choices.of(self._extent)
        chosen = self._choices.made()
        return compiler.manifest(dict.fromkeys(kernel for each in chosen for kernel in each.kernels))

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
        epilogue_inputs: Mapping[str, Any] = NO_INPUTS,
        bias: Any = None,
    ) -> Any:
        """Compute D and return it.

        Parameters
        ----------
        a, b, c : tensor
            As the plan was made for, of any M of a GEMM and any number of images. Without `a`, those of
            `reset_operands`.
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
            if b is not None or c is not None:
                raise ArgumentError("a is None, and b or c is given: give all tensors, or none after reset_operands")
            a, b, c, held = self._held
            out = held if out is None else out
        c, epilogue_inputs = self._checked(a, b, c, bias, epilogue_inputs)
        form, kept = self._launches.begin(a, b, c, epilogue_inputs)
        if out is None and form is not None:
            out = self._new(a, form)
        if self._launches.run_waiting((a, b, c, out), stream, epilogue_inputs):
            return out
        if out is None or kept is None or not kept.may_run(stream):
            return self._first(a, b, c, out, stream, epilogue_inputs)
        try:
            kept.exchange(a, b, c, out, epilogue_inputs)
        except PyCutlassError:  # the first launch says better what does not fit, if it does not fit there either
            kept = None
        if kept is None:
            return self._first(a, b, c, out, stream, epilogue_inputs)
        kept.run(stream)
        kept.finish()
        return out

    def run_once(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        stream: Any = None,
        epilogue_inputs: Mapping[str, Any] = NO_INPUTS,
        bias: Any = None,
    ) -> Any:
        """Compute D as `run` does, and keep no tensor: for tensors that are not seen again."""
        c, epilogue_inputs = self._checked(a, b, c, bias, epilogue_inputs)
        if self._launches.run_waiting((a, b, c, out), stream, epilogue_inputs):
            return out
        return self._first(a, b, c, out, stream, epilogue_inputs, with_tensors=False)

    def check_empty(
        self, a: Any, b: Any, c: Any, epilogue_inputs: Mapping[str, Any] = NO_INPUTS, bias: Any = None
    ) -> None:
        """Raise ArgumentError for what `run` would not take with operands of which D has no elements.

        Nothing can be reduced of no elements, and what takes no part in a launch would stay as it was.
        """
        self._checked(a, b, c, bias, epilogue_inputs)
        epilogue = self.kind.epilogue
        reduced = ", ".join(port.name for port in epilogue.outputs if port.form != "matrix")
        if reduced:
            raise ArgumentError(
                f"the epilogue {epilogue!r} reduces D to {reduced}, and D has no elements: leave such products out"
            )

    # How they are done

    def _first(
        self, a: Any, b: Any, c: Any, out: Any, stream: Any, ports: Mapping[str, Any], with_tensors: bool = True
    ) -> Any:
        """Compute D with a launch that is made now, and kept for the next tensors of these shapes."""
        view_a, view_b = wrap("a", a), wrap("b", b)
        problem, extent = self._problem_of(a, b, view_a, view_b)
        for name, view, described in (("a", view_a, self.kind.A), ("b", view_b, self.kind.B)):
            if view.dtype_name != described.type.dtype_name:
                raise ArgumentError(
                    f"this plan is for {name} of {described.type.dtype_name}, got {view.dtype_name}: convert it, or "
                    f"make another plan"
                )
        views = {"a": view_a, "b": view_b} | ({} if c is None else {"c": wrap("c", c)})
        check_gradients(views | port_views(self.kind.epilogue, ports), "launch")
        if self._added.bias == "c":  # where arguments take any C
            check_bias(views["c"], self._output_shape(problem)[-1], line=self._line)
        here = device_of({"a": view_a, "b": view_b})
        if here != self._device:
            raise ArgumentError(f"this plan is for {place(self._device)}, and a is on {place(here)}: make another plan")
        # Only the shapes of the view are needed, and it would keep the first operand alive.
        form = replace(view_a, owner=None), self._output_shape(problem)
        if out is None:
            out = self._new(a, form)
        chosen_in = generation.number
        tensors = a, b, c, out
        candidate = self._compiled(extent)
        try:
            launch: PlanLaunch | PyCutlassError = self._launch(candidate, problem, tensors, ports)
        except (ArgumentError, ArgumentTypeError) as error:
            launch = self._refused(error, problem, tensors)
        if isinstance(launch, PyCutlassError):  # raised here, where the words of the kernel are no context of it
            raise launch
        launch.run(stream)
        launch.finish()
        self._launches.keep(launch, tensors, stream, ports, form, self._maker(a, form), chosen_in, with_tensors)
        return out

    def _refused(
        self, error: ArgumentError | ArgumentTypeError, problem: _Problem, tensors: tuple[Any, Any, Any, Any]
    ) -> PyCutlassError:
        """Return why a kernel does not take tensors, in the words of whoever runs a plan."""
        a, b, c, out = tensors
        added = "bias" if self._added.bias == "c" else "c"
        described = {"a": self.kind.A, "b": self.kind.B, added: self.kind.C, "out": self.kind.D}
        given = {"a": a, "b": b, added: c, "out": out}
        found = misfit(given, described, self._output_shape(problem), self._line)
        if found is None:
            found = renamed(error, _NAMES | {"C": added, "source": added})
            found.__cause__ = error.__cause__
        return found

    def _compiled(self, extent: int) -> _Kernel:
        """Return the candidate for an extent, with what runs on the GPU where there is one."""
        candidate = self._choices.of(extent)
        for kernel in candidate.kernels:
            kernel._is_compiled_when_used = True
        if self._device is not None:
            build_for(candidate.kernels, self._device)
        return candidate

    def _checked(self, a: Any, b: Any, c: Any, bias: Any, ports: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """Return C and the tensors of the epilogue; raise for what is missing, or would not be read, or followed."""
        if a is None or b is None:
            missing = "a and b are" if a is None and b is None else "a is" if a is None else "b is"
            raise ArgumentError(f"{missing} missing: give both to run, or keep them with reset_operands before it")
        if self._device_scalars:  # of which torch may follow one since
            kept_scalars(self._device_scalars, "launch")
        ports = ports if ports is NO_INPUTS else named_inputs(ports)
        c, placed = self._added.placed(c, bias, ports)
        if len(placed) != len(self._port_names) or not all(name in placed for name in self._port_names):
            raise ArgumentError(about_ports(self.kind.epilogue, self._port_names, ports))
        return c, placed


if not TYPE_CHECKING:  # to type checkers they are functions
    Plan.run = Plan.__call__ = _core.fast_plan_run(Plan.run)
    Plan.run.__set_name__(Plan, "run")
