"""Products in one line: a plan is made for the tensors, kept, and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycutlass.calls import public
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.imported import imported
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.kinds import check_epilogue
from pycutlass.plan.options import KeptPlans, bad_options, check_gradients, check_with_plan, has_scalars, source_of
from pycutlass.plan.readings import named_inputs
from pycutlass.plan.shortcut import Shortcut, known, seen
from pycutlass.plan.stacks import Product, Result
from pycutlass.tensor import wrap

__all__ = ["linear", "matmul", "precision_of"]

#: Plans that `matmul` made, by all that tells kinds of products apart.
_plans: KeptPlans[Gemm] = KeptPlans(256, "matmul")


@public
def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 0,
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
        and objects with ``__dlpack__``, of equal types, or of two types of 8 bits that kernels multiply.
    c : tensor, optional
        What is added, of the shape of the product; a vector is a bias of one number for each column.
    alpha, beta : number
        The scalars. A `c` that is no vector needs a `beta` other than 0, which is 1 for a vector if left out.
    bias : tensor, optional
        A vector of one number for each column, which is added before the activation.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function.
    epilogue_inputs : mapping, optional
        The tensors and scalars of the epilogue, by name.
    out : tensor, optional
        Where the result is written.
    out_dtype : element type, optional
        Type of the result: by default that of `out`, else that of `a`, of integers int32, of floats of 8 bits bfloat16.
    accumulator_dtype : element type, optional
        What is summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"``, ``"tf32"`` or ``"3xtf32"``. By default float32, and for torch tensors
        as torch's own setting for matrix products says.
    plan : Gemm, optional
        What computes it, instead of a plan that is made here.
    allow_copy : bool
        Whether tensors that no kernel takes are copied; otherwise they are refused.
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
    if scales is not None:
        raise ArgumentError(
            "scales are not taken yet: give the product of two numbers as alpha, and vectors to an epilogue function, "
            "epilogue=pycutlass.epilogue.fusions.dequantize, epilogue_inputs={'row_scale': ..., 'column_scale': ...}"
        )
    check_epilogue(epilogue)
    if out is not None and getattr(getattr(epilogue, "graph", None), "is_gated", False):
        raise ArgumentError(
            "out is given, and the epilogue combines pairs of columns, of which matmul only makes new results: leave "
            "out away, or use pycutlass.Gemm"
        )
    epilogue_inputs = named_inputs(epilogue_inputs) or None
    if plan is not None:
        said = {"epilogue": epilogue, "out_dtype": out_dtype, "accumulator_dtype": accumulator_dtype}
        said |= {"precision": precision, "alpha": alpha, "beta": beta}
        check_with_plan(plan, Gemm, said, epilogue_inputs or {})
    key: Any = None
    given = (alpha, beta, epilogue, out_dtype, accumulator_dtype)
    if bias is None and epilogue_inputs is None and plan is None and (tensors := seen(a, b, c, out)) is not None:
        precision = precision_of(precision, a)
        try:
            key = (tensors, given, precision)
            shortcut = known(key)
        except Exception as error:  # scalars in device memory, or types of the user's own
            raise bad_options("matmul", error) from error
        if shortcut is not None:
            return shortcut.run(a, b, c, out, stream)
    views = {"a": wrap("a", a), "b": wrap("b", b)}
    c, beta = source_of(c, bias, beta, "column")
    for name, tensor in (("c", c), ("out", out)):
        if tensor is not None:
            views[name] = wrap(name, tensor)
    check_gradients(views, "product")
    precision = precision_of(precision, a)
    product = Product({"a": a, "b": b, "c": c}, views, allow_copy)
    options = (alpha, beta, epilogue, out_dtype, accumulator_dtype, precision)
    result = Result(product, out, views.get("out"), allow_copy)
    if plan is None:
        plan = _plan_of(product, result, options, epilogue_inputs)
    target = result.target(plan.kind)
    if not product.is_empty:
        inputs = {} if epilogue_inputs is None else epilogue_inputs
        ports = {port.name: inputs[port.name] for port in plan.kind.epilogue.ports if port.name in inputs}
        plan.run_once(product.a, product.b, product.c, target, stream, ports)
        is_plain = product.a is a and product.b is b and product.c is c and result.given is out
        if key is not None and is_plain and plan.kind.D.is_row_major:
            Shortcut(key, plan, a, b)
    return result.finished()


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
    shape = wrap("w", w).shape
    if shape is None or len(shape) != 2:
        raise ArgumentError(f"w must be a matrix of (out, in), got shape {shape}")
    if not hasattr(w, "T"):
        raise ArgumentTypeError(
            f"w is a {type(w).__name__}, which has no transposed view: pass np.from_dlpack(w), torch.from_dlpack(w) or "
            f"cupy.from_dlpack(w)"
        )
    if activation is not None:
        if options.get("epilogue") is not None:
            raise ArgumentError("activation and epilogue are both given: write the activation into the epilogue")
        options["epilogue"] = activation
    return matmul(x, w.T, bias=bias, **options)


def precision_of(given: str | None, a: Any) -> str | None:
    """Return how float32 is multiplied: as was said, or as torch's setting says of its tensors."""
    if given is not None or a is None or getattr(a, "dtype", None) is not imported("torch", "float32"):
        return given
    setting = imported("torch", "backends", "cuda", "matmul", "fp32_precision")
    if isinstance(setting, str) and setting != "none":
        return "tf32" if setting == "tf32" else None
    return "tf32" if imported("torch", "backends", "cuda", "matmul", "allow_tf32") is True else None


def _plan_of(product: Product, result: Result, options: tuple[Any, ...], inputs: Mapping[str, Any] | None) -> Gemm:
    """Return the plan that was kept for such tensors, or make it."""
    alpha, beta, epilogue, out_dtype, accumulator_dtype, precision = options

    def make() -> Gemm:
        return Gemm(
            *product.planned,
            alpha=alpha,
            beta=beta,
            epilogue=epilogue,
            epilogue_inputs=inputs,
            out=result.given,
            out_dtype=out_dtype,
            accumulator_dtype=accumulator_dtype,
            precision=precision,
        )

    if has_scalars(inputs):
        return make()
    return _plans.get((product.key, result.key, options, None if inputs is None else tuple(inputs)), make)
