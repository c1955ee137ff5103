"""Compiled kernels for PyCUTLASS, which finds them where they are installed and does not import them."""
