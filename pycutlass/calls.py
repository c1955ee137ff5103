"""Calls that cannot be made: what Python and pybind11 say about them becomes ours, and names what is near."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

from pycutlass import _core
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError

__all__ = [
    "counted",
    "meant",
    "member_meant",
    "missing",
    "mistaken",
    "nearest",
    "no_attribute",
    "no_such_field",
    "public",
    "refused",
    "shown",
    "suggestion",
    "unbound",
    "unknown_keywords",
]

_Target = TypeVar("_Target", bound=Callable[..., Any])
_LONGEST = 200  # characters of a value in a message
#: What others call a parameter, and the names that it may have here.
_CALLED_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "op": ("operation", "output_op"),
    "kernel": ("operation",),
    "out": ("D", "destination"),
    "tile": ("tile_description",),
    "swizzle": ("swizzling_functor",),
    "swizzling": ("swizzling_functor",),
    "threadblock_swizzle": ("swizzling_functor",),
    "scheduler": ("precompute_mode", "kernel_schedule"),
    "scheduler_mode": ("precompute_mode",),
    "schedule": ("precompute_mode", "kernel_schedule"),
    "epilogue": ("epilogue_functor", "output_op"),
    "epilogue_op": ("epilogue_functor", "output_op"),
    "functor": ("epilogue_functor",),
    "scalars": ("output_op",),
    "cc": ("compute_capability",),
    "sm": ("compute_capability",),
    "mode": ("gemm_mode", "split_k_mode"),
    "size": ("problem_size", "problem_sizes"),
    "shape": ("problem_size", "problem_sizes", "threadblock_shape"),
    "batch_count": ("batch",),
    "batch_size": ("batch",),
    "slices": ("split_k_slices", "partitions"),
    "split_k": ("split_k_slices", "partitions"),
    "dtype": ("element", "element_output"),
    "warps": ("warp_count",),
    "cluster": ("cluster_shape",),
    "pdl": ("launch_with_pdl",),
    "dim": ("axis",),
}


def shown(value: Any) -> str:
    """Return ``repr(value)`` for a message: cut where it is long, and the name of its type where it has none."""
    try:
        text = _class_as_written(value) if isinstance(value, type) else repr(value)
    except Exception:  # of whoever wrote the class; its name says enough
        return f"<{type(value).__name__}>"
    if not text.isprintable():  # halves of surrogate pairs among it could be neither printed nor passed on
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({type(value).__name__})"


def _class_as_written(kind: type) -> str:
    """Return how users write a class, without the modules inside packages: cutlass.RowMajor, the class torch.Tensor."""
    package, _, module = kind.__module__.partition(".")
    if package == "pycutlass" and module.startswith("cutlass"):
        return f"{module}.{kind.__qualname__}"
    return f"the class {kind.__qualname__}" if package in ("builtins", "pycutlass") else repr(kind)


def counted(number: int, thing: str) -> str:
    """Return "1 kernel", "2 kernels"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" for the end of a message, or nothing where no name in `known` is near."""
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that `name` begins, if there is just one, or else the most similar one."""
    import difflib  # where there is a mistake: it takes a millisecond

    names = {each.lower(): each for each in known}
    words = sorted(name.lower().split("_"))
    turned = [each for each in names if sorted(each.split("_")) == words]  # leaky_alpha for alpha_leaky
    if turned:
        return names[turned[0]]
    begun = [each for each in names if len(name) > 3 and each.startswith(name.lower()) and name.lower() not in names]
    near = begun if len(begun) == 1 else difflib.get_close_matches(name.lower(), names, 1)
    return names[near[0]] if near else None


def unknown_keywords(
    who: str,
    unknown: Iterable[str],
    known: Iterable[str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
    legacy: Iterable[str] = (),
    thing: str = "keyword",
) -> ArgumentTypeError:
    """Return the exception for keywords that `who` does not have; `elsewhere` says where some of them belong.

    Those of earlier scripts, `legacy`, are not listed; what is near one of them is told it. What else than a keyword
    they are is the `thing`.
    """
    unknown, known = sorted(unknown), list(known)
    hints = "".join(dict.fromkeys(f" {elsewhere[name]}" for name in unknown if name in elsewhere))
    similar = {near for name in unknown if name not in elsewhere for near in _keywords_meant(name, [*known, *legacy])}
    for name in unknown:  # pad_h, pad_w and padding for pad: each alone would be half of what is meant
        begun = {each for each in known if each.startswith(name.lower())}
        similar |= begun if len(begun) > 1 and len(name) > 2 else set()
    names = ", ".join(each for each in (*known, *legacy) if each in similar)
    near = f"{hints} Did you mean {names}?" if names else hints
    if not known:
        return ArgumentTypeError(f"{who} takes no arguments, got {', '.join(unknown)}: leave it out.{near}")
    return ArgumentTypeError(f"{who} has no {thing} {', '.join(unknown)}; it has {', '.join(known)}.{near}")


def _keywords_meant(name: str, known: Sequence[str]) -> list[str]:
    """Return which of the `known` keywords may be meant by another: what others call it, or the nearest."""
    called = [each for each in _CALLED_ELSEWHERE.get(name.lower(), ()) if each in known]
    near = None if called else nearest(name, known)
    return called if near is None else [near]


def mistaken(
    who: str, further: tuple[Any, ...], unknown: Mapping[str, Any], known: tuple[str, ...], named: bool = False
) -> ArgumentTypeError:
    """Return the exception for a call with too many arguments, or with keywords that `who` does not have.

    It is for functions that are called once for each launch, which have no checked call around them.
    """
    if unknown:
        return unknown_keywords(who, unknown, known)
    by_name = "by name alone: " if named else ""
    first, is_tensor = further[0], hasattr(further[0], "shape")  # whose values say nothing
    got = f"{type(first).__name__} of shape {tuple(first.shape)}" if is_tensor else shown(first)
    how = f": write {who}({known[0]}=...)" if named else ""
    return ArgumentTypeError(f"{who} takes {by_name}{', '.join(known)}; got {len(further)} more, {got}{how}")


def missing(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return Python's exception for a name that a module lacks, with what is near."""
    return no_attribute(f"module {module!r}", name, suggestion(name, known))


def no_attribute(owner: str, name: str, near: str = "") -> AttributeError:
    """Return Python's exception for an attribute that `owner` lacks; `near` ends the message.

    Its `name` is set and its `obj` is not: otherwise Python sets both, and prints a suggestion of its own as well.
    """
    return AttributeError(f"{owner} has no attribute {name!r}.{near}".rstrip("."), name=name)


def no_such_field(owner: object, name: str, known: Iterable[str]) -> AttributeError:
    """Return Python's exception for an attribute that an object of ours does not have, and that is set all the same."""
    return AttributeError(
        f"{type(owner).__name__} has no attribute {name!r}, and none can be added.{suggestion(name, known)}", name=name
    )


def meant(value: Any, known: Mapping[str, str]) -> str:
    """Return "did you mean ...?" for a text that was given where one of `known` belongs: what each is written as."""
    if not isinstance(value, str):
        return ""
    import difflib

    name = value.rpartition(".")[2].lower()
    lower = {each.lower(): written for each, written in known.items()}
    near = difflib.get_close_matches(name, lower, 1)
    return f". Did you mean {lower[near[0]]}, without quotes?" if near else ""


def member_meant(value: Any, kind: Iterable[Any], owner: str) -> str:
    """Return "did you mean ...?" for a text in the place of a member of an enumeration, which is written `owner`."""
    return meant(value, {member.name: f"{owner}.{member.name}" for member in kind})


def public(target: _Target, *, but: tuple[str, ...] = (), also: Mapping[str, str] = MappingProxyType({})) -> _Target:
    """Let a function, or the constructor and the methods of a class, raise ArgumentTypeError for arguments it lacks.

    Without it Python raises a TypeError of its own for a missing argument, one too many or a misspelt keyword.

    Parameters
    ----------
    target : function or class
        What users call.
    but : tuple of str
        Methods that are left as they are, since they are called once for each launch.
    also : mapping
        Keywords of earlier scripts that a constructor takes for parameters of its own.
    """
    if not isinstance(target, type):
        checked: _Target = _checked(target, target.__name__)
        return checked
    for name, member in list(vars(target).items()):
        binding = type(member) if isinstance(member, staticmethod | classmethod) else None
        plain = member.__func__ if binding else member
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and name not in but and isinstance(plain, FunctionType):
            call = _checked(plain, None, also) if name == "__init__" else _checked(plain, f"{target.__name__}.{name}")
            setattr(target, name, binding(call) if binding else call)
            if binding is None:
                call.__set_name__(target, name)  # as in the body of a class
    return target


def _checked(function: Any, name: str | None, also: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Return `function` with a TypeError of its call made ours; without a `name` it is a constructor.

    It is called at once by C++; what cannot be called so, and keywords of `also`, are left to `call`.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for earlier, present in also.items():
            if earlier in kwargs:
                if present in kwargs:
                    raise _twice(present, earlier)
                kwargs[present] = kwargs.pop(earlier)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside: the call itself was right
            owner = None if name else type(args[0])
            raise _mistake(function, owner, name or type(args[0]).__name__, args, kwargs, error, also) from None

    return _core.checked_call(function, call, tuple(also))


def _mistake(
    function: Any,
    owner: type | None,
    who: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: TypeError,
    also: Mapping[str, str],
) -> ArgumentTypeError:
    """Return our exception for a call that does not fit the parameters of `function`, the constructor of `owner`.

    A class says what its signature alone does not: ``_ELSEWHERE``, where keywords of others belong; ``_LAST_NEEDED``,
    the last parameter that every form of the call has; ``_LEGACY``, keywords of earlier scripts that are not named;
    ``_MISPLACED``, what a value is for that belongs to another class.
    """
    for earlier, present in also.items():
        if f"multiple values for argument '{present}'" in str(error):
            return _twice(present, earlier)
    known = [each for each in inspect.signature(function).parameters.values() if each.name not in ("self", "cls")]
    names = [each.name for each in known if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    further = [each.name for each in known if each.kind is each.VAR_KEYWORD and each.name != "unknown"]
    unknown = [] if further else [name for name in kwargs if name not in names]  # "unknown" is there to be refused
    if unknown:
        legacy = getattr(owner, "_LEGACY", ())
        listed = [name for name in names if name not in legacy]
        return unknown_keywords(who, unknown, listed, getattr(owner, "_ELSEWHERE", {}), legacy)
    said = re.sub(r"^\S+\(\)", who, str(error))
    last, legacy = getattr(owner, "_LAST_NEEDED", None), getattr(owner, "_LEGACY", ())
    needed = names[: names.index(last) + 1] if last in names else []
    optional = [each.name for each in known if each.default is not each.empty and each.name not in (*needed, *legacy)]
    required = [name for name in names if name not in (*optional, *legacy)]
    takes = ", ".join([*required, f"optionally {', '.join(optional)}"] if optional else required)
    takes += "".join(f", and {each} by name" for each in further)
    misplaced: Callable[[Any], str] = getattr(owner, "_MISPLACED", lambda value: "")
    hint = next((text for text in map(misplaced, args[1:]) if text), "")
    return ArgumentTypeError(f"{said}; it takes {takes or 'none'}{f'.{hint}' if hint else ''}")


def unbound(function: Any, owner: type, first: Any) -> ArgumentTypeError:
    """Return the exception for a method that was called without an object of its class, but with `first`."""
    name = function.__name__
    how = f"write {owner.__name__}(...)" if name == "__init__" else f"call it on one, .{name}(...)"
    got = "none" if first is None else shown(first)
    if "torch._dynamo" in sys.modules:  # it takes methods that are not written in Python for functions
        how += (
            ". Inside of torch.compile, call it from a function that torch.compiler.disable was given, or call "
            "pycutlass.matmul or an operator of torch.ops.pycutlass instead"
        )
    return ArgumentTypeError(f"{function.__qualname__} needs an object of {owner.__name__} first, got {got}: {how}")


def _twice(name: str, earlier: str) -> ArgumentTypeError:
    """Return the exception for a parameter that is given under both of its names."""
    return ArgumentTypeError(f"give {name} or {earlier}, which are the same thing, not both")


def refused(error: Exception, args: tuple[Any, ...], keywords: tuple[str, ...]) -> PyCutlassError:
    """Return our exception for the one of pybind11, or of C++, that refused a call of the extension.

    Parameters
    ----------
    error : Exception
        A TypeError, ValueError or OverflowError.
    args : tuple
        The arguments of the call.
    keywords : tuple of str
        The names of the last of them.
    """
    text = str(error)
    match = re.match(r"(\w*)\(\): incompatible (\w+) arguments\.[^\n]*\n(.*?)\n\nInvoked with", text, re.DOTALL)
    if match is None:
        return (ArgumentTypeError if isinstance(error, TypeError) else ArgumentError)(text)
    forms = [_form(match[1], line) for line in match[3].splitlines()]
    given = args[1:] if match[2] == "constructor" or any("self: " in line for line in match[3].splitlines()) else args
    known = dict.fromkeys(re.findall(r"[(,] ?(\w+): ", " ".join(forms)))
    unknown = [name for name in keywords if name not in known]
    if unknown and known:
        return unknown_keywords(forms[0].split("(")[0], unknown, known)
    first = len(given) - len(keywords)
    named = dict(zip(keywords, given[first:], strict=True))
    got = ", ".join([*map(shown, given[:first]), *(f"{name}={shown(value)}" for name, value in named.items())])
    if len(forms) == 1:
        return ArgumentTypeError(f"the call must be {forms[0]}, got ({got})")
    several = list(map(_Form.of, forms))
    wrong = min((form.misfits(given[:first], named) for form in several), key=lambda each: tuple(map(len, each)))
    text = "; ".join([*wrong[0], *([f"{', '.join(wrong[1])} missing"] if wrong[1] else [])]) or "no form fits"
    who = forms[0].split("(")[0]
    return ArgumentTypeError(f"{who}({got}): {text}. It takes {'; or '.join(map(str, several))}")


@dataclass(frozen=True)
class _Form:
    """One of several forms of a call: types by name of what it needs, and of what may be left out."""

    required: dict[str, str]
    optional: dict[str, str]

    @classmethod
    def of(cls, text: str) -> _Form:
        """Return what the signature `text` says."""
        found = re.findall(r"(?:\(|, )(\w+): ([\w| ]+?)( =|(?=, |\)))", text)
        return cls(
            {name: kind for name, kind, default in found if not default},
            {name: kind for name, kind, default in found if default},
        )

    def __str__(self) -> str:
        return f"{', '.join(self.required)} and optionally {', '.join(self.optional)}"

    def misfits(self, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Return what is wrong with a call of this form, and what it lacks."""
        kinds = {**self.required, **self.optional}
        values = {**dict(zip(kinds, given, strict=False)), **named}
        wrong = [f"{name} belongs to another form" for name in named if name not in kinds]
        wrong += [
            f"{name} must be {kind}, got {shown(value)}"
            for name, value in values.items()
            if (kind := kinds.get(name)) and not any(_is_a(value, each) for each in kind.split(" | "))
        ]
        wrong += [f"{len(given) - len(kinds)} too many"] if len(given) > len(kinds) else []
        return wrong, [name for name in self.required if name not in values]


def _is_a(value: Any, kind: str) -> bool:
    """Return whether a value has the type that pybind11 calls `kind`."""
    if kind == "int":
        return hasattr(type(value), "__index__")
    return type(value).__name__ == ("NoneType" if kind == "None" else kind)


def _form(name: str, line: str) -> str:
    """Return one signature of pybind11's list as it would be typed; those of methods lack their name."""
    text = re.sub(r"^\s*\d+\. ", "", line).rsplit(" -> ", 1)[0]
    text = name + text if text.startswith("(") else text
    text = re.sub(r"\(self: [\w.]+(, )?", "(", text)
    text = re.sub(r"\b(pycutlass|collections|typing)\.(\w+\.)*(?=\w)", "", text)
    return text.replace("SupportsInt | ", "").replace("SupportsFloat | SupportsIndex", "float")
