"""PyCUTLASS in models of torch: operators ``torch.ops.pycutlass``, with gradients.

Importing this package imports torch and registers the operators. ``import pycutlass`` does neither.
"""

from pycutlass.pytorch.required import check_torch

check_torch()  # before anything asks torch for what older ones lack

from pycutlass.pytorch import convolutions as _convolutions  # noqa: E402, F401
from pycutlass.pytorch import products as _products  # noqa: E402, F401

__all__: list[str] = []
