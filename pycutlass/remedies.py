"""What a message tells to do about a tensor that does not fit: code that may be copied, and that is then accepted."""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "MARKERS",
    "EpilogueName",
    "alignment_of",
    "converted",
    "copied",
    "empty",
    "interleaved",
    "is_target",
    "laid_out",
    "may_be_bias",
    "spread",
    "transposed",
    "typed",
]

#: What users call the forms of parameters.
MARKERS = {"row": "Row", "column": "Column", "matrix": "Tensor", "number": "PerBatch", "source": "Source"}


class EpilogueName(str):
    """The name of a tensor of an epilogue, which its author chose: its letters say nothing, unlike those of operands.

    Parameters
    ----------
    name : str
        Of the tensor.
    written : bool
        Whether kernels write it.
    form : str
        The form of its port.
    tiles : int
        How many tiles across, or down, have results in it, each of them a vector; 0 where these are not apart.
    halved : bool
        Whether it is combined with what `pairs` returns, which has half of the product's columns.
    """

    written: bool
    form: str
    tiles: int
    halved: bool

    def __new__(
        cls, name: str, written: bool, form: str = "matrix", tiles: int = 0, halved: bool = False
    ) -> EpilogueName:
        """Return the name, which knows what the tensor is."""
        made = super().__new__(cls, name)
        made.written, made.form, made.tiles, made.halved = written, form, tiles, halved
        return made

    def __reduce__(self) -> tuple[type[EpilogueName], tuple[str, bool, str, int, bool]]:
        """Return what a copy is made from: exceptions hold names, and are pickled."""
        return EpilogueName, (str(self), self.written, self.form, self.tiles, self.halved)

    @property
    def marker(self) -> str:
        """The annotation of the parameter that it is given for."""
        return MARKERS.get(self.form, "Tensor")


def is_target(name: str) -> bool:
    """Return whether operand `name` is written: D or out, one of a list of them, the destination of a reduction."""
    if isinstance(name, EpilogueName):
        return name.written
    return name[0] in "Dd" or name.partition("[")[0] == "out"


def may_be_bias(name: str) -> bool:
    """Return whether a vector may stand for operand `name`: C, one of a list of them, the source of a reduction."""
    return not isinstance(name, EpilogueName) and name[0] in "Cs"


def converted(
    name: str, library: str, dtype: str, given: str | None = None, made: str = "", copied: str | None = None
) -> str:
    """Return how to get operand `name`, of type `given`, with another element type.

    D is made anew, and its result is read from there. A cast to a narrower integer would be silently wrong.

    Parameters
    ----------
    made : str
        Code that makes D, as `empty` returns it.
    copied : str, optional
        Code of a copy that has the right type, as `copied` returns it; None where a cast alone does.
    """
    module = {"torch": "torch", "cupy": "cupy", "numpy": "np"}.get(library)
    if library == "spec":
        return f"Give a TensorSpec of {dtype}"
    if is_target(name):
        return f"Make {name} as {made} and read the result from there"
    if given is not None and given.startswith("complex") and not dtype.startswith("complex"):
        return f"A cast would leave out imaginary parts: make {name} in {dtype} from the start"
    if given == "bool" and dtype in ("int8", "uint8") and library in ("torch", "numpy", "cupy"):
        return f"Pass {name}.view({typed(library, dtype)}), which has the same memory: 1 where it holds, else 0"
    described = _described(name, given)
    if given is not None and _wraps(given, dtype):
        change = described or f"make {name} in {dtype} from the start"
        return f"A cast would change values that {dtype} cannot represent: {change}"
    rounds = f", which rounds its values{described and ', or '}{described}" if given and _rounds(given, dtype) else ""
    if module is None:
        return f"Pass a copy in {dtype}{rounds}"
    cast = f"{name}.{'to' if library == 'torch' else 'astype'}({typed(library, dtype)})"
    if copied is None and (given == "uint16" or dtype == "bfloat16") and given in ("uint16", "int16"):
        return f"Pass {name}.view({typed(library, dtype)}) if it has the bits of {dtype}, or {cast} for its values"
    return f"Pass {copied or cast}{rounds}"


def _described(name: str, given: str | None) -> str:
    """Return how the functor of an epilogue function takes operand `name` in the type that it has; "" for others."""
    if not isinstance(name, EpilogueName) or given not in ("float16", "bfloat16", "float32", "float64"):
        return ""
    called = name.partition("[")[0]
    when = f"when the function is given its types, {called}=cutlass.{given}"
    return f"declare its type: in the function, {called}: {name.marker}(cutlass.{given}), or {when}"


def typed(library: str, dtype: str) -> str:
    """Return how an element type is written for a library."""
    if dtype == "bfloat16" and library != "torch":
        return "ml_dtypes.bfloat16"
    return f"{'torch' if library == 'torch' else 'cupy' if library == 'cupy' else 'np'}.{dtype}"


def laid_out(name: str, library: str, shape: tuple[int, ...], row_major: bool) -> str:
    """Return how to get operand `name` of `shape` with adjacent rows, or columns.

    D is made anew: the kernel would write into a copy, which nobody reads.
    """
    if library == "spec":
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        if not row_major:
            strides = (*strides[:-2], 1, shape[-2])
        return f"give a TensorSpec of shape {shape} with strides {strides}"
    if is_target(name):
        return f"make {name} as {empty(name, library, shape, None, row_major)} and read the result from there"
    return f"pass {copied(name, library, len(shape), row_major) or 'a contiguous copy'}"


def copied(name: str, library: str, rank: int, row_major: bool, dtype: str | None = None, anew: bool = False) -> str:
    """Return code that makes `name`, of `rank` dimensions, with adjacent rows, or columns; "" for other libraries.

    Parameters
    ----------
    dtype : str, optional
        Its element type then; None leaves it.
    anew : bool
        Whether it is copied even where it is laid out so already.
    """
    as_rows = row_major or rank < 2
    if library == "torch":
        packed = "clone(memory_format=torch.contiguous_format)" if anew else "contiguous()"
        cast = "" if dtype is None else f".to({typed(library, dtype)})"
        return f"{name}{cast}.{packed}" if as_rows else f"{name}{cast}.mT.{packed}.mT"
    module = {"numpy": "np", "cupy": "cupy"}.get(library)
    if module is None:
        return ""
    cast = "" if dtype is None else f", {typed(library, dtype)}"
    if as_rows:
        return f'{module}.array({name}{cast}, order="C")' if anew else f"{module}.ascontiguousarray({name}{cast})"
    if rank == 2:
        return f'{module}.array({name}{cast}, order="F")' if anew else f"{module}.asfortranarray({name}{cast})"
    return f"{copied(f'{name}.swapaxes(1, 2)', library, rank, True, dtype, anew)}.swapaxes(1, 2)"


def empty(name: str, library: str, shape: tuple[int, ...], dtype: str | None, row_major: bool) -> str:
    """Return code that makes operand `name` anew, with adjacent rows or columns; it reads its device alone."""
    as_rows = row_major or len(shape) < 2
    made = shape if as_rows else (*shape[:-2], shape[-1], shape[-2])
    extents = made[0] if len(made) == 1 else made
    kind = f"{name}.dtype" if dtype is None else typed(library, dtype)
    if library == "torch":
        return f"torch.empty({extents}, dtype={kind}, device={name}.device){'' if as_rows else '.mT'}"
    module = "cupy" if library == "cupy" else "np"
    if not as_rows and len(shape) == 2:
        return f'{module}.empty({shape}, {kind}, order="F")'
    return f"{module}.empty({extents}, {kind}){'' if as_rows else '.swapaxes(-1, -2)'}"


def transposed(
    name: str,
    library: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    row_major: bool,
    offer: str = "",
) -> str:
    """Return what to do where `shape`, of a matrix or a batch of them, is that of the transposed operand.

    `offer` is how to describe the operand with the other layout; nothing where there is no such operation.
    """
    view, is_written = f"{name}.T" if len(shape) == 2 else f"{name}.swapaxes(1, 2)", is_target(name)
    offer = "" if isinstance(name, EpilogueName) else offer
    described = "C" if is_written or name == "source" else name.partition("[")[0]
    purpose = {"A": "To multiply by that", "B": "To multiply by that", "C": "To add that"}.get(described, "To use that")
    if is_written:
        purpose = "To write the transposed result there"
    if strides[-2 if row_major else -1] == 1:
        return f"{purpose}, pass {view}"
    remedy = laid_out(name, library, (*shape[:-2], shape[-1], shape[-2]), row_major)
    other = f"{offer} and pass {view}" if described in ("A", "B", "C") else ""  # not the user's choice of all others
    if is_written:
        return f"{purpose}, {other}; for the result itself, {remedy}" if offer else f"For the result itself, {remedy}"
    return f"{purpose}, {remedy.replace(name, view)}{f', or {other}' if offer and other else ''}"


def interleaved(
    name: str, library: str, shape: tuple[int, ...], matrix: tuple[int, int], batch: int, row_major: bool
) -> str:
    """Return what to pass for operand `name` of `shape`, where groups of 32 rows, or columns, of `matrix` are needed.

    D is made anew, flat, and the user unpacks it.
    """
    if name.startswith("D"):
        rows, columns = matrix
        made = empty(name, library, (batch * rows * columns,), None, True)
        flat = name if batch == 1 else f"each {rows * columns} elements of {name}"
        return f"make {name} as {made} and read the result as pycutlass.deinterleave_columns({flat}, {rows}, {columns})"
    pack = "pycutlass.interleave_rows" if row_major else "pycutlass.interleave_columns"
    if shape == matrix:
        return f"pass {pack}({name})"
    if shape[-2:] == matrix:
        return f"pack each matrix with {pack}, and pass them flat, one after the other"
    packed = f"; if it is packed already, pass {name}.reshape(-1)" if shape[-1:] == (32,) else ""
    return f"pass {pack}({name}), with {name} of shape {matrix}{packed}"


def alignment_of(bits: int, address: int, *elements: int) -> int:
    """Return the alignment, in elements of so many bits, that an address and numbers of elements have; 0 for none."""
    together, beside = divmod(address * 8, bits)
    if beside:
        return 0
    for each in elements:
        together |= each
    return together & -together


def _wraps(given: str, dtype: str) -> bool:
    """Return whether a cast to integers loses more than rounding does."""
    if "int" not in dtype:
        return False
    return "int" not in given or not np.can_cast(np.dtype(given), np.dtype(dtype), "safe")


#: Bits of the significand, with the leading one, and of the exponent.
_FLOATS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
_INTEGERS = {f"{sign}int{bits}": bits - (not sign) for sign in ("", "u") for bits in (8, 16, 32, 64)}


def _rounds(given: str, dtype: str) -> bool:
    """Return whether a cast to floats may change values: any that is not known to keep them."""
    if dtype not in _FLOATS:
        return False
    digits, exponent = _FLOATS[dtype]
    if given in _FLOATS:
        return digits < _FLOATS[given][0] or exponent < _FLOATS[given][1]
    return _INTEGERS.get(given, 64) > digits


def spread(name: str, library: str, rows: int, columns: int, row_major: bool) -> str:
    """Return how to get a whole matrix of the vector `name`, which is to be added along the other dimension."""
    column = f"{name}.reshape({'-1, 1' if row_major else '1, -1'})"
    if library == "torch":
        turned = ".contiguous()" if row_major else ".mT.contiguous().mT"
        return f"pass {column}.expand({rows}, {columns}){turned}"
    module = {"numpy": "np", "cupy": "cupy"}.get(library)
    if module is None:
        return f"pass a matrix of {rows} x {columns}"
    packed = "ascontiguousarray" if row_major else "asfortranarray"
    return f"pass {module}.{packed}({module}.broadcast_to({column}, ({rows}, {columns})))"
