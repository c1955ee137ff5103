"""Regions of a model that kernels of CUTLASS take: found, traced, and put back as operators."""

from pycutlass.pytorch.regions.region import Problem, Region, RegionInput, RegionOutput, TensorForm

__all__ = ["Problem", "Region", "RegionInput", "RegionOutput", "TensorForm"]
