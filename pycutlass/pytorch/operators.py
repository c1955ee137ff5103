"""How an operator is registered: what it computes, what it would return, and its gradient.

Kernels in Python are put into the dispatcher by ``define`` and ``impl``. ``torch.library.custom_op`` makes an operator
of the same behaviour from a function, and each of its calls costs several microseconds more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import signature
from typing import Any

import torch
from torch.autograd import forward_ad

from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.pytorch.known_calls import KnownCalls, served

__all__ = [
    "NAMESPACE",
    "are_plain",
    "as_plain",
    "below_autograd",
    "check_no_gradient",
    "check_no_tangent",
    "define",
    "differentiable",
    "is_repeated",
    "library",
    "needs_gradient",
    "plain",
    "refuse_by_name",
    "refusing_by_name",
    "tensors_of",
    "was_written",
    "without_gradient",
]

_untyped: Any = torch.library  # as it is to type checkers
_untyped_jit: Any = torch.jit
NAMESPACE = "pycutlass"
#: The operators live for as long as this object does.
library = _untyped.Library(NAMESPACE, "DEF")

_REMEDY = "take gradients with backward() or torch.autograd.grad"
_Tensor = torch.Tensor
_after_autograd = torch._C._after_ADInplaceOrView_keyset
_BACKENDS = ("CPU", "CUDA")
#: What computes each operator, which `define` adds to; without it each call would pass the dispatcher once more.
_kernels: dict[Any, Callable[..., Any]] = {}
#: Known calls of all operators of a name, with and without `out`; which operators these are; and what has stood for
#: them, which TorchScript knows by its address.
_known: dict[str, list[KnownCalls]] = {}
_repeated: set[Any] = set()
_served: list[Any] = []


def define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any], *, repeats: bool = False) -> Any:
    """Define an operator and return its overload.

    Parameters
    ----------
    schema : str
        Name, parameters and results, as torch writes them.
    compute : function
        What it does with tensors of a GPU, or of the host, where operations are executed without a GPU.
    fake : function
        What it does with tensors that have no memory.
    repeats : bool
        Whether it launches the same whenever it is given what looks the same, and changes tensors in no other way. Such
        calls are made again by their launches alone.

    Variants with ``out`` of ``matmul`` and ``linear``, for which an operator's own time counts the most, call
    `refuse_by_name`, `as_plain` and `was_written` themselves; `variants` defines the others.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    packet, _, overload = name.partition(".")
    of_all: Any = getattr(torch.ops.pycutlass, packet)
    defined = getattr(of_all, overload or "default")
    kernel = compute if overload == "out" else refusing_by_name(compute, fake)
    known = KnownCalls(defined._schema) if repeats else None
    if known is not None:
        kernel = known.served(kernel)
    for key in _BACKENDS:
        library.impl(name, kernel, key)
    if overload == "out":
        library.impl(name, _refuse_transform, "FuncTorchDynamicLayerFrontMode")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _with_memory_alike(fake), lib=library)
    _kernels[defined] = kernel
    if known is not None:
        _serve(of_all, defined, known)
    return defined


def is_repeated(operator: Any) -> bool:
    """Return whether calls of an operator are made again by their launches alone."""
    return operator in _repeated


def _serve(packet: Any, defined: Any, known: KnownCalls) -> None:
    """Serve known calls of an operator, and of all of its name, without torch's dispatcher.

    To reach a kernel in Python, that takes longer than a launch. torch's own operators have functions that do without
    its boxed arguments, as torch.mm; this is ours.
    """
    _repeated.add(defined)
    defined._op = served(defined._op, [known], known.recorded(defined._op))
    of_name = _known.setdefault(packet._qualified_op_name, [])
    of_name.append(known)
    call = packet._op  # torch has made it anew with the new overload

    def recorded(*args: Any, **named: Any) -> Any:
        fitting = next((each for each in reversed(of_name) if each.takes(named)), of_name[0])
        return fitting.recorded(call)(*args, **named)

    packet._op = served(call, of_name, recorded)
    _served.append(packet._op)
    # Else TorchScript would call it as a function of Python.
    _untyped_jit._builtins._register_builtin(packet._op, packet._qualified_op_name)


def _refuse_transform(*_: Any, **__: Any) -> Any:
    """Raise ArgumentError: what is written into `out` would have no gradient, and no batch."""
    raise ArgumentError(
        "variants with out cannot be called in a transform of torch.func, which does not follow what they write: call "
        "the operator without out"
    )


def _with_memory_alike(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses tensors without memory among others, whose calls torch sends to it as well."""
    names, needed = tuple(signature(fake).parameters), _tensors_needed(fake)

    @wraps(fake)
    def checked(*args: Any, **named: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **named}
        if missing := [name for name in needed if given.get(name) is None]:
            raise ArgumentTypeError(f"{', '.join(missing)} must be a tensor, got None")
        devices = {name: each.device for name, each in tensors_of(given).items()}
        absent = next((name for name, device in devices.items() if device.type == "meta"), None)
        present = next((name for name, device in devices.items() if device.type != "meta"), None)
        if absent is not None and present is not None:
            raise ArgumentError(
                f"{absent} is on the meta device, where it has no memory, and {present} on {devices[present]}: put "
                f"both on one device"
            )
        return fake(*args, **named)

    return checked


def _tensors_needed(fake: Callable[..., Any]) -> frozenset[str]:
    """Return the parameters for which None is nothing, though torch lets it pass for any tensor."""
    parameters = signature(fake).parameters.values()
    return frozenset(
        each.name for each in parameters if str(each.annotation).removeprefix("torch.") in ("Tensor", "list[Tensor]")
    )


def refusing_by_name(compute: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes, and refuses tensors by name."""
    names, needed = tuple(signature(fake).parameters), _tensors_needed(fake)

    def kernel(*args: Any, **named: Any) -> Any:
        try:
            return compute(*args, **named)
        except (PyCutlassError, AttributeError) as error:
            given = zip(names, args, strict=False)
            if missing := [name for name, each in given if each is None and name in needed]:
                raise ArgumentTypeError(f"{', '.join(missing)} must be a tensor, got None") from None
            if isinstance(error, PyCutlassError):
                refuse_by_name(fake, *args, **named)
            raise

    return kernel


def refuse_by_name(fake: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Raise what is wrong with tensors by the names that they have in torch: products in one line have other names."""
    try:
        fake(*args, **named)
    except PyCutlassError as error:
        raise error from None


@lru_cache(maxsize=256)
def _is_backend(keys: int) -> bool:
    """Return whether nothing is left behind autograd, of a set of dispatch keys, but what computes."""
    below = torch._C.DispatchKeySet.from_raw_repr(keys) & _after_autograd
    return below.highestPriorityTypeId().name in _BACKENDS


def differentiable(operator: Any, function: Any, arranged: Callable[..., tuple[Any, ...]]) -> None:
    """Let an ``autograd.Function`` compute an operator where one of its tensors requires a gradient.

    Parameters
    ----------
    operator : overload
        What `define` returned.
    function : class
        The function, whose `forward` calls the operator `below_autograd`.
    arranged : function
        Takes what the operator takes and returns what the function takes.
    """
    kernel = _kernels[operator]
    parameters = [each.name for each in operator._schema.arguments]
    needed = [each.name for each in operator._schema.arguments if str(each.type) == "Tensor"]

    def autograd(keyset: Any, *args: Any, **named: Any) -> Any:
        _check_modes(operator, (*args, *named.values()))
        if not needs_gradient(*args, *named.values()):
            with below_autograd():
                if _is_backend(keyset.raw_repr()):  # where the dispatcher would call it as well
                    return kernel(*args, **named)
                return operator.redispatch(keyset & _after_autograd, *args, **named)
        given = {**dict(zip(parameters, args, strict=False)), **named}
        if missing := [name for name in needed if given.get(name) is None]:
            raise ArgumentTypeError(f"{', '.join(missing)} must be a tensor, got None")
        _check_floats(given)
        return function.apply(*arranged(*args, **named))

    library.impl(operator.name().partition("::")[2], autograd, "Autograd", with_keyset=True)


def _check_floats(given: dict[str, Any]) -> None:
    """Raise ArgumentError for a tensor of 8 bits that requires a gradient, which would have no more bits."""
    for name, each in given.items():
        if isinstance(each, torch.Tensor) and each.requires_grad and each.dtype.itemsize == 1:
            raise ArgumentError(
                f"{name} is of {each.dtype} and requires a gradient, which would be rounded to 8 bits: keep a copy in "
                f"16 bits or more that requires it, and pass {name}.detach() of 8 bits"
            )


def without_gradient(operator: Any, into: Any = library) -> None:
    """Let an operator, of the library `into`, refuse tensors whose gradient would be lost.

    Of tensors that its schema says it writes autograd is told, so that backward refuses what was saved before.
    """
    parameters = [each.name for each in operator._schema.arguments]
    written = [each.name for each in operator._schema.arguments if each.is_write]
    kernel = _kernels.get(operator)

    def autograd(keyset: Any, *args: Any, **named: Any) -> Any:
        _check_modes(operator, (*args, *named.values()))
        given = {**dict(zip(parameters, args, strict=False)), **named}
        check_no_gradient(str(operator), **given)
        with below_autograd():
            if kernel is not None and _is_backend(keyset.raw_repr()):  # where the dispatcher would call it as well
                made = kernel(*args, **named)
            else:
                made = operator.redispatch(keyset & _after_autograd, *args, **named)
        for name in written:
            tensors = given[name] if isinstance(given[name], list | tuple) else [given[name]]
            torch._C._increment_version([each for each in tensors if not each.is_inference()])
        return made

    into.impl(operator.name().partition("::")[2], autograd, "Autograd", with_keyset=True)


def check_no_gradient(operator: str, **given: Any) -> None:
    """Raise ArgumentError where autograd is to see what an operator without a gradient makes of tensors."""
    if not needs_gradient(*given.values()):
        return
    asking = next(name for name, each in given.items() if needs_gradient(each))
    what, remedy = f"{asking} requires", f"{asking}.detach()"
    if not isinstance(given[asking], torch.Tensor):
        what, remedy = f"a tensor of {asking} requires", f"[each.detach() for each in {asking}]"
    raise ArgumentError(f"{what} a gradient, and {operator} has none: pass {remedy}, or call it under torch.no_grad()")


def _check_modes(operator: Any, given: tuple[Any, ...]) -> None:
    """Raise ArgumentError where derivatives are asked for in a way that would lose them."""
    if torch._C._are_functorch_transforms_active():
        is_forward = torch._C._functorch.peek_interpreter_stack().key() == torch._C._functorch.TransformType.Jvp
        if is_forward or needs_gradient(*given):
            raise ArgumentError(
                f"{operator} is differentiated by a transform of torch.func, which looks into no operator: {_REMEDY}"
            )
    check_no_tangent(operator, *given)


def check_no_tangent(operator: Any, *given: Any) -> None:
    """Raise ArgumentError where a tensor has a derivative in forward mode, which would be lost."""
    if forward_ad._current_level < 0:  # outside of dual_level
        return
    unpacked: Any = forward_ad.unpack_dual
    tensors = tensors_of({str(at): each for at, each in enumerate(given)}).values()
    if any(unpacked(each).tangent is not None for each in tensors):
        raise ArgumentError(f"{operator} has no derivative in forward mode, which a tensor has here: {_REMEDY}")


def as_plain(operator: str, *, optional: str = "", **given: Any) -> list[Any]:
    """Return tensors of a variant with ``out`` as `plain` has them; raise ArgumentError where a derivative is lost.

    torch lets None pass for any tensor: here, for the one that is `optional`.
    """
    missing = [name for name, each in given.items() if each is None and name != optional]
    if missing:
        raise ArgumentTypeError(f"{', '.join(missing)} must be a tensor, got None")
    check_no_tangent(operator, *given.values())
    check_no_gradient(operator, **given)
    return [plain(each) for each in given.values()]


def are_plain(a: Any, b: Any, out: Any) -> bool:
    """Return whether `as_plain` has nothing to do, as in most calls, of which it would take a third."""
    are_tensors = type(a) is _Tensor and type(b) is _Tensor and type(out) is _Tensor
    return are_tensors and not (
        a.requires_grad or b.requires_grad or out.requires_grad or forward_ad._current_level >= 0
    )


def was_written(out: torch.Tensor) -> None:
    """Tell autograd of a kernel's writes, so that backward refuses what was saved before them."""
    torch._C._increment_version((out,))  # torch.autograd.graph.increment_version, at half of its time


def below_autograd() -> Any:
    """Return a context in which calls of operators go to what computes them, past autograd and what it knows of views.

    A result may be a view of memory that nobody else has. If torch knew it as one, it would refuse to change it in
    place, as ``torch.nn.ReLU(inplace=True)`` does.
    """
    return torch._C._AutoDispatchBelowADInplaceOrView()


def needs_gradient(*values: Any) -> bool:
    """Return whether autograd is to see what is made of these values."""
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*values)


def plain(tensor: Any) -> Any:
    """Return a tensor as one without a gradient, and no parameter: products of such are found again the quickest."""
    if tensor is None or (type(tensor) is torch.Tensor and not tensor.requires_grad):
        return tensor
    return tensor.detach()


def tensors_of(given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors that are given, those of lists as well, by name."""
    found = {}
    for name, each in given.items():
        if isinstance(each, torch.Tensor):
            found[name] = each
        elif isinstance(each, list | tuple):
            found |= {f"{name}[{at}]": one for at, one in enumerate(each) if isinstance(one, torch.Tensor)}
    return found
