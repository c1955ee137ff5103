"""`explain`: what becomes of a model, as text and as a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycutlass.calls import counted, public, shown
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.pytorch.explained.facts import RegionFacts, facts_of
from pycutlass.pytorch.explained.page import page_of
from pycutlass.pytorch.explained.picture import Box, Neighbour, boxes_of, neighbours_of
from pycutlass.pytorch.explained.texts import text_of
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.partitions import Partition, partition
from pycutlass.pytorch.regions.plans import database_of, gpu_of, is_here, sizes_of

__all__ = ["Explanation", "explain"]


@public
@dataclass(frozen=True)
class Explanation:
    """What becomes of a model; `explain` makes it. Printed it is text, and saved a page for browsers.

    Attributes
    ----------
    name : str
        Class of the model.
    gpu : Device
        What kernels were chosen for.
    sizes : mapping
        The number that each symbol of an extent was explained for.
    regions : tuple of RegionFacts
        In the order of the graph.
    left : mapping
        Why products, and neighbours of regions, were left to torch, by the name of the node.
    boxes : tuple of Box
        The graph.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    >>> options = {"sm": 90, "min_gain": 0}
    >>> explained = pycutlass.pytorch.explain(model, torch.ones(8, 64), options=options)
    >>> print(explained.text.splitlines()[0])
    Sequential: 1 region, for NVIDIA H200 (not here)
    >>> explained.html.startswith("<!DOCTYPE html>")
    True
    """

    name: str
    gpu: Device
    is_here: bool
    sizes: Mapping[str, int]
    regions: tuple[RegionFacts, ...]
    left: Mapping[str, str]
    boxes: tuple[Box, ...]

    @property
    def title(self) -> str:
        """The first line."""
        taken, where = counted(len(self.regions), "region"), "" if self.is_here else " (not here)"
        sizes = "".join(f", {name} = {number}" for name, number in self.sizes.items())
        return f"{self.name}: {taken}, for {self.gpu.name}{where}{sizes}"

    @property
    def neighbours(self) -> Mapping[str, tuple[Neighbour, ...]]:
        """For each region what reads its results, and why it is not part of it."""
        return {each.region.name: neighbours_of(each.region.name, self.boxes) for each in self.regions}

    @property
    def text(self) -> str:
        """A table of the regions, and why they end where they end."""
        return text_of(self.title, self.regions, self.neighbours, self.left)

    @property
    def html(self) -> str:
        """The page: one document that needs nothing else."""
        times = [each.microseconds for each in self.regions if each.microseconds is not None]
        measured = sum(each.measured is not None for each in self.regions)
        about = f"{self.title.removeprefix(f'{self.name}: ')}; {sum(times):.1f} us of kernels"
        about += f", {measured} of {len(self.regions)} measured" if measured else ", as predicted"
        return page_of(self.name, about, self.boxes, self.regions, self.neighbours, self.left)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, and return where.

        Raises
        ------
        ArgumentTypeError
            `path` is none.
        ArgumentError
            The file cannot be written.
        """
        if not isinstance(path, str | os.PathLike):
            raise ArgumentTypeError(f"path must be a path, such as 'model.html', got {shown(path)}")
        to = Path(path)
        try:
            to.write_text(self.html, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"the page cannot be written to {to}: {error}") from error
        return to

    def __str__(self) -> str:
        return self.text


@public
def explain(
    model: Any,
    inputs: Any = None,
    dynamic: Any = None,
    *,
    options: Any = None,
    sizes: Mapping[str, int] | None = None,
    compile: bool = False,
) -> Explanation:
    """Return what becomes of a model: its regions, their kernels, and why they end where they end.

    Parameters
    ----------
    model : Module, ExportedProgram or Partition
        What is explained. All but a Partition is partitioned first.
    inputs, dynamic : optional
        As of `partition`, which asks for them; a Partition has its own, and takes neither.
    options : Options or dict, optional
        As of `partition`. Default: those that a Partition was made with. ``sm`` says for which GPU kernels are chosen:
        where that is not the one that is here, times are predicted.
    sizes : dict, optional
        A number for each symbol of an extent that changes from call to call. Default: that of the example inputs.
    compile : bool
        Whether kernels that the cache lacks are compiled, and PTX is made. Otherwise the page has machine code and
        build reports of those alone that were compiled before.

    Returns
    -------
    Explanation
        ``print`` shows it as text, ``save("model.html")`` writes the page.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As of `partition`; `sizes` names no symbol, or a number outside of its range; or a Partition comes with inputs.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    >>> explained = pycutlass.pytorch.explain(model, torch.ones(8, 64), options={"sm": 80, "min_gain": 0})
    >>> [(each.region.fused, each.problem) for each in explained.regions]
    [(('relu',), '8x64x64 float32')]
    """
    chosen = model.options if options is None and isinstance(model, Partition) else Options.of(options)
    if not isinstance(compile, bool):
        raise ArgumentTypeError(f"compile must be True or False, got {shown(compile)}")
    if isinstance(model, Partition) and not (inputs is None and dynamic is None):
        raise ArgumentError(
            "a Partition was made for inputs, and takes no others: pass inputs and dynamic to partition, or pass the"
            " model itself to explain; sizes says for which extents a Partition is explained"
        )
    made = model if isinstance(model, Partition) else partition(model, inputs, dynamic, chosen)
    bound = sizes_of(made.graph, made.regions, sizes)
    gpu, here = gpu_of(chosen.sm), is_here(chosen.sm)
    how: dict[str, Any] = {"is_here": here, "compile": compile, "database": database_of(chosen.database)}
    regions = tuple(facts_of(each, bound, gpu, **how) for each in made.regions)
    boxes = boxes_of(made.graph, {each.name: each for each in made.regions}, made.left)
    return Explanation(made.model_name, gpu, here, bound, regions, made.left, boxes)
