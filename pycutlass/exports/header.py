"""The header beside a library: its interface in one file, and the numbers of its plans and tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pycutlass.errors import ArgumentError
from pycutlass.exports.building import SOURCES
from pycutlass.exports.described import Described
from pycutlass.toolkit import own_include

__all__ = ["checked_identifier", "library_header"]

_KEYWORDS = re.compile(
    r"auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|"
    r"long|main|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|"
    r"void|volatile|while|bool|catch|class|delete|explicit|export|false|friend|mutable|namespace|new|"
    r"operator|private|protected|public|template|this|throw|true|try|typename|using|virtual"
)


def checked_identifier(what: str, name: str) -> str:
    """Return a name that C takes for a function, or raise ArgumentError."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or _KEYWORDS.fullmatch(name):
        raise ArgumentError(
            f"{what} becomes the name of a function in C, which has letters, digits and underlines and is no keyword; "
            f"got {name!r}"
        )
    return name


def library_header(name: str, plans: Sequence[Described]) -> str:
    """Return a header that needs no other: what library.h and abi.h say, and what is in this library."""
    abi = (own_include() / "pycutlass" / "abi.h").read_text()
    interface = (SOURCES / "library.h").read_text()
    guarded = f"#ifndef PYCUTLASS_ABI_VERSION\n{abi.replace('#pragma once', '').rstrip()}\n#endif\n"
    inlined = interface.replace('#include "pycutlass/abi.h"\n', guarded)
    prefix = name.upper()
    lines = [inlined.rstrip(), "", f"#ifndef {prefix}_PLANS", f"#define {prefix}_PLANS", ""]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    lines += [f"/// The library {name}.so, for programs that link it.", f"pycutlass_library const* {name}(void);", ""]
    for number, plan in enumerate(plans):
        member = _member(plan.name)
        lines += [f"/// {plan.name}: {plan.what}", "enum {", f"  {prefix}_{member} = {number},"]
        lines += [f"  {prefix}_{member}_{_member(each.name)} = {i}," for i, each in enumerate(plan.tensors)]
        lines += ["};", ""]
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""])


def _member(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII).upper()
