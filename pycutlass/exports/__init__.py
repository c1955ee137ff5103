"""Kernels that live without Python."""
