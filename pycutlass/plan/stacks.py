"""Products of vectors, matrices and batches of matrices as one GEMM or a batch of them, without copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pycutlass.errors import ArgumentError
from pycutlass.integers import shape_of
from pycutlass.plan.forms import Columns, as_strided, copied, form_of, lies, new_tensor, packed_vector, stacked
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.stacked_ports import of_each_matrix, vectors_as_one
from pycutlass.remedies import laid_out
from pycutlass.spec import TensorSpec
from pycutlass.tensor import TensorView, wrap

__all__ = ["Product", "Result"]

_REMEDY = "pass a contiguous copy, or allow_copy=True"
_ACCESS = 16
_BATCHED = 3  # dimensions of what plans take


class Product:
    """The operands of a product, as a plan takes them.

    Attributes
    ----------
    a, b, c : tensor
        Matrices, or batches of them with one axis.
    shape : tuple of int
        Of the result, as numpy.matmul has it.
    rows, columns : int
        Of one matrix of D.
    batch : tuple of int
        Axes of the batch, () where there is none.
    allows_copies : bool
        Whether tensors that no kernel takes are copied.
    is_folded : bool
        Whether the batch is rows of a single matrix: where B is shared, that is the faster product. Not where the
        epilogue has tensors for each matrix.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        views: Mapping[str, TensorView],
        allow_copy: bool,
        epilogue: Any = None,
        inputs: Mapping[str, Any] | None = None,
        is_of_batch: bool = False,
    ) -> None:
        self.allows_copies, self._views = allow_copy, views
        a, b = _shape("a", views["a"]), _shape("b", views["b"])
        a, b = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
        if a[-1] != b[-2]:
            raise ArgumentError(
                f"a of shape {views['a'].shape} and b of shape {views['b'].shape} have different K: {a[-1]} columns "
                f"of a and {b[-2]} rows of b"
            )
        self.batch = _broadcast(a[:-2], b[:-2])
        self.rows, self.columns, depth = a[-2], b[-1], a[-1]
        self.is_vector = (len(views["a"].shape or ()) == 1, len(views["b"].shape or ()) == 1)
        self.count = math.prod(self.batch)
        # A product without elements is none; the operands of one without a sum have none either, and C is added.
        self.is_empty = not (self.count and self.rows and self.columns)
        self.is_folded = False
        c = tensors["c"]
        if not any(b[:-2]) or math.prod(b[:-2]) == 1:
            self.is_folded = self.count > 1 and self._folds(c)
            if self.is_folded and (inputs or is_of_batch):
                apart = is_of_batch or of_each_matrix(epilogue, inputs or {}, self.batch, self.rows)
                self.is_folded = not apart
        if self.is_folded:
            self.a = self._folded("a", tensors["a"], self.batch, self.rows, depth)
            self.b = self._operand("b", tensors["b"], (), depth, self.columns)
            self.rows_of_gemm = self.count * self.rows
        else:
            self.a = self._operand("a", tensors["a"], self.batch, self.rows, depth)
            self.b = self._operand("b", tensors["b"], self.batch, depth, self.columns)
            self.rows_of_gemm = self.rows
        self.is_batched = self.count != 1 and not self.is_folded
        if self.is_batched and not self.is_empty:
            self._share(a, b)
        self.c = None if c is None else self._source(c)
        self.like, self.like_view = tensors["a"], views["a"]

    @property
    def key(self) -> tuple[Any, ...]:
        """What a plan depends on."""
        return tuple(self._seen(name, each) for name, each in (("a", self.a), ("b", self.b), ("c", self.c)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the product."""
        return self.with_columns(self.columns)

    def lay_c_like(self, out: Any) -> None:
        """Copy a C that lies otherwise than D, which no kernel takes, where that is allowed; a new D lies by rows."""
        if self.c is None or self.is_empty or not self.allows_copies or len(wrap("c", self.c).shape or ()) == 1:
            return
        view = wrap("c", self.c)
        d = None if out is None else wrap("out", out)
        ways = [by_rows for by_rows in (True, False) if (by_rows if d is None else lies(d, by_rows))]
        if ways and not any(lies(view, by_rows) for by_rows in ways):
            self.c = copied("c", self.c, view, view.shape or (), ways[0])

    def with_columns(self, count: int) -> tuple[int, ...]:
        """Return the shape of a result with so many columns."""
        rows, columns = () if self.is_vector[0] else (self.rows,), () if self.is_vector[1] else (count,)
        return (*self.batch, *rows, *columns)

    @property
    def planned(self) -> tuple[Any, Any, Any]:
        """What a plan is made from: of a product without elements one matrix, without memory."""
        if not self.is_empty:
            return self.a, self.b, self.c
        types, depth = self._views, _matrix("a", self._views["a"])[0][-1]
        a, b = (self.rows, depth), (depth, self.columns)
        c = None if self.c is None else TensorSpec((self.rows, self.columns), types["c"].dtype_name)
        return TensorSpec(a, types["a"].dtype_name), TensorSpec(b, types["b"].dtype_name), c

    def _folds(self, c: Any) -> bool:
        """Return whether the rows of all matrices of A are as far apart, and nothing but a vector is added."""
        shape, strides = _matrix("a", self._views["a"])
        if c is not None and len(self._views["c"].shape or ()) != 1:
            return False
        if shape[:-2] != self.batch or self.is_empty:
            return False
        found = stacked(shape[:-1], strides[:-1])
        return found is not None and found[1] != 0 and (strides[-1] == 1 or shape[-1] == 1)

    def _folded(self, name: str, tensor: Any, batch: tuple[int, ...], rows: int, columns: int) -> Any:
        view = self._views[name]
        shape, strides = _matrix(name, view)
        found = stacked(shape[:-1], strides[:-1])
        assert found is not None
        return as_strided(name, tensor, view, (found[0], columns), (found[1], strides[-1]))

    def _operand(self, name: str, tensor: Any, batch: tuple[int, ...], rows: int, columns: int) -> Any:
        """Return an operand with at most one axis of a batch, a copy only where that is allowed."""
        view = self._views[name]
        shape, strides = _matrix(name, view, as_column=name == "b")
        if self.is_empty:
            return tensor
        missing = len(batch) - len(shape[:-2])
        steps = (0,) * missing + tuple(
            0 if extent == 1 else step for extent, step in zip(shape[:-2], strides[:-2], strict=True)
        )
        found = stacked(batch, steps) if batch else (1, 0)
        taken: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        if found is not None:
            count, step = found
            plain = count == 1 or step == 0
            taken = (shape[-2:], strides[-2:]) if plain else ((count, *shape[-2:]), (step, *strides[-2:]))
            looked = TensorView(view.pointer, view.dtype_name, *taken, view.device, view.library, view.owner)
            if form_of(looked, 8) is None:
                taken = None
        if taken is None:
            if not self.allows_copies:
                raise _needs_copy(name, view, batch, found is None and 0 in steps)
            whole = (*batch, rows, columns) if any(steps) else (rows, columns)
            if not any(steps):  # of which one matrix is for all
                shape, strides = shape[-2:], strides[-2:]
            made = copied(name, _reshaped(name, tensor, view, shape, strides), view, whole)
            return made if len(whole) == 2 else made.reshape((math.prod(batch), rows, columns))
        if taken == (view.shape, view.strides) and view.library != "dlpack":
            return tensor
        return as_strided(name, tensor, view, *taken)

    def _share(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        """Give one operand the axis of the batch where both are shared by it: C alone, or an axis of one, has it."""
        if len(wrap("a", self.a).shape or ()) == 2 and len(wrap("b", self.b).shape or ()) == 2:
            view = wrap("a", self.a)
            assert view.shape is not None and view.strides is not None
            self.a = as_strided("a", self.a, view, (self.count, *view.shape), (0, *view.strides))

    def _source(self, c: Any) -> Any:
        """Return C as a plan takes it: a vector as it is."""
        view = self._views["c"]
        shape = _shape("c", view)
        if len(shape) == 1 and not self.is_vector[1] and (not self.is_vector[0] or shape != self.shape):
            if shape != (self.columns,):
                raise ArgumentError(f"a bias has one number for each of {self.columns} columns, got shape {shape}")
            return packed_vector("c", c, view, self.allows_copies)
        if shape != self.shape:
            raise ArgumentError(f"c must have the shape of the product, {self.shape}, or be a bias; got {shape}")
        if any(self.is_vector):
            steps = view.strides or ()
            full, strides = self.inserted(shape, steps, self.columns)
            c = as_strided("c", c, view, full, strides)
            self._views = {**self._views, "c": wrap("c", c)}
        return self._operand("c", c, self.batch, self.rows, self.columns)

    def inserted(
        self, shape: tuple[int, ...], strides: tuple[int, ...], columns: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return shape and strides of a result of so many columns with the axes that vectors take away from it."""
        extents, steps = list(shape), list(strides)
        if self.is_vector[1]:
            extents.append(1)
            steps.append(1)
        if self.is_vector[0]:
            at = len(extents) - 1
            extents.insert(at, 1)
            steps.insert(at, max(1, columns))
        return tuple(extents), tuple(steps)

    def taken(self, full: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return shape and strides of a result as a plan takes it; None where it has no such form."""
        if self.is_folded:
            found = stacked(full[:-1], strides[:-1])
            return None if found is None else ((found[0], full[-1]), (found[1], strides[-1]))
        if not self.is_batched:
            return full[-2:], strides[-2:]
        found = stacked(full[:-2], strides[:-2])
        return None if found is None else ((found[0], *full[-2:]), (found[1], *strides[-2:]))

    def beside(self, name: str, form: str, tensor: Any, columns: int) -> Any:
        """Return a tensor of the epilogue, of the stack's axes, as a plan takes it; others as they are."""
        if form != "matrix":
            plain = self.is_empty or any(self.is_vector) or not (self.is_folded or self.is_batched)
            size = self.rows, columns
            return tensor if plain else vectors_as_one(name, form, tensor, self.batch, size, self.is_folded)
        shape = self.with_columns(columns)
        # A result of one dimension is taken as it is: flat.
        is_of_plan = len(shape) <= (1 if any(self.is_vector) else _BATCHED)
        if self.is_empty or is_of_plan or shape_of(tensor) != shape:
            return tensor
        view = wrap(name, tensor)
        if view.strides is None or view.library not in ("torch", "numpy", "cupy"):
            return tensor
        found = self.taken(*self.inserted(shape, view.strides, columns))
        if found is None:
            raise ArgumentError(
                f"operand {name} of shape {shape} has strides {view.strides}, and kernels go from matrix to matrix by "
                f"one step: {laid_out(name, view.library, shape, True)}"
            )
        return as_strided(name, tensor, view, *found)

    def _seen(self, name: str, tensor: Any) -> Any:
        if tensor is None or self.is_empty:
            return None if tensor is None else (self._views[name].dtype_name, self._views[name].shape)
        view = wrap(name, tensor)
        return view.shape, view.strides, view.dtype_name, view.device, view.library, view.pointer % _ACCESS


class Result:
    """Where a product goes: what the caller gave, or new memory."""

    def __init__(
        self, product: Product, out: Any, view: TensorView | None, allow_copy: bool, columns_of_d: Columns
    ) -> None:
        self._product, self._out, self._copy = product, out, None
        self._columns = columns_of_d(product.columns)
        self.given = None
        if out is None or view is None:
            self.key: Any = None
            return
        shape = product.with_columns(self._columns)
        if view.shape != shape:
            raise ArgumentError(f"out must have shape {shape}, got {view.shape}")
        if product.is_empty:
            self.key = view.dtype_name
            return
        full, strides = product.inserted(view.shape, view.strides or (), self._columns)
        found = product.taken(full, strides)
        looked = None if found is None else TensorView(view.pointer, view.dtype_name, *found, None, view.library, None)
        # Pairs of columns are written where they lie side by side.
        is_turned = columns_of_d(2) < 2 and looked is not None and not lies(looked, True)
        if looked is None or form_of(looked, 8) is None or (is_turned and allow_copy):
            if not allow_copy or view.library not in ("torch", "numpy", "cupy"):
                raise ArgumentError(
                    f"out of shape {view.shape} with strides {view.strides} is none that a kernel writes: {_REMEDY}"
                )
            if any(step == 0 and extent > 1 for step, extent in zip(view.strides or (), view.shape, strict=False)):
                raise ArgumentError(
                    f"out of shape {view.shape} with strides {view.strides} has several elements at one address, as "
                    f"an expanded tensor has: pass memory for each of them"
                )
            self._copy = new_tensor(out, view, shape, str(view.dtype_name))
            packed = wrap("out", self._copy)
            full, strides = product.inserted(packed.shape or (), packed.strides or (), self._columns)
            found, view = product.taken(full, strides), packed
        assert found is not None
        target = out if self._copy is None else self._copy
        as_is = found == (view.shape, view.strides) and view.library != "dlpack"
        self.given = target if as_is else as_strided("out", target, view, *found)
        self.key = (*found, view.dtype_name, view.device, view.library, view.pointer % _ACCESS)

    def target(self, kind: GemmKind) -> Any:
        """Return what the plan writes."""
        product = self._product
        if self.given is not None or (self._out is not None and product.is_empty):
            return self.given
        columns = self._columns
        shape = product.with_columns(columns)
        self._out = new_tensor(product.like, product.like_view, shape, kind.D.type.dtype_name)
        if product.is_empty:
            return None
        whole = (product.rows_of_gemm, columns)
        return self._out.reshape((product.count, *whole) if product.is_batched else whole)

    def finished(self) -> Any:
        """Return the result: what the caller gave, with a copy written back to it, or the new one."""
        if self._copy is not None:
            self._out[...] = self._copy
        return self._out


def _shape(name: str, view: TensorView) -> tuple[int, ...]:
    if view.shape is None or not view.shape:
        remedy = ": to multiply by a number, pass it as alpha" if name in ("a", "b") else ""
        raise ArgumentError(f"{name} must have one dimension or more, got shape {view.shape}{remedy}")
    return view.shape


def _matrix(name: str, view: TensorView, as_column: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides with a vector as one row, or as one column."""
    shape, strides = _shape(name, view), view.strides or ()
    if len(shape) > 1:
        return shape, strides
    extent, step = shape[0], strides[0]
    return ((extent, 1), (step, max(1, extent))) if as_column else ((1, extent), (max(1, extent), step))


def _needs_copy(name: str, view: TensorView, batch: tuple[int, ...], is_repeated: bool) -> ArgumentError:
    """Return the exception for an operand that no kernel takes as it lies, or as it is repeated along a batch."""
    if not is_repeated:
        return ArgumentError(
            f"{name} of shape {view.shape} with strides {view.strides} would have to be copied to be "
            f"{f'a batch of {batch}' if batch else 'a matrix'} that kernels take: {_REMEDY}"
        )
    whole = (*batch, *(view.shape or ())[-2:])
    repeated = {
        "torch": f"{name}.expand({whole}).contiguous()",
        "numpy": f"np.ascontiguousarray(np.broadcast_to({name}, {whole}))",
        "cupy": f"cupy.ascontiguousarray(cupy.broadcast_to({name}, {whole}))",
    }.get(view.library, f"a contiguous tensor of shape {whole}")
    return ArgumentError(
        f"{name} of shape {view.shape} is repeated along some axes of the batch {batch} and not along others, and "
        f"kernels go from matrix to matrix by one step: to repeat it in memory, pass allow_copy=True, or {repeated}"
    )


def _reshaped(name: str, tensor: Any, view: TensorView, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return tensor if view.shape == shape else as_strided(name, tensor, view, shape, strides)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a batch that both have, or are repeated along."""
    length = max(len(a), len(b))
    left, right = (1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(left, right, strict=True)):
        raise ArgumentError(f"the batches {a} of a and {b} of b do not broadcast: axes must be equal, or 1")
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))
