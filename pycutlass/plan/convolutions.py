"""Convolutions in one line: a plan is made for the tensors, kept, and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from pycutlass.calls import public
from pycutlass.plan.conv_call import Call, precision_of_float32
from pycutlass.plan.conv_options import CallOptions, completed, takes
from pycutlass.plan.known_calls import repeated

__all__ = ["conv2d", "conv2d_input", "conv2d_weight"]


@public
@takes(CallOptions)
def conv2d(
    x: Any,
    w: Any,
    c: Any = None,
    *,
    bias: Any = None,
    **options: Unpack[CallOptions],
) -> Any:
    """Return the convolution that ``torch.nn.functional.conv2d`` defines: epilogue(alpha * conv2d(x, w) + beta * c).

    Parameters
    ----------
    x, w : tensor
        Images and weights. Tensors of torch are (N, C, H, W) and (K, C / groups, R, S) in the memory format
        channels_last; arrays of NumPy and CuPy, and objects with ``__dlpack__``, are (N, H, W, C) and
        (K, R, S, C / groups).
    c : tensor, optional
        What is added, of the shape of the result; a vector is a bias of one number for each of K channels.
    stride, padding, dilation : int or pair of int
        For both axes, or for height and width. A padding may also be ``"valid"``, or ``"same"`` where both sides are
        padded alike.
    groups : int
        Groups of channels.
    alpha, beta : number, optional
        The scalars: 1 and 0 if left out, or what an epilogue function has as its defaults. A `c` that is no vector
        needs a `beta` other than 0, which is 1 for a vector if left out.
    bias : tensor, optional
        A vector of one number for each of K channels, which is added before the activation, beside `c` or alone. Alone
        it is multiplied by `beta`, which is 1 if left out.
    epilogue : optional
        An epilogue functor, an activation, or an epilogue function.
    epilogue_inputs : mapping, optional
        The tensors and scalars of the epilogue, by name.
    out : tensor, optional
        Where the result is written.
    out_dtype : element type, optional
        Type of the result: by default that of `out`, else that of `x`, of integers int32.
    accumulator_dtype : element type, optional
        What is summed up in.
    precision : str, optional
        How float32 is multiplied: ``"float32"``, ``"tf32"`` or ``"3xtf32"``. By default float32. For torch tensors it
        is tf32 where ``torch.backends.fp32_precision`` or ``torch.backends.cudnn.fp32_precision`` was set to that:
        torch's setting for convolutions alone is tf32 without anybody having asked, so it can only forbid it.
    plan : Conv2d, optional
        What computes it, instead of a plan that is made here.
    allow_copy : bool
        Whether tensors that no kernel takes are copied, such as those of torch's default memory format, and those in
        `epilogue_inputs` too; otherwise they are refused, as those that the epilogue writes are either way.
    stream : optional
        Where it is launched; by default the current stream of the tensors' library.

    Returns
    -------
    tensor
        `out`, or a new tensor in the library of `x` and on its device: of torch (N, K, P, Q) in channels_last, of
        others (N, P, Q, K).

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Tensors that do not fit each other, that would have to be copied, or that require a gradient.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> x, w = np.ones((1, 4, 4, 8), np.float32), np.ones((2, 3, 3, 8), np.float32)
    >>> pycutlass.conv2d(x, w, padding="same")[0, :, :, 0]
    array([[32., 48., 48., 32.],
           [48., 72., 72., 48.],
           [48., 72., 72., 48.],
           [32., 48., 48., 32.]], dtype=float32)
    """
    given = completed("conv2d", options, CallOptions, "x", "w", "c", "bias")
    return Call("fprop", {"x": x, "w": w}, None, c, bias, given, options).run()


@public
@takes(CallOptions)
def conv2d_input(
    grad: Any,
    w: Any,
    input_size: Any,
    c: Any = None,
    *,
    bias: Any = None,
    **options: Unpack[CallOptions],
) -> Any:
    """Return the gradient of a convolution with respect to its input, as ``torch.nn.grad.conv2d_input`` defines it.

    Parameters
    ----------
    grad : tensor
        Gradient of the output, in the order of `x` of `conv2d`.
    w : tensor
        The weights.
    input_size : sequence of 4 int
        Shape of the input, in the order of `grad`: (N, C, H, W) for torch, (N, H, W, C) for others.
    c : tensor, optional
        What is added, of the shape of the input, times `beta`: with ``c=out, beta=1`` gradients accumulate.
    bias : tensor, optional
        A vector of one number for each channel of the input, as a transposed convolution adds it.
    stride, padding, dilation, groups
        Of the convolution. Strides above 1 are for a dilation of 1.
    alpha, beta, epilogue, epilogue_inputs, out, out_dtype, accumulator_dtype, precision, plan, allow_copy, stream
        As of `conv2d`.

    Returns
    -------
    tensor
        `out`, or a new tensor in the library of `grad`, of `input_size`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        As of `conv2d`.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> grad, w = np.ones((1, 2, 2, 4), np.float32), np.ones((4, 3, 3, 1), np.float32)
    >>> pycutlass.conv2d_input(grad, w, (1, 4, 4, 1))[0, :, :, 0]
    array([[ 4.,  8.,  8.,  4.],
           [ 8., 16., 16.,  8.],
           [ 8., 16., 16.,  8.],
           [ 4.,  8.,  8.,  4.]], dtype=float32)
    """
    given = completed("conv2d_input", options, CallOptions, "grad", "w", "input_size", "c", "bias")
    return Call("dgrad", {"grad": grad, "w": w}, input_size, c, bias, given, options).run()


@public
@takes(CallOptions)
def conv2d_weight(
    grad: Any,
    x: Any,
    weight_size: Any,
    c: Any = None,
    **options: Unpack[CallOptions],
) -> Any:
    """Return the gradient of a convolution with respect to its weights, as ``torch.nn.grad.conv2d_weight`` defines it.

    Parameters
    ----------
    grad : tensor
        Gradient of the output, in the order of `x`.
    x : tensor
        The input.
    weight_size : sequence of 4 int
        Shape of the weights, in the order of `grad`: (K, C / groups, R, S) for torch, (K, R, S, C / groups) for others.
    c : tensor, optional
        What is added, of the shape of the weights, times `beta`: with ``c=out, beta=1`` gradients accumulate.
    stride, padding, dilation, groups
        Of the convolution.
    alpha, beta, epilogue, epilogue_inputs, out, out_dtype, accumulator_dtype, precision, plan, allow_copy, stream
        As of `conv2d`.

    Returns
    -------
    tensor
        `out`, or a new tensor in the library of `grad`, of `weight_size`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        As of `conv2d`.

    Examples
    --------
    >>> import numpy as np, pycutlass
    >>> grad, x = np.ones((2, 2, 2, 4), np.float32), np.ones((2, 4, 4, 1), np.float32)
    >>> float(pycutlass.conv2d_weight(grad, x, (4, 3, 3, 1))[0, 0, 0, 0])
    8.0
    """
    given = completed("conv2d_weight", options, CallOptions, "grad", "x", "weight_size", "c")
    return Call("wgrad", {"grad": grad, "x": x}, weight_size, c, None, given, options).run()


if not TYPE_CHECKING:  # to type checkers they are the functions
    _settings = {"convolutions": precision_of_float32}
    conv2d, conv2d_input, conv2d_weight = (repeated(each, _settings) for each in (conv2d, conv2d_input, conv2d_weight))
