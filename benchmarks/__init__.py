"""Benchmarks: each compares PyCUTLASS with what one would use otherwise, in the same run (see README.md here)."""
