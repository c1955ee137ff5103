"""A model for people to read: which parts kernels take, which kernels, how fast they are, what they are made of.

Read in this order: ``explanation`` (what `explain` returns), ``facts`` (what is known of a region's kernel),
``picture`` (the graph as boxes), ``layout`` (where they stand), ``drawing`` (as SVG), ``page`` (as HTML), ``texts``
(as text), ``markup`` (HTML as values).
"""

from pycutlass.pytorch.explained.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
