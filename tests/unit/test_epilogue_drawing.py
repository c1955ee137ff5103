"""What epilogue functions look like, and what they cost."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from epilogue_functions import EVERY, reduced, residual

import pycutlass
from pycutlass import cutlass, epilogue
from pycutlass.epilogue import drawing
from pycutlass.errors import ArgumentTypeError

f16, f32 = cutlass.float16, cutlass.float32


@pytest.fixture
def without_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)


def test_text_has_every_value_with_shape_and_type(without_graphviz: None) -> None:
    lines = residual(f16, 8, T=f32).visualize().splitlines()
    assert lines[0] == "residual"
    assert "  %0 = alpha  : (1, 1) float32" in lines
    assert "  %3 = bias  : (1, N) float16" in lines
    assert "  %5 = gelu(%4)  : (M, N) float32" in lines
    assert lines[-2:] == ["  D = %7  : (M, N) float16", "  T = %4  : (M, N) float32"]
    assert "axis=1" in reduced.visualize()


@pytest.mark.parametrize("name", EVERY)
def test_every_value_is_a_node_of_graphviz(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functor = EVERY[name](f16, 8)
    given: list[str] = []

    class Source:
        def __init__(self, text: str) -> None:
            given.append(text)

        def pipe(self, **_: Any) -> str:
            return "<svg/>"

    monkeypatch.setitem(sys.modules, "graphviz", types.SimpleNamespace(Source=Source))
    assert functor.visualize() == "<svg/>"
    (text,) = given
    assert text.count('-> "%') == sum(len(value.operands) for value in functor.graph.values)
    assert all(f'"{output}" [shape' in text for output, _ in functor.graph.outputs)


def test_cost_counts_each_tensor_once() -> None:
    functor = residual(f16, 8, bias=f32, T=f32)
    found = functor.cost((100, 64, 32), bandwidth=1e6)
    assert (found.read_bytes, found.written_bytes) == (4 * 64 + 2 * 6400, 4 * 6400)
    assert found.seconds == pytest.approx((4 * 64 + 6 * 6400) / 1e6)
    assert str(found) == "reads 0.0 MB and writes 0.0 MB more, 38656.0 us at the memory's speed"
    batched = pycutlass.GemmProblemSize(100, 64, 32, cutlass.gemm.Mode.Batched, batch=3)
    assert functor.cost(batched).written_bytes == 3 * 4 * 6400
    group = [(100, 64, 32), pycutlass.GemmProblemSize(7, 8, 9), [0, 64, 32]]
    assert functor.cost(group).written_bytes == 4 * (6400 + 56)
    assert functor.cost(tuple(group)).read_bytes == 4 * (64 + 8 + 64) + 2 * (6400 + 56)
    for wrong in (None, (1, 2), "problem", [], [(1, 2, 3), (1, 2)], [[(1, 2, 3)]], (1, -2, 3)):
        with pytest.raises(ArgumentTypeError):
            functor.cost(wrong)
    with pytest.raises(ArgumentTypeError, match="bandwidth"):
        functor.cost((1, 2, 3), bandwidth=-1)


def test_c_is_read_as_a_tensor_is(without_graphviz: None) -> None:
    def added(x: Any, c: epilogue.Source) -> Any:  # type: ignore[valid-type]
        return x + c

    functor = pycutlass.epilogue_function(added)(f16, 8)
    assert functor.cost((100, 64, 32)).read_bytes == 2 * 6400
    assert "  %1 = c  : (M, N) as C" in functor.visualize().splitlines()


def test_registers_come_from_build_reports() -> None:
    plain, fused = (
        types.SimpleNamespace(artifacts={"sm_80": types.SimpleNamespace(report={"registers": count})})
        for count in (128, 140)
    )
    found = residual(f16, 8).cost((8, 8, 8), plain=plain, fused=fused)
    assert found.registers == (128, 140)
    assert str(found).endswith("140 registers in place of 128")
    assert drawing.cost((), (), (8, 8, 8), None, (plain, None)).registers is None


def test_tiles_are_drawn_as_they_are_written(without_graphviz: None) -> None:
    function = pycutlass.epilogue_function(lambda x: {"D": x, "total": epilogue.sum(x, axis=1, tile=64)})
    assert "sum(%0, axis=1, tile=64)  : (tiles, M)" in function.visualize()
    assert '[label="sum, axis=1, tile=64"]' in drawing.as_dot("f", function.graph, {}, "")


def test_an_output_may_be_called_as_a_value_is_numbered() -> None:
    function = pycutlass.epilogue_function(lambda x: {"D": x * 2.0, "v2": x + 1.0})
    lines = drawing.as_dot('a "quoted" name', function.graph, {}, "").splitlines()
    nodes = [line.split()[0] for line in lines if ("[label=" in line and "->" not in line) or "bold" in line]
    assert len(nodes) == len({node.strip('"') for node in nodes}) == len(function.graph.values) + 2
    assert lines[0].count('"') == 2
