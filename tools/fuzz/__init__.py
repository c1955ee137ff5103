"""Random kernels on random problems, compared with torch in float64: `python -m tools.fuzz`, `make fuzz-gpu`."""
