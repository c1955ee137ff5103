"""The benchmark of convolutions, as far as it needs no GPU: its layers, and what it tries for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pycutlass import cutlass

sys.path.append(str(Path(__file__).parents[2]))  # the benchmarks are not installed with the package
from benchmarks import conv, conv_choices


@pytest.mark.parametrize("kind", cutlass.conv.Operator, ids=lambda kind: kind.name)
@pytest.mark.parametrize("layer", conv_choices.LAYERS, ids=lambda layer: layer.name)
def test_every_layer_has_choices_that_are_supported(layer, kind):
    for batch in conv.BATCHES:
        choices = conv_choices.choices(layer, batch, kind)
        assert len(choices) >= len(conv_choices.TILES) * len(conv_choices.SWIZZLES)
        assert len({choice.name for choice in choices}) == len(choices)
        for choice in choices:
            assert choice.operation.conv_kind is kind
            assert choice.operation.supports(layer.problem(batch).reset_split_k_slices(choice.slices))
            assert choice.slices == 1 or choice.operation.splits_k


def test_the_layers_keep_the_middle():
    for layer in conv_choices.LAYERS:
        size = layer.problem(1)
        assert (size.P, size.Q) == (-(-layer.h // layer.stride), -(-layer.w // layer.stride))


def test_a_dry_run_lists_the_kernels(capsys):
    assert conv.main(["--dry", "--only", "wgrad", "--batch", "32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    kernels = {
        operation.procedural_name()
        for operation in conv_choices.operations(conv_choices.LAYERS[0], cutlass.conv.Operator.wgrad)
    }
    assert set(lines[:-1]) == kernels
    assert lines[-1].endswith(f"choices for {len(conv_choices.LAYERS)} problems")
