"""Says why there are no visitor trees, where a script of the original imports them from ``pycutlass``.

Python drops what `__getattr__` of a module says to `from pycutlass import`, and looks for a module of that name next.
"""

from pycutlass.epilogue import NO_TREES

raise ImportError(f"cannot import name 'EpilogueVisitTree' from 'pycutlass': {NO_TREES}", name="EpilogueVisitTree")
