"""Which kernel is the fastest for a problem, measured."""

__all__: list[str] = []
