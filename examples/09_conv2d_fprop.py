"""An f16 convolution with bias and ReLU on torch tensors: relu(alpha * conv2d(x, w) + bias).

torch keeps images as (N, C, H, W); in the memory format ``channels_last`` their memory is NHWC, which the kernel takes
without a copy. The problem comes from the tensors, ``operation.supports`` says whether a kernel can compute it and why
not, and a slice of the channels of a larger tensor may be the output, as where branches of a network are concatenated.
Every result is compared with torch's own convolution in f64.

Run ``python examples/09_conv2d_fprop.py``. It needs torch. Without a GPU the kernel is compiled for an A100, and the
operation's meaning is executed on the host.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import pycutlass
from pycutlass import (
    Conv2dArguments,
    Conv2dOperation,
    LinearCombinationGeneric,
    MathInstruction,
    StrideSupport,
    TensorDescription,
    TileDescription,
    conv2d_problem_size,
    cutlass,
    relu,
)

N, H, W, C, K, FILTER = 2, 24, 20, 32, 48, 3
ALPHA = 0.5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Convolve into a tensor, and into some channels of a wider one."""
    operation = convolution()
    pycutlass.compiler.add_module([operation])
    x, w, bias = image(N, C, H, W), image(K, C, FILTER, FILTER), torch.randn(K, device=DEVICE).half()
    for stride, padding, dilation in ((1, 1, 1), (2, 0, 1), (1, 2, 2)):
        size = conv2d_problem_size(x, w, stride=stride, padding=padding, dilation=dilation)
        exact = ALPHA * functional.conv2d(x.double(), w.double(), None, stride, padding, dilation)
        exact = torch.relu(exact + bias.double()[:, None, None])
        wide = image(N, 2 * K, size.P, size.Q)
        for y in (image(N, K, size.P, size.Q), wide[:, K:]):
            y.fill_(float("nan"))  # an element that the kernel leaves alone is noticed
            arguments = Conv2dArguments(operation, size, x, w, bias, y, operation.epilogue_type(ALPHA, 1.0))
            operation.run(arguments)
            compare(y, exact, f"stride {stride}, padding {padding}, dilation {dilation}, pixels {y.stride(3)} apart")

    thin = image(N, 12, H, W)
    support = operation.supports(conv2d_problem_size(thin, image(K, 12, FILTER, FILTER)))
    print(f"12 channels? {support}")
    if support:
        raise SystemExit("Failed: 12 channels are no multiple of the alignment")
    print("Passed.")


def convolution() -> Conv2dOperation:
    """Describe a kernel that runs on every GPU since the A100."""
    instruction = MathInstruction(
        [16, 8, 16], cutlass.float16, cutlass.float16, cutlass.float32, cutlass.OpClass.TensorOp
    )
    nhwc = TensorDescription(cutlass.float16, cutlass.TensorNHWC, 8)
    return Conv2dOperation(
        conv_kind=cutlass.conv.Operator.fprop,
        iterator_algorithm=cutlass.conv.IteratorAlgorithm.optimized,
        compute_capability=80,
        tile_description=TileDescription([128, 64, 64], 3, [2, 2, 1], instruction),
        A=nhwc,
        B=nhwc,
        C=nhwc,
        stride_support=StrideSupport.Strided,
        epilogue_functor=LinearCombinationGeneric(relu(), cutlass.float16, 8, cutlass.float32, cutlass.float32),
        swizzling_functor=cutlass.IdentitySwizzle4,
    )


def image(*shape: int) -> torch.Tensor:
    """Return normal numbers in NHWC memory."""
    return torch.randn(shape, device=DEVICE).half().contiguous(memory_format=torch.channels_last)


def compare(y: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    """Exit unless each element is within its rounding to f16 and those of a sum of R * S * C products in f32."""
    products = FILTER * FILTER * C
    used = ((y.double() - exact).abs() / (2.0**-11 * exact.abs() + products * 2.0**-23)).max().item()
    print(f"{what}: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: y is not relu(alpha * conv2d(x, w) + bias)")


if __name__ == "__main__":
    main()
