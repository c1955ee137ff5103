"""What a message tells to do about a tensor that does not fit: code that may be copied, and that is then accepted."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["alignment_of", "converted", "interleaved", "laid_out", "spread", "transposed"]


def converted(name: str, library: str, dtype: str, given: str | None = None) -> str:
    """Return how to get operand `name`, of type `given`, with another element type.

    D is made anew, and its result is read from there. A cast to a narrower integer would be silently wrong.
    """
    module = {"torch": "torch", "cupy": "cupy", "numpy": "np"}.get(library)
    if library == "spec":
        return f"Give a TensorSpec of {dtype}"
    if module is None and name[0] in "Dd":
        return f"Make another {name} in {dtype} and read the result from there"
    if name[0] not in "Dd" and given is not None and _wraps(given, dtype):
        return f"A cast would change values that {dtype} cannot represent: make {name} in {dtype} from the start"
    if module is None:
        rounds = ", which rounds its values" if given is not None and _rounds(given, dtype) else ""
        return f"Pass a copy in {dtype}{rounds}"
    written = f"{'ml_dtypes' if (library, dtype) == ('numpy', 'bfloat16') else module}.{dtype}"
    if name[0] in "Dd":  # or destination
        return f"Make {name} as {module}.empty_like({name}, dtype={written}) and read the result from there"
    rounds = ", which rounds its values" if given is not None and _rounds(given, dtype) else ""
    return f"Pass {name}.{'to' if library == 'torch' else 'astype'}({written}){rounds}"


def laid_out(name: str, library: str, shape: tuple[int, ...], dtype: str | None, row_major: bool) -> str:
    """Return how to get operand `name` of `shape` with adjacent rows, or columns.

    D is made anew: the kernel would write into a copy, which nobody reads.
    """
    if library == "spec":
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        if not row_major:
            strides = (*strides[:-2], 1, shape[-2])
        return f"give a TensorSpec of shape {shape} with strides {strides}"
    if name[0] in "Dd":  # or destination
        return f"make {name} as {_empty(name, library, shape, dtype, row_major)} and read the result from there"
    module = {"numpy": "np", "cupy": "cupy"}.get(library)
    if library == "torch":
        return f"pass {name}.contiguous()" if row_major else f"pass {name}.mT.contiguous().mT"
    if module is None:
        return "pass a contiguous copy"
    if row_major:
        return f"pass {module}.ascontiguousarray({name})"
    if len(shape) == 2:
        return f"pass {module}.asfortranarray({name})"
    return f"pass {module}.ascontiguousarray({name}.swapaxes(1, 2)).swapaxes(1, 2)"


def transposed(
    name: str,
    library: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str | None,
    row_major: bool,
    offer: str = "",
) -> str:
    """Return what to do where `shape`, of two dimensions, is that of the transposed operand.

    `offer` is how to describe the operand with the other layout; nothing where there is no such operation.
    """
    view, is_target = f"{name}.T", name[0] in "Dd"
    described = "C" if is_target or name == "source" else name.partition("[")[0]
    purpose = {"A": "To multiply by that", "B": "To multiply by that", "C": "To add that"}.get(described, "To use that")
    if is_target:
        purpose = "To write the transposed result there"
    if strides[0 if row_major else 1] == 1:
        return f"{purpose}, pass {view}"
    remedy = laid_out(name, library, shape[::-1], dtype, row_major)
    other = f"{offer} and pass {view}" if described in ("A", "B", "C") else ""  # not the user's choice of all others
    if is_target:
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
        made = f"torch.empty({batch * rows * columns}, dtype={name}.dtype, device={name}.device)"
        if library != "torch":
            made = f"{'cupy' if library == 'cupy' else 'np'}.empty({batch * rows * columns}, {name}.dtype)"
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


def _empty(name: str, library: str, shape: tuple[int, ...], dtype: str | None, row_major: bool) -> str:
    if library == "torch":
        made = shape if row_major else (*shape[:-2], shape[-1], shape[-2])
        return f"torch.empty({made}, dtype=torch.{dtype}, device={name}.device){'' if row_major else '.mT'}"
    module = "cupy" if library == "cupy" else "np"
    if row_major:
        return f"{module}.empty({shape}, {name}.dtype)"
    if len(shape) == 2:
        return f'{module}.empty({shape}, {name}.dtype, order="F")'
    return f"{module}.empty({(*shape[:-2], shape[-1], shape[-2])}, {name}.dtype).swapaxes(-1, -2)"
