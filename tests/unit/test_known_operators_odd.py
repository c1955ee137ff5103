"""Calls of operators like earlier ones that are odd in some way: they do what they do when nothing is known."""

from __future__ import annotations

import fake_gpu
import pytest
from test_known_operators import _MATRICES, _OWN

pytest.importorskip("torch")


def test_what_is_written_by_a_view_counts_as_written() -> None:
    """Else backward would take what it has saved for what it was."""
    fake_gpu.run(f"""{_MATRICES}
def images(n, channels, p, q):
    return drawn(n, p, q, channels).permute(0, 3, 1, 2)

def parameter(tensor):
    return torch.nn.Parameter(tensor)

cases = [
    (lambda: (drawn(2, 3, K), drawn(N, K)), lambda: drawn(2, 3, N), ops.linear.out),
    (lambda: (drawn(M, K), drawn(N, K)), lambda: drawn(M, N), ops.linear.out),
    (lambda: (drawn(M, K), drawn(N, K)), lambda: parameter(drawn(M, N)), ops.linear.out),
    (lambda: (drawn(M, N), drawn(M, K), turned(K, N)), lambda: parameter(drawn(M, N)), ops.addmm.out),
    (lambda: (images(2, 8, 5, 6), images(6, 8, 1, 1)), lambda: images(2, 6, 5, 6), ops.conv2d.out),
    (lambda: (images(2, 4, 5, 6), images(6, 4, 3, 2)), lambda: images(2, 6, 3, 5), ops.conv2d.out),
]
for draw, make, call in cases:
    for turn in range(4):
        out, tensors = make(), draw()
        factor = torch.ones(out.shape, requires_grad=True)
        saved = (factor * out.detach()).sum()
        versions = [each._version for each in (*tensors, out)]
        with torch.no_grad():
            call(*tensors, out=out)
        driver.fake_run()
        assert [each._version for each in tensors] == versions[:-1] and out._version > versions[-1], (call, turn)
        try:
            saved.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            raise AssertionError((call, turn))
with torch.inference_mode():
    x, w, out = drawn(2, 3, K), drawn(N, K), empty_strided((2, 3, N), (3 * N, N, 1), None, None)
    for _ in range(3):
        ops.linear.out(x, w, out=out)
""")


def test_tensors_of_other_classes_are_asked_nothing() -> None:
    fake_gpu.run(f"""{_MATRICES}
c, a, b = drawn(M, N), drawn(M, K), turned(K, N)

class Duck:
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [each.tensor if isinstance(each, Duck) else each for each in args]
        return cls.made(function(*plain))

    made = staticmethod(lambda found: found)

class Strict(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function not in (ops.addmm, ops.addmm.default):
            raise NotImplementedError(function)
        plain = [torch.Tensor._make_subclass(torch.Tensor, each) for each in args]
        return function(*plain)

for call in (ops.addmm, ops.addmm.default):
    for made in (Duck, float, lambda found: dict(found=found), lambda found: (found, 1), lambda found: None):
        Duck.made = staticmethod(lambda found: made(0 if made is float else found))
        for _ in range(3):
            found = call(Duck(c), Duck(a), Duck(b))
            assert type(found) is type(made(0)), (made, found)
    with torch._C.DisableTorchFunctionSubclass():
        odd = [each.as_subclass(Strict) for each in (c, a, b)]
    for _ in range(3):
        found = call(*odd)
        driver.fake_run()
        assert torch.equal(found, c + a @ b)
""")


def test_memory_that_two_storages_are_of() -> None:
    fake_gpu.run(f"""{_OWN}
from pycutlass.pytorch.targets import Expected
from pycutlass.pytorch.variants import define_outs
chain = lambda a, b, c, *, out=None: matmul(matmul(a, b), c, out=None if out is None else out[0])
made, _ = operator("chained", chain, "(Tensor a, Tensor b, Tensor c) -> Tensor")
written = define_outs(made, chain, lambda a, b, c: [Expected("", (a.shape[0], c.shape[1]), a.dtype)])
for _ in range(3):
    a, b, c, d = drawn(N, K), turned(K, N), turned(N, K), drawn(N, K)
    written(a, b, c, out=d)
    driver.fake_run()
    assert torch.equal(d, a @ b @ c)
asked()
for out in (a, torch.from_dlpack(a), torch.from_dlpack(a)[:, :]):
    try:
        written(a, b, c, out=out)
    except PyCutlassError as error:
        assert "overlaps" in str(error)
    else:
        raise AssertionError("written over what is read")
assert not launches()
""")


def test_arguments_that_are_missing_and_memory_that_is() -> None:
    fake_gpu.run(f"""{_OWN}
made, known = operator("optional", lambda c, a, b: matmul(a, b) if c is None else matmul(a, b, c, beta=1),
                       "(Tensor? c, Tensor a, Tensor b) -> Tensor")
a, b = drawn(M, K), turned(K, N)
for _ in range(3):
    made(None, a, b)
assert len(known) == 1
for call in (made, torch.ops.pycutlass.optional):
    try:
        call(a=a, b=b)
    except RuntimeError as error:
        assert "missing value for argument 'c'" in str(error)
    else:
        raise AssertionError("c is missing")

for _ in range(3):
    ops.linear(drawn(2, 3, K), drawn(N, K))
x = torch.zeros(2, 3, K)
x.untyped_storage().resize_(0)
try:
    ops.linear(x, drawn(N, K))
except PyCutlassError as error:
    assert "its storage was freed" in str(error)
else:
    raise AssertionError("no memory")
""")


def test_what_a_finaliser_launches_is_none_of_the_call() -> None:
    fake_gpu.run(f"""{_OWN}
class Last:
    def __del__(self):
        if waiting:
            ops.addmm(*waiting)

def compute(a, b):
    if waiting:
        last = Last()
        del last
    return matmul(a, b)

made, known = operator("interrupted", compute)
a, b = drawn(M, K), turned(K, N)
for waiting in ((drawn(M, N), a, b), (drawn(M, N), drawn(M, K), turned(K, N))):
    ops.addmm(*waiting)
    made(a, b)
    assert len(known) == 0
waiting = ()
for _ in range(3):
    asked()
    made(a, b)
    assert len(known) == 1 and launches() == 1
""")


def test_results_are_in_what_the_schema_says() -> None:
    fake_gpu.run(f"""{_OWN}
import torch.autograd.forward_ad as forward_ad
for name, kind, other, schema in (
    ("in_a_tuple", tuple, list, "(Tensor a, Tensor b) -> (Tensor, Tensor)"),
    ("in_a_list", list, tuple, "(Tensor a, Tensor b) -> Tensor[]"),
):
    made, known = operator(name, lambda a, b: other((matmul(a, b), matmul(a, b, alpha=2))), schema)
    for turn in range(4):
        a, b = drawn(M, K), turned(K, N)
        if turn == 0:
            with forward_ad.dual_level():  # where the dispatcher is asked
                made(a, b)
        found = made(a, b)
        driver.fake_run()
        assert type(found) is kind and torch.equal(found[1], 2 * (a @ b)), (name, turn)
    assert len(known) == 1
""")


def test_recordings_are_there_until_they_are_closed() -> None:
    fake_gpu.run(f"""{_MATRICES}
tensors = drawn(M, N), drawn(M, K), turned(K, N)
recording = _core.Recording()
recording.__enter__()
inner = _core.Recording()
inner.__enter__()
for wrong in (recording.__exit__, lambda *_: inner.__enter__()):
    try:
        wrong(None, None, None)
    except ValueError:
        pass
    else:
        raise AssertionError("nested")
again = recording
del recording
gc.collect()
for _ in range(3):
    ops.addmm(*tensors)
inner.__exit__(None, None, None)
again.__exit__(None, None, None)
assert again.is_complete and len(again.launches) == len(inner.launches) == 3
ops.addmm(*tensors)
assert len(again.launches) == 3
lost = _core.Recording()
lost.__enter__()
del lost
ops.addmm(*tensors)
""")


def test_keywords_that_the_dispatcher_passes_are_known() -> None:
    """It makes their names anew each time."""
    fake_gpu.run(f"""{_MATRICES}
product = Counted(sums, "product")
for turn in range(4):
    c, a, b = drawn(M, N), drawn(M, K), turned(K, N)
    before = product.calls
    found = ops.addmm(c.requires_grad_(), a, b, alpha=2, beta=3)
    driver.fake_run()
    assert torch.equal(found, 3 * c + 2 * (a @ b)) and found.requires_grad
    assert (product.calls > before) is (turn == 0), turn
""")
