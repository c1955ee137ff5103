"""Many products in one line and one launch: a plan is made for their kind, kept, and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pycutlass.calls import public
from pycutlass.epilogue.given_scalars import scalar_key
from pycutlass.errors import ArgumentError
from pycutlass.integers import shape_of
from pycutlass.operands.overlaps import renamed
from pycutlass.plan.added import Addition
from pycutlass.plan.forms import Form
from pycutlass.plan.gradients import kept_scalars
from pycutlass.plan.group import Group
from pycutlass.plan.group_kinds import addition_to, check_gradients_of_group, device_of_group
from pycutlass.plan.group_parts import Part, Stacked, element_of_all
from pycutlass.plan.group_results import result_of_nothing
from pycutlass.plan.grouped_gemm import GroupedGemm
from pycutlass.plan.kinds import Wanted, check_epilogue, columns_of
from pycutlass.plan.matmul import matmul
from pycutlass.plan.offsets import Offsets
from pycutlass.plan.options import KeptPlans, check_allow_copy, check_with_plan, scalars_among, without_tensors
from pycutlass.plan.port_copies import beside_group
from pycutlass.plan.readings import named_inputs
from pycutlass.plan.shortcut import precision_of

__all__ = ["grouped_matmul"]

#: Plans that `grouped_matmul` made, by all that tells kinds of groups apart.
_plans: KeptPlans[GroupedGemm] = KeptPlans(256, "grouped_matmul")
#: Those with scalars of an epilogue function: ever other scalars drop none of the others.
_plans_of_scalars: KeptPlans[GroupedGemm] = KeptPlans(64, "grouped_matmul")


@public
def grouped_matmul(
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
    plan: GroupedGemm | None = None,
    allow_copy: bool = False,
    stream: Any = None,
) -> Any:
    """Return many products, of one launch: epilogue(alpha * xs[i] @ ws[i] + beta * cs[i]) for each problem i.

    Parameters
    ----------
    xs, ws : list of tensor, or tensor
        In one of these forms:

        - lists of matrices, each pair with extents of its own: the result is a list of matrices. A stack of three
          dimensions may take the place of a list; the result of two stacks is a stack;
        - `xs` of (total, K) with `offs` and `ws` of (groups, K, N), or a list: the rows of `xs` are divided among the
          matrices of `ws`, and the result is (total, N);
        - `xs` of (M, total) with `offs` and `ws` of (total, N): K is divided, and the result is (groups, M, N);
        - `xs` of (groups, M, K), or a list, with `offs` and `ws` of (K, total): N is divided, and the result is
          (M, total).

        Tensors of torch, NumPy and CuPy, and objects with ``__dlpack__``, of the types that `matmul` multiplies. All
        of `xs` lie by rows or all by columns, and so do all of `ws`.
    cs : list of tensor, or tensor, optional
        What is added, of the form of the result; a list of vectors is a bias. It is third, as `c` of `matmul` is:
        `offs` is given by name.
    offs : sequence of int, or tensor of int32, optional
        Where each group ends, as ``torch._grouped_mm`` takes it: a group begins where the one before ends, and may be
        empty. Rows or columns behind the last group are zero in a new result, and left as they are in `out`. A tensor
        of torch on a GPU is not read on the host, so nothing waits for it. Ends that it holds which decrease or are
        beyond the matrix are taken as the nearest that do not and are not.
    alpha, beta : number, optional
        The scalars: 1 and 0 if left out, or what an epilogue function has as its defaults. A `cs` of matrices needs a
        `beta` other than 0, which is 1 for a bias if left out.
    bias : tensor or list of tensor, optional
        One number for each column, which is added before the activation, beside `cs` or alone: a vector for all
        problems, a matrix with a row for each, or a list of vectors. Alone it is multiplied by `beta`, which is 1 if
        left out.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function.
    epilogue_inputs : mapping, optional
        The tensors and scalars of the epilogue, by name: of each tensor a list with one for each problem, or one that
        is divided as the result is, or that holds all along its first dimension.
    out : list of tensor, or tensor, optional
        Where results are written.
    out_dtype, accumulator_dtype, precision, stream
        As of `matmul`.
    plan : GroupedGemm, optional
        What computes it, instead of a plan that is made here.
    allow_copy : bool
        Whether tensors that no kernel takes are copied, those in `epilogue_inputs` too; otherwise they are refused, as
        those that the epilogue writes are either way.

    Returns
    -------
    list of tensor, or tensor
        `out`, or new tensors in the library of `xs` and on its device.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Tensors that do not fit each other, that would have to be copied, or that require a gradient; or offs that
        decrease or end beyond the matrix.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> tokens, experts = np.ones((6, 4), np.float32), np.ones((3, 4, 2), np.float32)
    >>> pycutlass.grouped_matmul(tokens, experts, offs=[2, 2, 6]).shape
    (6, 2)
    >>> xs = [np.ones((m, k), np.float32) for m, k in ((1, 3), (2, 5))]
    >>> ws = [np.ones((3, 2), np.float32), np.ones((5, 4), np.float32)]
    >>> [float(d[0, 0]) for d in pycutlass.grouped_matmul(xs, ws)]
    [3.0, 5.0]
    """
    check_epilogue(epilogue)
    check_allow_copy(allow_copy)
    inputs, scalars = named_inputs(epilogue_inputs), kept_scalars({"alpha": alpha, "beta": beta}, "product")
    alpha, beta = scalars["alpha"], scalars["beta"]
    if plan is not None:
        said = {"epilogue": epilogue, "out_dtype": out_dtype, "accumulator_dtype": accumulator_dtype}
        check_with_plan(plan, GroupedGemm, said | {"precision": precision, "alpha": alpha, "beta": beta}, inputs)
    group = Group(xs, ws, None if offs is None else Offsets(offs), cs, bias)
    columns = columns_of(epilogue if plan is None else plan.kind.epilogue)
    target = None if out is None else group.result(out, columns)
    parts = [part for part in (group.A, group.B, group.C, group.bias, target) if part is not None]
    check_gradients_of_group(group, target)
    first = next((part.like[0] for part in parts if part.views), None)
    wanted = Wanted(epilogue, out_dtype, accumulator_dtype, precision_of(first) if precision is None else precision)
    if plan is None and not all(part.views for part in parts):  # lists without matrices, which say nothing of a kind
        return result_of_nothing(group, columns, wanted) if out is None else out
    if allow_copy:
        group.copy_what_must_be(target)
    new: list[GroupedGemm] = []
    if plan is None:
        addition = addition_to(group, target, epilogue, beta)
        if not inputs and (batch := _as_batch(group, target, bias)) is not None:
            a, b, c, vector = batch
            scalars = {"alpha": alpha, "beta": addition.beta, "precision": wanted.precision}
            types = {"out_dtype": out_dtype, "accumulator_dtype": accumulator_dtype}
            further = {"bias": vector, "epilogue": epilogue, "out": out, "allow_copy": allow_copy, "stream": stream}
            try:
                return matmul(a, b, c, **scalars, **types, **further)
            except ArgumentError as error:
                raise renamed(error, {"a": "xs", "b": "ws", "c": "cs"}) from error.__cause__
        plan = _plan_of(group, target, replace(wanted, epilogue=addition.epilogue), alpha, addition, inputs, new)
    ports = beside_group(plan.kind, group, inputs, allow_copy)
    for each in new:  # before anything is compiled
        each.check_inputs(ports)
    return plan._compute(group, out, target, stream, ports, is_kept=False)


def _as_batch(group: Group, target: Part | None, bias: Any) -> tuple[Any, Any, Any, Any] | None:
    """Return A, B, C and the bias of stacks, which are a batch: kernels of all layouts compute that. None of others.

    None as well where `matmul` would refuse it: the reasons name tensors as they are named here.
    """
    if not isinstance(group.A, Stacked) or not isinstance(group.B, Stacked) or len(set(group.elements())) > 1:
        return None
    if target is not None and not isinstance(target, Stacked):
        return None
    parts = [(group.A, group.summed), (group.B, group.summed), *([] if target is None else [(target, group.used)])]
    if group.has_bias and (isinstance(bias, list | tuple) or len(shape_of(bias) or ()) != 1):
        return None  # a batch adds one for all
    c = group.C if isinstance(group.C, Stacked) else None
    if c is not None:
        parts.append((c, group.used))
    elif group.has_matrices:
        return None
    if any(not any(_forms(part, used)) for part, used in parts):
        return None
    return group.A.tensor, group.B.tensor, None if c is None else c.tensor, bias


def _plan_of(
    group: Group,
    target: Part | None,
    wanted: Wanted,
    alpha: Any,
    addition: Addition,
    inputs: Mapping[str, Any],
    new: list[GroupedGemm],
) -> GroupedGemm:
    """Return the plan that was kept for such groups, or make it, which is put into `new`."""
    of_added = tuple(
        None if part is None else (element_of_all(part), type(part), _forms(part, group.used))
        for part in (group.C, group.bias)
    )
    of_d: Any = group.form_of_new(wanted.output(group.elements()[0]), columns_of(wanted.epilogue))
    if target is not None:
        of_d = element_of_all(target), _forms(target, group.used)
    of_operands = group.elements(), group.forms(), of_added, of_d, device_of_group(group)
    key = (of_operands, wanted, alpha, addition.beta, scalar_key(alpha), scalar_key(addition.beta), tuple(inputs))

    def make() -> GroupedGemm:
        new.append(GroupedGemm._of(group, target, wanted, alpha, addition, without_tensors(wanted.epilogue, inputs)))
        return new[0]

    scalars = scalars_among(wanted.epilogue, inputs)
    return make() if scalars is None else (_plans_of_scalars if scalars else _plans).get((*key, scalars), make)


def _forms(part: Part, used: Any) -> tuple[Form | None, Form | None]:
    """Return the forms of an operand by rows and by columns, of which it may have either."""
    bits = element_of_all(part).bits
    return part.form(bits, used, True), part.form(bits, used, False)
