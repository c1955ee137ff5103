"""The kernel cache: compiled kernels as bytes, in one SQLite file per user.

Read in this order: ``artifact`` (what is kept, and under which key), ``kernels`` (the cache), ``disk`` (its database,
and what happens when that fails), then what they stand on: ``store`` (the tables), ``locking`` (whose directory is
trusted, and locks between processes), ``selection`` (which kernels are meant) and ``bundle`` (kernels as one file).
"""

from pycutlass.cache.artifact import Artifact, make_key
from pycutlass.cache.kernels import Imported, Info, KernelCache
from pycutlass.cache.store import Entry

__all__ = ["Artifact", "Entry", "Imported", "Info", "KernelCache", "make_key"]
