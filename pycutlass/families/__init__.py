"""Families of kernels, one table each: what Ampere-style, Hopper-native and GEMV kernels can be."""

from pycutlass.families.ampere import AMPERE
from pycutlass.families.gemv import GEMV
from pycutlass.families.parts import Product
from pycutlass.families.sm90 import SM90
from pycutlass.families.table import SHARED_MEMORY_LIMIT, Family, KernelFamily

__all__ = ["AMPERE", "GEMV", "SHARED_MEMORY_LIMIT", "SM90", "Family", "KernelFamily", "Product"]
