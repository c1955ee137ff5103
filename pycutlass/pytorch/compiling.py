"""The backend of ``torch.compile`` and the pass of Inductor: regions in graphs that torch has made for compilers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from pycutlass.calls import public
from pycutlass.pytorch.backend import NAME
from pycutlass.pytorch.options import Options
from pycutlass.pytorch.regions.capture import with_input_extents, with_own_statistics
from pycutlass.pytorch.regions.gain import planned_for, revision_of_times
from pycutlass.pytorch.regions.joined import split_casts
from pycutlass.pytorch.regions.members import NORMS
from pycutlass.pytorch.regions.partitioner import Found, found_in
from pycutlass.pytorch.regions.plans import compile_together, sizes_of
from pycutlass.pytorch.regions.pointwise import POINTWISE, name_of
from pycutlass.pytorch.regions.region import Region
from pycutlass.pytorch.regions.writing import Written
from pycutlass.version import __version__

__all__ = ["InductorPass", "compile_graph"]

_inductor_pass: Any = torch._inductor.custom_graph_pass.CustomGraphPass


@public
class InductorPass(_inductor_pass):  # type: ignore[misc]
    """Puts regions into the graphs that Inductor compiles, for its option ``post_grad_custom_pre_pass``.

    For those who compile with Inductor itself. The backend ``"pycutlass"`` finds more, since it sees a graph before its
    activations are taken apart.

    Parameters
    ----------
    options : Options or dict, optional
        Which regions are taken.

    Attributes
    ----------
    graphs : int
        How many graphs were handed to this pass.
    regions : tuple of Region
        What was taken in the last one of them.
    left : dict
        Why each product, and each neighbour of a region, of that graph was not.

    Notes
    -----
    Inductor hands over what it compiles. A graph that it finds compiled in its cache, in this process or on disk, has
    its regions, and the pass hears nothing of it: `graphs` stays what it was, and so do `regions` and `left`, which
    are empty before the first one. To see them, compile with ``TORCHINDUCTOR_FORCE_DISABLE_CACHES=1``, or ask
    `partition` about the model.

    Examples
    --------
    >>> import torch, pycutlass.pytorch
    >>> seen = pycutlass.pytorch.InductorPass({"min_gain": 0})
    >>> def compiled(model):
    ...     return torch.compile(model, options={"post_grad_custom_pre_pass": seen})
    """

    def __init__(self, options: Any = None) -> None:
        self.options = Options.of(options)
        self.graphs = 0
        self.regions: tuple[Region, ...] = ()
        self.left: dict[str, str] = {}

    def __call__(self, graph: Graph) -> None:
        """Put regions in the place of their nodes."""
        found = _with_regions(graph, self.options)
        self.graphs, self.regions, self.left = self.graphs + 1, tuple(found.regions), found.left

    def uuid(self) -> Any:
        """Return what tells passes apart in caches of compiled graphs."""
        return _told_apart(self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)


def _told_apart(options: Options) -> bytes:
    """Return what tells apart what is compiled with these options, for this GPU, by this release and these files."""
    times = revision_of_times(options)
    known = (NAME, __version__, _of_files(), planned_for(options.sm), options.of_regions, times)
    return hashlib.sha256(repr(known).encode()).digest()


@lru_cache(maxsize=1)
def _of_files() -> str:
    """Return what tells apart how regions are found and written, and what is predicted of them."""
    package = Path(__file__).parents[1]
    folders = (Path(__file__).parent, package / "epilogue", package / "plan")
    files = sorted(each for folder in folders for kind in ("*.py", "*.json") for each in folder.rglob(kind))
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


class _Marked(_inductor_pass):  # type: ignore[misc]
    """The pass that a user has set, if any; tells graphs of this backend from others in caches."""

    def __init__(self, options: Options, given: Any) -> None:
        self._options, self._given = options, given

    def __call__(self, graph: Graph) -> None:
        if self._given is not None:
            self._given(graph)

    def uuid(self) -> Any:
        own = _told_apart(self._options)
        if self._given is None:
            return own
        others = self._given.uuid() if isinstance(self._given, _inductor_pass) else None
        return None if others is None else (own, others)


def compile_graph(
    model: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Any = None
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo: regions by kernels of CUTLASS, and the rest by Inductor.

    It is the backend ``"pycutlass"`` of ``torch.compile``, which calls it.

    Parameters
    ----------
    model : GraphModule
        Of torch's functions.
    example_inputs : sequence
        What it will be called with.
    mode : str, optional
        Inductor's, such as ``"reduce-overhead"`` for CUDA graphs. Default: that of the options.
    options : Options or dict, optional
        Which regions are taken, and what compiles the rest.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Options that are none.
    """
    chosen = Options.of(options)
    eager = chosen.rest == "eager"
    made: Callable[..., Any] = (
        _with_eager_rest(model, example_inputs, chosen)
        if eager
        else _with_inductor(model, example_inputs, chosen.mode if mode is None else mode, chosen)
    )
    return made


def _with_eager_rest(model: GraphModule, example_inputs: Sequence[Any], options: Options) -> Any:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import aot_autograd as aot

    boxed: Any = aot.make_boxed_func  # type: ignore[attr-defined]

    def compiled(graph: GraphModule, _: Sequence[Any]) -> Any:
        _with_regions(graph.graph, options)
        graph.recompile()
        return boxed(graph.forward)

    backend: Any = aot_autograd(fw_compiler=compiled, keep_inference_input_mutations=True)
    return backend(model, example_inputs)


def _with_inductor(model: GraphModule, example_inputs: Sequence[Any], mode: str | None, options: Options) -> Any:
    from torch._inductor import config, list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()
    kept = {target: way for target, way in table.items() if not _is_kept(target)}
    is_spent = config.freezing_discard_parameters  # then the model has no parameters to be compiled again with
    is_without = False

    def inner(graph: GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        nonlocal is_without
        found = _with_regions(graph.graph, options)
        if not found.regions and how.get("is_inference") and not is_spent:  # in training, backward may have some
            is_without = True
            raise _NothingTaken
        graph.recompile()
        if "get_decomp_fn" in how:  # a table of our own cannot be part of the key of Inductor's cache
            how["get_decomp_fn"] = select_decomp_table
        return compile_fx_inner(_decomposed(graph, inputs, table), inputs, **how)

    patches = dict(list_mode_options(mode)) if mode is not None else {}
    marked = {**patches, "post_grad_custom_pre_pass": _Marked(options, config.post_grad_custom_pre_pass)}
    try:
        return compile_fx(model, list(example_inputs), inner_compile=inner, config_patches=marked, decompositions=kept)
    except Exception:  # _NothingTaken, which torch may wrap; all others are raised again
        if not is_without:
            raise
    once = {**patches, "pre_grad_custom_pass": None}  # which has changed the model in place
    return compile_fx(model, list(example_inputs), config_patches=once)


class _NothingTaken(Exception):  # noqa: N818
    """The model has no region: Inductor compiles it as if it were alone."""


def _is_kept(target: Any) -> bool:
    """Return whether an operator is taken apart only behind the search for regions, which know it as it is."""
    name = name_of(target)
    return isinstance(target, torch._ops.OpOverload) and (name in POINTWISE or name in NORMS)


def _decomposed(graph: GraphModule, inputs: Sequence[Any], table: Any) -> GraphModule:
    """Return a graph in which everything is taken apart that Inductor compiles so."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx

    fake: AbstractContextManager[Any] = detect_fake_mode(inputs) or nullcontext()
    with fake, enable_python_dispatcher():
        made = make_fx(graph, decomposition_table=table)(*inputs)
    made.meta.update(graph.meta)
    found: GraphModule = made
    return found


def _with_regions(graph: Graph, options: Options) -> Found:
    module = graph.owning_module
    assert module is not None
    with_input_extents(graph)
    with_own_statistics(graph)
    if options.rest == "inductor":
        split_casts(graph)
    found = found_in(graph, options, _inlined, is_compiled=options.rest == "inductor")
    compile_together(found.regions, sizes_of(graph, found.regions, None), options)
    return found


def _inlined(graph: Graph, region: Region, made: Written) -> list[Node]:
    """Write what computes a region where nodes are inserted, and return its results."""
    copies: dict[Node, Node] = {}
    inputs = iter(made.inputs)
    for node in made.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(inputs)
        elif node.op == "output":
            return [copies[each] for each in node.args[0]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    raise AssertionError("a graph has an output")
