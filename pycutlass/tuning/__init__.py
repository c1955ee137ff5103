"""Which kernel is the fastest for a problem, measured."""
