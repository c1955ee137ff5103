"""Kernels that live without Python: programs in C and C++, and libraries of many kernels.

Read in this order: ``described`` (what a plan is to a program), ``gemms`` and ``convolutions`` (plans as that),
``tables`` (the same in C), ``building`` (compiling and linking), ``library`` (`export_library`), ``loaded``
(`load_library`), ``program`` (`export`). What is compiled into programs is in ``c``, of which ``library.h`` is the
interface.
"""

from pycutlass.exports.library import export_library
from pycutlass.exports.loaded import LoadedLibrary, LoadedPlan, load_library
from pycutlass.exports.program import export

__all__ = ["LoadedLibrary", "LoadedPlan", "export", "export_library", "load_library"]
