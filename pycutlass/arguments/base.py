"""What the arguments of all kernel families share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex, TypeVar

from pycutlass import _core, device
from pycutlass.arguments.given import ELSEWHERE, check_beta, refuse_unknown
from pycutlass.calls import no_attribute, no_such_field, public, suggestion
from pycutlass.epilogue import EpilogueScalars, VisitorArguments
from pycutlass.epilogue.scalars import check_scalars
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.launch import (
    USUAL,
    DeviceLaunch,
    HostLaunch,
    LaunchOptions,
    NoLaunch,
    Problem,
    check_on_host,
    check_priority,
    check_sm_count,
    ordinal_of,
)
from pycutlass.launch.split_k import Planes
from pycutlass.log import say_once
from pycutlass.operands import MisalignedError, OtherLayoutError, OtherTypeError, say_without_gradient
from pycutlass.operands.epilogue import given_ports
from pycutlass.operands.reordered import UNCHANGED, Reordering
from pycutlass.operation import Operation
from pycutlass.operation.narrower import explained

__all__ = [
    "SLOTS",
    "Arguments",
    "LaunchConfig",
]

_Operation = TypeVar("_Operation", bound=Operation)


@dataclass(frozen=True)
class LaunchConfig:
    """Grid and block of a launch in threadblocks and threads, and its dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory_capacity: int


#: What does what others have a method of arguments for.
_INSTEAD = {
    **dict.fromkeys(("run", "launch", "execute"), " Write operation.run(arguments)."),
    **dict.fromkeys(("synchronize", "wait", "join"), " Write arguments.sync()."),
    **dict.fromkeys(("compile", "build"), " Write pycutlass.compiler.add_module([operation])."),
}
_OF_LAUNCHES = ("_execution", "_given", "_planes", "_run", "_try_exchange")  # what constructors set last


# What the original had as attributes.
def _address_of(operand: str) -> property:
    return property(lambda self: self._addresses(operand), doc=f"Where operand {operand} is.")


def _leading_dimension_of(operand: str) -> property:
    return property(lambda self: self._leading_dimensions(operand), doc=f"Leading dimension of {operand} in elements.")


@partial(public, but=("update",))
class Arguments(ABC):
    """Checked and packed arguments of one launch, which ``operation.run`` may use any number of times.

    A family's class checks what it was given in `_problem`. The tensors are kept alive as long as the arguments, and
    until the last launch with them has finished.
    """

    # What every launch and every update look at is where C++ finds it without asking the dictionary.
    __slots__ = ("_run", "_try_exchange", "operation")

    operation: Operation
    output_op: EpilogueScalars

    #: What users call the operand that is added, and the operation in their script.
    _SOURCE: ClassVar[str] = "C"
    _SIZE: ClassVar[str] = "problem_size"
    #: Keywords that belong to another call.
    _ELSEWHERE: ClassVar[Mapping[str, str]] = ELSEWHERE
    #: What `repr` shows of them.
    _SHOWN: ClassVar[tuple[str, ...]] = ("problem_size",)
    #: How B comes to the order in which interleaved kernels read it.
    _reordering: Reordering = UNCHANGED
    #: Where the launch writes partial sums, which a reduction ends.
    _partials: Planes | None = None
    #: How launches share the GPU with others.
    _options: LaunchOptions = USUAL
    #: Whether `output_op` may be that of an EpilogueVisitTree.
    _TAKES_TREES = False

    def _start(self, launched: Operation, given: dict[str, Any], output_op: EpilogueScalars | None) -> None:
        """Check everything and make the launch of `launched`; called at the end of a family's constructor."""
        self._launched = launched
        self._check_use(given, output_op)
        self.output_op = self._check_scalars(output_op)
        #: What the user gave and the launch reads or writes, by operand.
        self._given = given
        self._execution = self._prepare(self._checked_problem(given, self.output_op))
        # Looked up once: these are the hot path of operation.run and of update.
        self._run = self._reordering.guarded(self._execution.run)
        self._try_exchange = self._reordering.exchanging(self._execution.try_exchange)

    @property
    def launch_priority(self) -> int | None:
        """Priority of launches; None for that of their stream."""
        return self._options.priority

    def _share(self, launch_priority: Any, sm_count: Any = None, *, is_persistent: bool = False) -> None:
        """Take the options of launches, which the operation of these arguments may refuse."""
        limit = check_sm_count(sm_count, self.operation, is_persistent)
        self._options = LaunchOptions(limit, check_priority(launch_priority))

    def _checked_problem(self, given: dict[str, Any], scalars: EpilogueScalars) -> Problem:
        """Return the problem with every operand checked, or say what the operation offers to those that do not fit."""
        try:
            return self._problem(given, scalars)
        except (MisalignedError, OtherLayoutError, OtherTypeError) as error:
            read = given if scalars.needs_source else {**given, "C": None}
            raise explained(self.operation, error, read) from None

    @abstractmethod
    def _problem(self, given: dict[str, Any], scalars: EpilogueScalars) -> Problem:
        """Return the problem with every operand checked."""

    @property
    def _makes_partial_sums(self) -> bool:
        """Whether the launch leaves C, D and the scalars to a reduction."""
        return False

    def _check_use(self, given: Mapping[str, Any], output_op: EpilogueScalars | None) -> None:
        """Refuse what would be left out of the result, or say so where scripts of the original give it anyway."""
        say_without_gradient(given)
        if self._makes_partial_sums:
            unused = [name for name in ("C", "D") if given.get(name) is not None]
            unused += ["output_op"] if output_op is not None else []
            if unused:
                say_once(
                    f"parallel split-K writes partial sums to arguments.ptr_D and uses no C, D or output_op: "
                    f"{', '.join(unused)} of {type(self).__name__} {'belongs' if len(unused) == 1 else 'belong'} to "
                    f"the ReductionArguments that follow",
                    cause=f"parallel split-K of {type(self).__name__}",
                )
            return
        by_position = self._SOURCE == "C" and "ldd" not in given  # tables of from_device come by name
        if by_position and given.get("C") is not None and given.get("D", self) is None:
            call = f"{type(self).__name__}(operation, {self._SIZE}, A, B, None, D)"
            raise ArgumentError(
                f"operand D is missing, and C is given: the fifth positional argument is C, the sixth D. If nothing is "
                f"to be added, write {call}; otherwise give D as well."
            )
        present: Mapping[str, Any] = self.__dict__.get("_given", {})
        source = given.get("C", present.get("C"))
        if source is not None:
            scalars: EpilogueScalars | None = self.__dict__.get("output_op")
            check_beta(self._SOURCE, source, self.operation.epilogue_functor, scalars, output_op)

    def _of_tree(
        self, output_op: VisitorArguments, C: Any, D: Any, epilogue: Mapping[str, Any] | None
    ) -> tuple[Any, Any, Mapping[str, Any] | None]:
        """Return C, D and the tensors of the epilogue of a launch whose `output_op` is that of a tree."""
        return C, D, epilogue

    def _taken(self, operand: Any) -> Any:
        """Return an operand as the arguments keep it."""
        return operand

    def _check_scalars(self, output_op: EpilogueScalars | None) -> EpilogueScalars:
        """Return the scalars of a launch, checked against the operation's epilogue."""
        if isinstance(output_op, VisitorArguments) and not self._TAKES_TREES:
            raise ArgumentTypeError(
                f"output_op has tensors of an EpilogueVisitTree, which GemmArguments take: give {type(self).__name__} "
                f"epilogue={{...}}, and as output_op what epilogue_type of its operation returns"
            )
        functor = self.operation.epilogue_functor
        if output_op is None and self._makes_partial_sums:  # the reduction has them, and asks for those without default
            needed = (each.name for each in functor.scalar_table if each.default is None)
            lost = (each.name for each in functor.scalar_table if functor.lost_default(each.name))
            output_op = functor.epilogue_type(**dict.fromkeys((*needed, *lost), 1))
        return check_scalars(functor, output_op, self._batch_of_scalars)

    @property
    def _batch_of_scalars(self) -> int:
        """How many matrices may have scalars of their own; 0 where the kernel reads one for all."""
        return 0

    def update(
        self,
        *further: Any,
        A: Any = None,
        B: Any = None,
        C: Any = None,
        D: Any = None,
        output_op: EpilogueScalars | None = None,
        epilogue: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        """Exchange tensors of the same shapes, or the scalars, without rebuilding.

        Nothing changes where an error is raised. numpy operands are copied to the GPU again.

        Parameters
        ----------
        A, B, C, D : tensor, optional
            What takes the place of an operand; None leaves it.
        output_op : EpilogueScalars, optional
            Other scalars. Beta may become non-zero only where there is a C.
        epilogue : mapping, optional
            What takes the place of tensors that the epilogue has beside C and D, by their names.

        Raises
        ------
        ArgumentError, ArgumentTypeError, AlignmentError
            As for the constructor.
        """
        if further or unknown:
            refuse_unknown("update", unknown, ("A", "B", "C", "D", "output_op", "epilogue"), further)
        self._execution  # noqa: B018 (of arguments that were never made it raises)
        if isinstance(output_op, VisitorArguments) and self._TAKES_TREES:
            C, D, epilogue = self._of_tree(output_op, C, D, epilogue)
            output_op.known_to(self)
        given = {name: self._taken(t) for name, t in (("A", A), ("B", B), ("C", C), ("D", D)) if t is not None}
        if epilogue is not None:
            ports = given_ports(self.operation.epilogue_functor, epilogue)
            given |= {name: self._taken(tensor) for name, tensor in ports.items()}
            others = tuple(given.get(port.name) for port in self.operation.epilogue_functor.ports)
            fits = output_op is None and self._try_exchange(A, B, C, D, *others)
        else:
            fits = output_op is None and self._try_exchange(A, B, C, D)
        if fits:
            self._given.update(given)
            return
        self._check_use(given, output_op)
        scalars = self.output_op if output_op is None else self._check_scalars(output_op)
        merged = {**self._given, **given}
        problem = self._checked_problem(merged, scalars)
        self._check_place(problem)
        self._execution.update(problem)
        self._execution.defer_release((*self._given.values(), self.output_op))
        self._run = self._reordering.guarded(self._execution.run)
        self.__dict__.update(_given=merged, output_op=scalars)

    if not TYPE_CHECKING:  # to type checkers it is the function
        update = _core.fast_update(update)

    @property
    def launched(self) -> bool:
        """Whether there was a launch with these arguments."""
        execution = self.__dict__.get("_execution")
        return execution is not None and bool(execution.launched)

    def sync(self) -> None:
        """Wait until the last launch has finished, on its own stream only, and bring a numpy D back.

        Before the first launch there is nothing to wait for: it returns at once, and D is as it was.
        """
        self._execution.sync()

    @property
    def launch_config(self) -> LaunchConfig:
        """Grid, block and shared memory of the launch.

        Raises
        ------
        ArgumentError
            Nothing is launched, since D has no elements.
        DeviceError
            There is no GPU.
        """
        if isinstance(self._execution, NoLaunch):
            raise ArgumentError(f"D has no elements in {self._execution.problem.what}: nothing is launched")
        if not isinstance(self._execution, DeviceLaunch):
            device.require()
            raise ArgumentError("these arguments were made without a GPU: there is no launch configuration")
        call = self._execution.call
        return LaunchConfig(call.grid, call.block, call.shared_bytes)

    ptr_A, ptr_B, ptr_C, ptr_D = map(_address_of, "ABCD")  # noqa: N815 (as the original wrote them)
    lda, ldb, ldc, ldd = map(_leading_dimension_of, "ABCD")

    def _addresses(self, operand: str) -> Any:
        """Return where an operand is."""
        return self._placed().operand(operand)[0]

    def _leading_dimensions(self, operand: str) -> Any:
        """Return its leading dimension in elements."""
        return self._placed().operand(operand)[1]

    def _placed(self) -> Any:
        """Return the execution, or raise what Python raises for an attribute that is not there yet."""
        if "_execution" not in self.__dict__:
            raise AttributeError("operands have no place yet")  # Python asks __getattr__ next
        return self._execution

    def __getattr__(self, name: str) -> NoReturn:
        """Raise what Python raises for an attribute that arguments lack, with what is near.

        What a launch needs is lacking where no constructor has made them, or one that failed.
        """
        if name in _OF_LAUNCHES:
            who = type(self).__name__
            raise ArgumentTypeError(f"these {who} were never made: write {who}(operation, ...) and use the result")
        known = [each for each in (*self.__dict__, *dir(type(self))) if each[0] != "_"]
        near = "" if name[0] == "_" else _INSTEAD.get(name) or suggestion(name, known)
        raise no_attribute(type(self).__name__, name, near)

    def __repr__(self) -> str:
        if "_execution" not in self.__dict__:
            return f"<{type(self).__name__}>"
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in self._SHOWN)
        return f"<{type(self).__name__} of {self.operation.procedural_name()}: {shown}>"

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to be changed once everything is checked and packed: no launch would see it."""
        if name[0] != "_" and "_execution" in self.__dict__:
            known = [each for each in (*self.__dict__, *dir(type(self))) if each[0] != "_"]
            if name not in known:
                raise no_such_field(self, name, known)
            exchange = f", or arguments.update({name}=...)" if name in ("output_op", "problem_sizes") else ""
            raise AttributeError(
                f"{name} of {type(self).__name__} cannot be set, a launch would not see it: make new ones{exchange}"
            )
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Refuse to lose what a launch was made of."""
        if name[0] != "_" and "_execution" in self.__dict__:
            raise AttributeError(f"{name} of {type(self).__name__} cannot be deleted: make new ones")
        object.__delattr__(self, name)

    def __del__(self) -> None:
        execution = self.__dict__.get("_execution")
        if execution is not None:
            if self._partials is not None:
                self._partials.written |= self.launched
            execution.release((*self._given.values(), self.output_op))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: addresses would go along, and what they point to would not."""
        name = type(self).__name__
        raise ArgumentTypeError(
            f"{name} cannot be copied or pickled: they hold the addresses of the tensors that they were made with, and "
            f"a copy would write there as well. Make new {name} for other tensors, or exchange tensors with update."
        )

    def _prepare(self, problem: Problem) -> DeviceLaunch | HostLaunch | NoLaunch:
        if not device.available():
            check_on_host(problem)
            return NoLaunch(problem) if problem.is_empty else HostLaunch(self._launched, problem)
        ordinal = ordinal_of(problem.operands)
        return NoLaunch(problem) if problem.is_empty else DeviceLaunch(self._launched, problem, ordinal, self._options)

    def _check_place(self, problem: Problem) -> None:
        """Raise unless `problem` is where the present execution works."""
        if not device.available():
            check_on_host(problem)
            return
        execution, ordinal = self._execution, ordinal_of(problem.operands)
        if isinstance(execution, DeviceLaunch) and ordinal != execution.ordinal:
            raise ArgumentError(
                f"these arguments were made for GPU {execution.ordinal}, the tensors are on GPU {ordinal}: make new "
                f"arguments"
            )


_core.set_arguments_type(Arguments)
#: What sets an attribute of arguments that C++ has checked, past the check of each that is set.
SLOTS = tuple(vars(Arguments)[name].__set__ for name in ("operation", "_run", "_try_exchange"))
