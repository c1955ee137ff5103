"""Products as choices of Inductor: compiled graphs call the one that is taken, and compute the same."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.lowering import user_lowerings
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import _V

from pycutlass import errors, log
from pycutlass.pytorch import autotuned, register_autotuning

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Take choices back."""
    untyped: Any = torch.compiler.config
    with untyped.patch(cache_key_tag="mine"):
        yield
    for name in ("mm", "bmm", "addmm"):
        user_lowerings.pop(getattr(aten, name).default, None)


def products(a: Any, b: Any, c: Any) -> Any:
    return a @ b, torch.addmm(c, a, b)


@pytest.mark.filterwarnings("ignore")  # of torch about torch
@pytest.mark.parametrize("is_ours", [True, False])
def test_compiled_graphs_call_what_is_taken(is_ours: bool) -> None:
    assert autotuned._register(None, 1.0, ("cpu",))
    assert torch.compiler.config.cache_key_tag == "mine+pycutlass"
    given = torch.randn(8, 32), torch.randn(32, 16), torch.randn(16)
    torch._dynamo.reset()
    how = {"force_disable_caches": True, "test_configs.force_custom_op_decomposition": is_ours}
    with config.patch(how):
        made, code = run_and_get_code(torch.compile(products), *given)
    torch.testing.assert_close(made, products(*given))
    called = set(re.findall(r"torch\.ops\.(\w+\.\w+)\.default\(", code[-1]))  # behind what was measured
    assert called == ({"pycutlass.matmul", "pycutlass.addmm"} if is_ours else {"aten.mm", "aten.addmm"})


@pytest.mark.filterwarnings("ignore")  # of torch about torch
def test_ranges_of_rows_have_choices_of_their_own() -> None:
    assert autotuned._register([4, 16], 1.0, ("cpu",))
    how = {"force_disable_caches": True, "test_configs.force_custom_op_decomposition": True}
    torch._dynamo.reset()
    compiled = torch.compile(products, dynamic=True)
    with config.patch(how):
        for rows in (8, 3, 40):
            given = torch.randn(rows, 32), torch.randn(32, 16), torch.randn(16)
            torch.testing.assert_close(compiled(*given), products(*given))


def test_what_has_no_kernel_is_no_choice() -> None:
    def is_taken(*tensors: torch.Tensor, devices: tuple[str, ...] = ("meta",)) -> bool:
        return autotuned._is_taken(autotuned._pycutlass_mm, list(tensors), devices)

    a, b = torch.ones(8, 32, device="meta"), torch.ones(32, 16, device="meta")
    assert is_taken(a, b) and is_taken(a.half(), b.half()) and is_taken(a[None], b[None])
    assert not is_taken(a, b, devices=("cuda",))
    assert not is_taken(a.long(), b.long())
    assert not is_taken(a.cfloat(), b.cfloat())
    assert not is_taken(a, b.half())
    assert not is_taken(a.to(torch.int8), b.to(torch.int8))  # of which torch's product is int8


def test_a_torch_without_such_choices_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(_V, "active_user_lowering_ops")
    monkeypatch.setattr(log, "_said", set())
    with caplog.at_level(logging.WARNING, "pycutlass"):
        assert not register_autotuning()
    assert re.search(r"torch .* takes no choices for ATen's operators, .*backend='pycutlass'", caplog.text)
    assert aten.mm.default not in user_lowerings and torch.compiler.config.cache_key_tag == "mine"


@pytest.mark.parametrize(
    ("given", "named", "kind", "message"),
    [
        ((64,), {}, errors.ArgumentTypeError, "split_points must be a sequence of integers, got 64"),
        (([1.5],), {}, errors.ArgumentTypeError, "split_points must be integers, got 1.5"),
        (([64, 64],), {}, errors.ArgumentError, r"must increase, from 1 to 2,147,483,647 at most, got \[64, 64\]"),
        ((b"12",), {}, errors.ArgumentTypeError, "split_points must be a sequence of integers, got b'12'"),
        (([2**31],), {}, errors.ArgumentError, "must increase, from 1 to 2,147,483,647 at most"),
        (([10**400],), {}, errors.ArgumentError, "beyond anything that is counted"),
        ((range(1, 2**40),), {}, errors.ArgumentError, "split_points are 64 at most"),
        ((), {"min_speedup": 10**400}, errors.ArgumentError, "beyond float64"),
        (([],), {}, errors.ArgumentError, "omit them for none"),
        ((), {"min_speedup": "1"}, errors.ArgumentTypeError, "min_speedup must be a number, got '1'"),
        ((), {"min_speedup": 0}, errors.ArgumentError, "min_speedup must be positive and finite, got 0"),
    ],
)
def test_options_are_checked(given: Any, named: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        register_autotuning(*given, **named)
    assert aten.mm.default not in user_lowerings
