"""The kernel cache: compiled kernels as bytes, in one SQLite file per user.

Read in this order: ``kernels`` (the cache), ``disk`` (its database, and what happens when that fails), then what they
stand on: ``store`` (what is kept, under which key, and the tables), ``schema`` (how tables come to be), ``locking``
(whose directory is trusted, and locks between processes), ``selection`` (which kernels are meant), ``bundle`` (kernels
as one file), ``package`` (bundles that are installed) and ``files`` (what is carried elsewhere is whole). The same file
has the trials of `pycutlass.trials`.
"""

from pycutlass.cache.kernels import Imported, Info, KernelCache
from pycutlass.cache.store import Artifact, Entry, make_key

__all__ = ["Artifact", "Entry", "Imported", "Info", "KernelCache", "make_key"]
