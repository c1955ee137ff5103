"""Products in one line: a plan is made for the tensors, kept, and run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pycutlass import _core, cutlass
from pycutlass.calls import public, unknown_keywords
from pycutlass.epilogue.given_scalars import scalar_key
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.integers import attribute, shape_of
from pycutlass.operands.overlaps import renamed
from pycutlass.plan.forms import as_strided, packed_vector, seen_as
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.gradients import check_gradients, kept_scalars
from pycutlass.plan.kinds import Wanted, check_columns, check_epilogue, check_types, columns_of, decisive
from pycutlass.plan.known_calls import repeated
from pycutlass.plan.options import (
    OF_KERNELS,
    KeptPlans,
    bad_options,
    check_allow_copy,
    check_with_plan,
    scalars_among,
    without_tensors,
)
from pycutlass.plan.port_copies import beside_product
from pycutlass.plan.readings import about_c, element_of, is_usual, named_inputs, needs_source
from pycutlass.plan.scales import NO_SCALES, Scales
from pycutlass.plan.shortcut import (
    Seen,
    Shortcut,
    as_matrices,
    by_kind,
    known,
    precision_of,
    precision_of_float32,
    products,
    seen,
)
from pycutlass.plan.stacks import Product, Result
from pycutlass.tensor import wrap

__all__ = ["linear", "matmul"]

#: Plans that `matmul` made, by all that tells kinds of products apart.
_plans: KeptPlans[Gemm] = KeptPlans(256, "matmul")
#: Those with scalars of an epilogue function: ever other scalars drop none of the others.
_plans_of_scalars: KeptPlans[Gemm] = KeptPlans(64, "matmul")


@public
def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Any = None,
    beta: Any = None,
    bias: Any = None,
    epilogue: Any = None,
    epilogue_inputs: Mapping[str, Any] | None = None,
    out: Any = None,
    out_dtype: Any = None,
    accumulator_dtype: Any = None,
    precision: str | None = None,
    scales: Any = None,
    plan: Gemm | None = None,
    allow_copy: bool = False,
    stream: Any = None,
) -> Any:
    """Return the product of two tensors, as ``numpy.matmul`` defines it: epilogue(alpha * a @ b + beta * c).

    Parameters
    ----------
    a, b : tensor
        Matrices, vectors, or batches of matrices, which broadcast against each other. Tensors of torch, NumPy and CuPy,
        and objects with ``__dlpack__``, of equal types, or of two types of 8 bits that kernels multiply; or one of
        float16 or bfloat16 and the other of int8 or uint8, which the kernel converts in registers. Elements of K must
        be adjacent in the latter, and there are multiples of 4 of them: `w.T` of weights by rows.
    c : tensor, optional
        What is added, of the shape of the product; a vector is a bias of one number for each column.
    alpha, beta : number, optional
        The scalars: 1 and 0 if left out, or what an epilogue function has as its defaults. A `c` that is no vector
        needs a `beta` other than 0, which is 1 for a vector if left out.
    bias : tensor, optional
        A vector of one number for each column, which is added before the activation, beside `c` or alone. Alone it is
        multiplied by `beta`, which is 1 if left out.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function.
    epilogue_inputs : mapping, optional
        The tensors and scalars of the epilogue, by name, those that it writes beside the result too. What has an
        element for each of the result has its shape; a vector of each matrix of a batch has the axes of the batch
        before it.
    out : tensor, optional
        Where the result is written.
    out_dtype : element type, optional
        Type of the result: by default that of `out`, else that of `a`, of integers int32, of floats of 8 bits bfloat16,
        of a float and an integer the float's.
    accumulator_dtype : element type, optional
        What is summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"``, ``"tf32"`` or ``"3xtf32"``. By default float32, and for torch tensors
        as torch's own setting for matrix products says.
    plan : Gemm, optional
        What computes it, instead of a plan that is made here.
    allow_copy : bool
        Whether tensors that no kernel takes are copied, those in `epilogue_inputs` too; otherwise they are refused, as
        those that the epilogue writes are either way.
    scales : tuple of 2, optional
        The scales of `a` and `b`: numbers, or tensors in their memory, of one element for a whole operand, or of one
        for each row of `a`, (M,) or (M, 1), and for each column of `b`, (N,) or (1, N). The product is multiplied by
        both before anything is added; of integers it is float32 then, unless `out_dtype` says otherwise.
    stream : optional
        Where it is launched; by default the current stream of the tensors' library.

    Returns
    -------
    tensor
        `out`, or a new tensor in the library of `a` and on its device.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Tensors that do not fit each other, that would have to be copied, or that require a gradient.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> pycutlass.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    check_epilogue(epilogue)
    scaled = NO_SCALES if scales is None else Scales.of(scales)
    scalars = kept_scalars({"alpha": alpha, "beta": beta}, "product")
    as_given = scalars["alpha"] is alpha and scalars["beta"] is beta
    alpha, beta = scaled.times(scalars["alpha"], epilogue), scalars["beta"]
    columns = columns_of(epilogue if plan is None else attribute(attribute(plan, "kind"), "epilogue"))
    flat = as_matrices(a, b, c, out, columns) if scales is None and plan is None and epilogue_inputs is None else None
    if flat is not None:  # a stack of matrices as one, as layers have it
        how = {"out_dtype": out_dtype, "accumulator_dtype": accumulator_dtype, "precision": precision}
        more = {"alpha": alpha, "beta": beta, "bias": bias, "epilogue": epilogue, "stream": stream}
        rows = matmul(flat[0], b, c, out=flat[1], allow_copy=allow_copy, **how, **more)
        return out if out is not None else seen_as(rows, lambda made: made.view(*a.shape[:-1], made.shape[-1]))
    epilogue_inputs = named_inputs(epilogue_inputs) or None
    if plan is not None:
        said = {"epilogue": epilogue, "out_dtype": out_dtype, "accumulator_dtype": accumulator_dtype}
        said |= {"precision": precision, "alpha": alpha, "beta": beta}
        if scales is not None:
            raise ArgumentError("scales and a plan are given: make the plan with an epilogue that has them")
        check_with_plan(plan, Gemm, said, epilogue_inputs or {})
    key: Seen | None = None
    given = (alpha, beta, epilogue, out_dtype, accumulator_dtype, precision)
    precision = precision_of(a) if precision is None else precision
    if epilogue_inputs is None and plan is None and scales is None and (c is None or bias is None):
        source = bias if c is None else c
        tensors = seen(a, b, source, out)
        try:
            kinds = by_kind(alpha), by_kind(beta)
            numbers = scalar_key(kinds[0]), scalar_key(kinds[1])
            options = *kinds, *given[2:]
            key = None if tensors is None else Seen(tensors, options, bias is not None, precision, numbers)
            shortcut = None if key is None else known(key)
        except Exception as error:  # scalars in device memory, or types of the user's own
            raise bad_options("matmul", error, dict(zip(OF_KERNELS, given, strict=True))) from error
        if key is not None and shortcut is not None:
            result = shortcut.run(key, given, a, b, source, out, stream, as_given)
            if result is not None:
                return result
    check_allow_copy(allow_copy)
    views = {"a": wrap("a", a), "b": wrap("b", b)}
    added = "bias" if c is None else "c"
    c, bias, beta = _source(c, bias, beta, epilogue, is_one_column=len(views["b"].shape or ()) == 1)
    given_c = c
    for name, tensor in (("c", c), ("bias", bias), ("out", out)):
        if tensor is not None:
            views[name] = wrap(name, tensor)
    if bias is not None:
        bias = packed_vector("bias", bias, views["bias"], allow_copy)
    check_gradients(views | scaled.views, "product")
    if c is not None and plan is None and columns(2) < 2 and len(views["c"].shape or ()) > 1:
        raise ArgumentError(about_c(True, beta, epilogue))  # before its shape is, which is the product's for no kernel
    is_of_batch = plan is not None and plan.batch is not None
    product = Product({"a": a, "b": b, "c": c}, views, allow_copy, epilogue, epilogue_inputs, is_of_batch)
    check_columns(epilogue if plan is None else plan.kind.epilogue, product.columns)
    if scales is not None:
        of = decisive(*(element_of(name, views[name]) for name in "ab"))
        if out_dtype is None and out is None and of.is_integer:
            out_dtype = cutlass.float32
        written = element_of("out", views["out"]) if out is not None else Wanted(epilogue, out_dtype).output(of)
        scaled.check_output(written)
    if scaled.views:
        epilogue, ports = scaled.epilogue(epilogue, product, views["a"].device, of)
        if epilogue_inputs is not None and (twice := sorted(set(ports) & set(epilogue_inputs))):
            raise ArgumentError(f"{', '.join(twice)} in epilogue_inputs and scales are given, which are the same")
        epilogue_inputs = {**(epilogue_inputs or {}), **ports}
    options = (alpha, beta, epilogue, out_dtype, accumulator_dtype, precision)
    made = Result(product, out, views.get("out"), allow_copy, columns)
    product.lay_c_like(made.given)
    if plan is None:
        plan = _plan_of(product, made, options, epilogue_inputs, bias)
    target = made.target(plan.kind)
    inputs = {} if epilogue_inputs is None else epilogue_inputs
    ports = beside_product(product, plan.kind, inputs)
    if product.is_empty:
        plan.check_empty(product.a, product.b, product.c, ports, bias)
    else:
        try:
            plan.run_once(product.a, product.b, product.c, target, stream, ports, bias)
        except ArgumentError as error:  # plans call a vector that they add a bias
            raise renamed(error, {"bias": added}) from error.__cause__
        is_plain = product.a is a and product.b is b and product.c is given_c and made.given is out
        if key is not None and is_plain and bias is None and plan.kind.D.is_row_major:
            Shortcut(key, plan, a, b)
    return made.finished()


#: What products of float32 depend on beside what they are given.
_SETTINGS = {"products": precision_of_float32}
if not TYPE_CHECKING:  # to type checkers it is the function
    matmul = _core.fast_product(repeated(matmul, _SETTINGS), products)


@public
def linear(x: Any, w: Any, bias: Any = None, activation: Any = None, **options: Any) -> Any:
    """Return activation(x @ w.T + bias), as a linear layer of torch computes it.

    Parameters
    ----------
    x : tensor
        Of (..., in), with any leading dimensions.
    w : tensor
        Of (out, in).
    bias : tensor, optional
        Of (out,).
    activation : optional
        An activation, such as ``pycutlass.relu``.
    **options
        What `matmul` takes besides.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> x, w = np.ones((2, 3, 4), np.float32), np.ones((5, 4), np.float32)
    >>> pycutlass.linear(x, w, activation=pycutlass.relu).shape
    (2, 3, 5)
    """
    shape = shape_of(w) or wrap("w", w).shape
    if shape is None or len(shape) != 2:
        raise ArgumentError(f"w must be a matrix of (out, in), got shape {shape}")
    turned = attribute(w, "T")
    if turned is None:
        turned = _turned(w)
    if unknown := options.keys() - _MORE:
        raise unknown_keywords("linear", unknown, ("x", "w", "bias", "activation", *_MORE))
    if activation is not None:
        if options.get("epilogue") is not None:
            raise ArgumentError("activation and epilogue are both given: write the activation into the epilogue")
        check_epilogue(activation, "activation")
        options["epilogue"] = activation
    try:
        return matmul(x, turned, bias=bias, **options)
    except (ArgumentError, ArgumentTypeError) as error:
        wrong = _wrong_with_layer(x, w, shape)
        raise renamed(error, {"a": "x", "b": "w"}) if wrong is None else wrong from error.__cause__


def _turned(w: Any) -> Any:
    """Return the transposed view of a matrix of a library without one, such as one that has DLPack alone."""
    view = wrap("w", w)  # which says what is wrong with a sparse one
    if view.shape is None or view.strides is None:
        raise ArgumentTypeError("w is an address, which says neither shape nor type: pass a tensor")
    return as_strided("w", w, view, view.shape[::-1], view.strides[::-1])


def _wrong_with_layer(x: Any, w: Any, shape: tuple[int, ...]) -> Exception | None:
    """Return what is wrong with x or w by these names: what matmul says is about a and b, which are x and w.T."""
    of_x = shape_of(x)
    if of_x and of_x[-1] != shape[1]:
        return ArgumentError(
            f"x of shape {tuple(of_x)} and w of shape {tuple(shape)} do not fit: w is (out, in), and the last extent "
            f"of x must be {shape[1]}"
        )
    try:
        views = {"x": wrap("x", x), "w": wrap("w", w)}
        check_types(element_of("x", views["x"]), element_of("w", views["w"]), ("x", "w"), upcast=True)
        check_gradients(views, "product")
    except PyCutlassError as error:
        return error
    return None


#: What `linear` hands to `matmul` beside its own, with its defaults.
_MORE = {
    name: each.default for name, each in inspect.signature(matmul).parameters.items() if name not in ("a", "b", "bias")
}
if not TYPE_CHECKING:
    linear = repeated(linear, _SETTINGS, _MORE)


def _source(c: Any, bias: Any, beta: Any, epilogue: Any, is_one_column: bool) -> tuple[Any, Any, Any]:
    """Return C and a bias beside it, and beta: a bias alone is a C that is a vector.

    A function that reads C itself has no beta.

    Where B is a vector, a C that is a vector has a number for each row, and a bias is one number.
    """
    if bias is not None:
        shape = wrap("bias", bias).shape
        if shape is None or len(shape) != 1:
            raise ArgumentError(f"bias must be a vector of one number for each column, got shape {shape}")
    if c is None and not is_one_column:
        c, bias = bias, None
    is_left_out = is_usual(beta, 0) and not needs_source(epilogue, beta)
    if c is not None and is_left_out and len(wrap("c", c).shape or ()) == 1:
        beta = 1
    return c, bias, beta


def _plan_of(
    product: Product, result: Result, options: tuple[Any, ...], inputs: Mapping[str, Any] | None, bias: Any
) -> Gemm:
    """Return the plan that was kept for such tensors, or make it."""
    alpha, beta, epilogue, out_dtype, accumulator_dtype, precision = options

    def make() -> Gemm:
        return Gemm(
            *product.planned,
            alpha=alpha,
            beta=beta,
            epilogue=epilogue,
            epilogue_inputs=without_tensors(epilogue, inputs),
            out=result.given,
            out_dtype=out_dtype,
            accumulator_dtype=accumulator_dtype,
            precision=precision,
            bias=bias,
        )

    scalars = scalars_among(epilogue, inputs)
    if scalars is None:
        return make()
    numbers = scalar_key(alpha), scalar_key(beta)
    key = (
        product.key,
        result.key,
        options,
        numbers,
        None if inputs is None else tuple(inputs),
        bias is not None,
        scalars,
    )
    return (_plans_of_scalars if scalars else _plans).get(key, make)
