"""A plan of groups: which kernel computes many products at once, made once and run with any groups of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from pycutlass import compiler
from pycutlass.calls import public
from pycutlass.errors import ArgumentError
from pycutlass.operands.epilogue import port_views
from pycutlass.operation import GemmOperationGrouped
from pycutlass.operation.group_support import Sizes
from pycutlass.plan import picture
from pycutlass.plan.added import Added, Addition, source_of
from pycutlass.plan.building import build_for, compile_for
from pycutlass.plan.checking import checked_group
from pycutlass.plan.device_groups import DeviceGroup
from pycutlass.plan.group import Group
from pycutlass.plan.group_candidates import GroupCandidate
from pycutlass.plan.group_choices import GroupChoices
from pycutlass.plan.group_kinds import (
    about_added,
    addition_to,
    check_gradients_of_group,
    check_listed_ports,
    check_pairs,
    device_of_group,
    kind_of_group,
)
from pycutlass.plan.group_launches import Problems
from pycutlass.plan.group_parts import Part
from pycutlass.plan.group_results import check_fits, new_results
from pycutlass.plan.group_runs import Runs
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.kinds import Wanted, check_epilogue, columns_of
from pycutlass.plan.measured import generation
from pycutlass.plan.offsets import Offsets
from pycutlass.plan.predicted import Ranked
from pycutlass.plan.readings import about_ports, given_scalars, named_inputs, place
from pycutlass.plan.tunable import TunablePlan

__all__ = ["GroupedGemm"]

_ANY_EXTENT = 128  # a multiple of all alignments
_NONE: Mapping[str, Any] = MappingProxyType({})


@public
class GroupedGemm(TunablePlan):
    """A plan of D[i] = epilogue(alpha * A[i] x B[i] + beta * C[i]) for a group of products, in one launch.

    It is for one kind of matrices and for any number of them, of any extents that are as aligned. Groups that are not
    alike have kernels of their own, chosen and compiled when they are first needed. Plans are safe for threads, can be
    pickled and copied as a choice, without what was compiled, and keep the tensors of a few last runs of each thread
    alive until `reset_operands` is called.

    Parameters
    ----------
    xs, ws : list of tensor or TensorSpec, or tensor or TensorSpec
        Lists of matrices of (M, K) and (K, N), or stacks of them. With `offs` one or both are a single matrix, as for
        `grouped_matmul`.
    cs : optional
        What is added, as results are given; a list of vectors is a bias.
    offs : optional
        The ends of groups, as for `grouped_matmul`. A TensorSpec says how many there are.
    alpha, beta : number, optional
        The scalars: 1 and 0 if left out, or what an epilogue function has as its defaults. A `cs` needs a `beta` other
        than 0.
    bias : optional
        A vector for all problems, a matrix with a row for each, or a list of vectors, which is added beside `cs` or
        alone, as `grouped_matmul` adds it.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function, with or without its types.
    epilogue_inputs : mapping, optional
        Tensors and scalars that it has beside C and D, by name: scalars are kept. Lists of tensors are checked,
        and all are given to `run` as well.
    out : optional
        The results, which say the layout that is written; by default packed rows.
    out_dtype, accumulator_dtype : element type, optional
        What is written, and summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"`` (the default), ``"tf32"`` or ``"3xtf32"``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Tensors that do not fit each other, or for which there is no kernel; the message names the remedy.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> xs = [np.ones((m, 16), np.float16) for m in (3, 0, 5)]
    >>> ws = [np.ones((16, 8), np.float16)] * 3
    >>> plan = pycutlass.GroupedGemm(xs, ws)
    >>> [d.shape for d in plan.run(xs, ws)]
    [(3, 8), (0, 8), (5, 8)]
    """

    def __init__(
        self,
        xs: Any,
        ws: Any,
        cs: Any = None,
        *,
        offs: Any = None,
        alpha: Any = None,
        beta: Any = None,
        bias: Any = None,
        epilogue: Any = None,
        epilogue_inputs: Mapping[str, Any] | None = None,
        out: Any = None,
        out_dtype: Any = None,
        accumulator_dtype: Any = None,
        precision: str | None = None,
    ) -> None:
        check_epilogue(epilogue)
        group = Group(xs, ws, None if offs is None else Offsets(offs), cs, bias)
        target = None if out is None else group.result(out, columns_of(epilogue))
        wanted = Wanted(epilogue, out_dtype, accumulator_dtype, precision)
        self._describe(group, target, wanted, alpha, addition_to(group, target, epilogue, beta), epilogue_inputs)

    @classmethod
    def _of(
        cls,
        group: Group,
        target: Part | None,
        wanted: Wanted,
        alpha: Any,
        addition: Addition,
        inputs: Mapping[str, Any] | None,
    ) -> GroupedGemm:
        """Return the plan of operands that were read."""
        plan: GroupedGemm = object.__new__(cls)
        plan._describe(group, target, wanted, alpha, addition, inputs)
        return plan

    def _describe(
        self,
        group: Group,
        target: Part | None,
        wanted: Wanted,
        alpha: Any,
        addition: Addition,
        inputs: Mapping[str, Any] | None,
    ) -> None:
        self.kind: GemmKind = kind_of_group(group, target, replace(wanted, epilogue=addition.epilogue))
        self._scalars = given_scalars(self.kind.epilogue, alpha, addition.beta, inputs)
        self._added, self._device = addition.added, device_of_group(group)
        sizes = group.sizes if len(group) else np.array([[0, group.B.last_extents[1], group.A.last_extents[1]]])
        self._sizes: Sizes = sizes.astype(np.int32)
        self._axis, self._on_device = group.axis or 0, group.is_on_device
        self._choices = GroupChoices(self.kind, self._device, self.source)
        self._start()
        self._choices.of(self._working, self._axis, self._on_device)
        self.check_inputs(named_inputs(inputs))

    def _start(self) -> None:
        """Make what a plan has for itself: it is neither pickled nor copied."""
        self._held: dict[str, Any] = {}
        self._runs = Runs(self.kind, self._scalars, self._reads_c)
        self.reset_operands()

    # What users ask of a plan

    @property
    def _reads_c(self) -> bool:
        return self._added.reads_c

    @property
    def sizes(self) -> Sizes:
        """M, N and K of the problems that the plan was made with; of those that the device knows, of even parts."""
        return self._sizes.copy()

    @property
    def axis(self) -> int:
        """Which of M, N and K varies between groups that have one kernel: 0, 1 or 2."""
        return self._axis

    @property
    def is_on_device(self) -> bool:
        """Whether the device alone knows the sizes, and makes the schedule of the kernel."""
        return self._on_device

    @property
    def source(self) -> str | None:
        """What a functor reads as C, ``"matrix"`` or ``"bias"``; None where it reads none, or always does."""
        return source_of(self.kind.epilogue, self._added.reads_c, self._added.bias == "c")

    @property
    def candidate(self) -> GroupCandidate:
        """The kernel for the group that the plan was made with."""
        return self._choices.of(self._working, self._axis, self._on_device)

    @property
    def operation(self) -> GemmOperationGrouped:
        """The kernel for the group that the plan was made with."""
        return self.candidate.operation

    def candidates(self) -> tuple[Ranked[GroupCandidate], ...]:
        """Return all kernels that take the group, the likely fastest first."""
        return self._choices.ranked(self._working, self._axis)

    def explain(self) -> str:
        """Return, as text, which kernels were considered, what is predicted of them, and why one was chosen."""
        others = self._choices.refused(self._working, self._axis)
        chosen, gpu = self.candidate, self._choices.gpu
        why = self._choices.why(self._working, self._axis, self._on_device)
        return picture.explained_group(chosen, self.candidates(), others, self._sizes, gpu, why, self.kind)

    def compile(self) -> None:
        """Compile the kernel for the group that the plan was made with; `run` does so where it is not yet compiled."""
        compile_for(self.candidate.kernels, self._device)

    def manifest(self) -> dict[str, Any]:
        """Return what has to be compiled for the groups that were used so far, as `compiler.manifest` does."""
        return compiler.manifest([each.operation for each in dict.fromkeys((self.candidate, *self._choices.made()))])

    def check(self, seed: int = 0) -> float:
        """Run the kernel on random numbers and compare D with products in float64; look at what lies around D.

        Returns
        -------
        float
            The largest error as a share of what rounding explains: at most 1.

        Raises
        ------
        ArgumentError
            D is wrong, or something was written beside it; or the epilogue has tensors of its own.
        """
        return checked_group(self, seed)

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Raise for tensors of the epilogue that do not fit the group that the plan was made with."""
        if not self._on_device:
            check_listed_ports(self.kind, self._sizes, inputs)

    def reset_operands(
        self, xs: Any = None, ws: Any = None, cs: Any = None, out: Any = None, *, offs: Any = None, bias: Any = None
    ) -> None:
        """Let go of all tensors, and keep these for a `run` that is given none.

        What graphs have captured is kept as long as there is the plan.
        """
        self._held = {"xs": xs, "ws": ws, "cs": cs, "out": out, "offs": offs, "bias": bias}
        self._runs.reset()

    def run(
        self,
        xs: Any = None,
        ws: Any = None,
        cs: Any = None,
        out: Any = None,
        *,
        offs: Any = None,
        bias: Any = None,
        stream: Any = None,
        epilogue_inputs: Mapping[str, Any] = _NONE,
    ) -> Any:
        """Compute all D and return them.

        Parameters
        ----------
        xs, ws, cs, offs, bias
            Matrices as the plan was made for, as many as there are and in any form that `grouped_matmul` takes. Without
            `xs`, those of `reset_operands`.
        out : optional
            Where D is written; by default new memory in the library of `xs`.
        stream : optional
            An integer handle, or a stream of torch, cupy or cuda.core; by default the current stream of the tensors'
            library.
        epilogue_inputs : mapping, optional
            Tensors that the epilogue has beside C and D, by name: lists, or as results are given.

        Returns
        -------
        list of tensor, or tensor
            `out`, or new results as `grouped_matmul` returns them.

        Raises
        ------
        ArgumentError, ArgumentTypeError, AlignmentError
            Other types, layouts, alignments or devices than the plan is for; nothing was launched.
        """
        if xs is None:
            if not all(given is None for given in (ws, cs, offs, bias)):
                raise ArgumentError(
                    "ws, cs, offs or bias is given without xs: give all, or none but out after reset_operands"
                )
            held = self._held
            xs, ws, cs, offs, bias = (held[name] for name in ("xs", "ws", "cs", "offs", "bias"))
            out = held["out"] if out is None else out
        if xs is None or ws is None:
            raise ArgumentError("xs and ws are missing: pass them to run, or keep them with reset_operands")
        if type(xs) is list and offs is None and bias is None and not epilogue_inputs:
            made = self._runs.again(xs, ws, cs, out, stream)
            if made is not None:
                return made
        group = Group(xs, ws, None if offs is None else Offsets(offs), cs, bias)
        return self._compute(group, out, self._target(group, out), stream, named_inputs(epilogue_inputs), is_kept=True)

    __call__ = run

    def run_once(
        self,
        xs: Any,
        ws: Any,
        cs: Any = None,
        out: Any = None,
        *,
        offs: Any = None,
        bias: Any = None,
        stream: Any = None,
        epilogue_inputs: Mapping[str, Any] = _NONE,
    ) -> Any:
        """Compute all D as `run` does, and keep no tensor: for tensors that are not seen again."""
        group = Group(xs, ws, None if offs is None else Offsets(offs), cs, bias)
        return self._compute(group, out, self._target(group, out), stream, named_inputs(epilogue_inputs), is_kept=False)

    # How they are done

    @property
    def _working(self) -> Sizes:
        """The problems that the plan was made with that have results; where none has, one that all kernels take."""
        found = self._sizes[self._sizes[:, :2].min(axis=1) > 0]
        return found if len(found) else np.full((1, 3), _ANY_EXTENT, np.int32)

    def _target(self, group: Group, out: Any) -> Part | None:
        return None if out is None else group.result(out, self.kind.epilogue.columns)

    def _compute(
        self, group: Group, out: Any, target: Part | None, stream: Any, ports: Mapping[str, Any], is_kept: bool
    ) -> Any:
        """Compute all D and return them; what a later run may use is kept where that is asked for."""
        check_gradients_of_group(group, target, port_views(self.kind.epilogue, ports, listed=True))
        check_pairs(group, self.kind.epilogue)
        ports = self._checked_inputs(group, ports)
        check_fits(self.kind, group, target)
        if (here := device_of_group(group)) != self._device:
            raise ArgumentError(
                f"this plan is for {place(self._device)}, and xs is on {place(here)}: make another plan"
            )
        zeroes_rest = target is None and group.is_on_device and len(group) > 0 and self._runs.leave_zeros
        if target is None:
            out, target = new_results(self.kind, group, stream, zeroes_rest)
        if not len(group):
            return out
        if not group.is_on_device:
            problems = Problems(group, target, self.kind.epilogue, ports)
            if len(problems.sizes):
                chosen_in = generation.number
                self._runs.run(self._compiled(problems.sizes, group), problems, stream, is_kept, chosen_in)
        elif group.used.any():
            described = DeviceGroup(self.kind, group, target, stream, ports, zeroes_rest)
            sizes = group.sizes[group.used].astype(np.int32)
            self._runs.run_on_device(self._compiled(sizes, group), described, is_kept)
        return out

    def _compiled(self, sizes: Sizes, group: Group) -> GroupCandidate:
        """Return the candidate for a group, with what runs on the GPU where there is one."""
        candidate = self._choices.of(sizes, group.axis or 0, group.is_on_device)
        candidate.operation._is_compiled_when_used = True
        if self._device is not None:
            build_for(candidate.kernels, self._device)
        return candidate

    def _checked_inputs(self, group: Group, ports: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tensors of the epilogue, a bias among them where the plan has it there.

        Raises
        ------
        ArgumentError
            What the plan reads is missing, or something is given that it does not read.
        """
        added = self._added
        if added.bias == "port":
            group.put_bias_beside()
        if (group.C is not None, group.bias is not None) != (added.reads_c, added.bias == "port"):
            raise ArgumentError(about_added(added, group))
        placed = dict(ports) if group.bias is None else {**ports, "bias": list(group.bias.matrices())}
        names = {port.name for port in self.kind.epilogue.ports}
        if set(placed) != names:
            raise ArgumentError(about_ports(self.kind.epilogue, sorted(names), sorted(ports)))
        return placed

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.kind, self._sizes, self._axis, self._on_device, self._device, self._scalars, self._added)
        return _restored, (*state, self._choices.state())

    def __repr__(self) -> str:
        m, n, k = self._sizes.max(axis=0).tolist()
        return f"<GroupedGemm of {len(self._sizes)} problems up to {m}x{n}x{k} (M x N x K), on {place(self._device)}>"


def _restored(
    kind: Any, sizes: Any, axis: int, on_device: bool, where: Any, scalars: Any, added: Added, chosen: Any
) -> GroupedGemm:
    """Return the plan that was pickled or copied, with what was chosen."""
    plan: GroupedGemm = GroupedGemm.__new__(GroupedGemm)
    plan.kind, plan._sizes, plan._axis, plan._on_device = kind, sizes, axis, on_device
    plan._device, plan._scalars, plan._added = where, scalars, added
    plan._choices = GroupChoices(kind, where, plan.source, chosen)
    plan._start()
    return plan
