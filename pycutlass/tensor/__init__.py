"""Tensors of other libraries, wrapped at the door: one adapter a library, behind one function.

No library is imported here: an adapter is chosen by the type of what was given.
"""

from pycutlass.tensor.adapters import NoViewError, look_at, wrap
from pycutlass.tensor.guards import Guard, check_seen, guard
from pycutlass.tensor.tangents import has_tangent, in_forward_mode
from pycutlass.tensor.view import TensorView

__all__ = [
    "Guard",
    "NoViewError",
    "TensorView",
    "check_seen",
    "guard",
    "has_tangent",
    "in_forward_mode",
    "look_at",
    "wrap",
]
