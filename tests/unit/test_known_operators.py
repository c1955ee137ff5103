"""Calls of operators like earlier ones, on a stand-in for the driver: which are launched again, and which are not."""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import THERE, TORCH

pytest.importorskip("torch")

_THERE = f"""{TORCH}
import gc
import pycutlass.pytorch, pycutlass.plan.choices, pycutlass.plan.conv_choices
from fake_gpu.inside import log as asked
from pycutlass.plan import Candidate, Conv2dCandidate
from pycutlass.plan.matmul import matmul
from pycutlass.plan.measured import generation
from pycutlass.pytorch import operators
{THERE}
M, N, K = 5, 6, 7
of_matrices, of_images = gemm(), fprop()
pycutlass.plan.choices.Choices.of = lambda self, m: Candidate(of_matrices)
pycutlass.plan.conv_choices.Conv2dChoices.of = lambda self, n: Conv2dCandidate(of_images)
alive = []  # the stand-in has memory for as long as these are there

def drawn(*shape):
    tensor = of(*shape)
    alive.append(tensor)
    return tensor

def turned(*shape):
    tensor = drawn(*shape[::-1]).t()
    alive.append(tensor)
    return tensor

def empty_strided(shape, stride, dtype, device):
    last = sum(step * (extent - 1) for step, extent in zip(stride, shape))
    tensor = there(np.full(1 + last, np.nan, np.float32))
    alive.append(tensor)
    with torch._C._AutoDispatchBelowADInplaceOrView():  # as memory of its own, and no view
        return tensor.as_strided(shape, stride)

made_by_torch = torch.empty
def empty(*shape, **how):
    if not isinstance(shape[0], tuple):
        return made_by_torch(*shape, **how)
    shape = shape[0]
    return empty_strided(shape, made_by_torch(shape, device="meta").stride(), None, None)

torch.empty, torch.empty_strided = empty, empty_strided
torch.Tensor.new_empty = lambda like, *shape, dtype=None: empty(tuple(shape[0] if len(shape) == 1 else shape))
def clone(tensor, memory_format=None):
    return empty(tuple(tensor.shape)).copy_(tensor)
torch.Tensor.clone = clone
torch.Tensor.contiguous = lambda tensor, memory_format=None: tensor if tensor.is_contiguous() else clone(tensor)

def launches():
    return sum(line.startswith("cuLaunchKernel") for line in asked())

def known_of(name, variant=""):
    [found] = [each for each in operators._known[f"pycutlass::{{name}}"] if ("out" in each._names) == bool(variant)]
    return found.calls

class Counted:
    # A function of a module, and how often it was called.
    def __init__(self, module, name):
        self.function, self.calls = getattr(module, name), 0
        setattr(module, name, self)

    def __call__(self, *args, **named):
        self.calls += 1
        return self.function(*args, **named)

def repeated(call, expected, draw, counted, turns=4, count=1):
    # From the second call of its kind on nothing is chosen any more.
    for turn in range(turns):
        tensors = draw()
        before = counted.calls
        asked()
        found = call(*tensors)
        assert launches() == count, turn
        driver.fake_run()
        wanted = expected(*tensors)
        assert torch.equal(found, wanted) and found.shape == wanted.shape and found.stride() == wanted.stride(), turn
        assert not found._is_view() and found.is_leaf and not found.requires_grad
        assert (counted.calls > before) is (turn == 0), turn
"""

_MATRICES = f"""{_THERE}
from pycutlass.pytorch import products, sums
ops = torch.ops.pycutlass
"""


def test_sums_of_products() -> None:
    fake_gpu.run(f"""{_MATRICES}
product = Counted(sums, "product")
def draw(*of_input):
    return drawn(*(of_input or (M, N))), drawn(M, K), turned(K, N)

for call in (ops.addmm, ops.addmm.default):
    known_of("addmm").clear()
    repeated(call, lambda c, a, b: c + a @ b, draw, product)
    repeated(call, lambda c, a, b: c + a @ b, lambda: draw(N), product)
    repeated(call, lambda c, a, b: (c + a @ b), lambda: draw(1, N), product)
    repeated(lambda *t: call(*t, alpha=2, beta=-1.0), lambda c, a, b: 2 * (a @ b) - c, draw, product)
    repeated(lambda *t: call(*t, alpha=2, beta=-0.0), lambda c, a, b: 2 * (a @ b), draw, product, 0)
    repeated(lambda c, a, b: call(mat2=b, mat1=a, input=c), lambda c, a, b: c + a @ b, draw, product, 0)
assert len(known_of("addmm")) == 4

for call in (ops.addmm, ops.addmm.out):
    known_of("addmm", "out").clear()
    def written(c, a, b, d):
        versions = [each._version for each in (c, a, b, d)]
        assert call(c, a, b, out=d) is None
        assert [each._version for each in (c, a, b)] == versions[:3] and d._version > versions[3]
        return d
    repeated(written, lambda c, a, b, d: c + a @ b, lambda: (*draw(), drawn(M, N)), product)
    c, a, b = draw()
    before = product.calls
    for _ in range(3):  # in place, which the operator decides about each time
        expected = c + a @ b
        call(c, a, b, out=c)
        driver.fake_run()
        assert torch.equal(c, expected)
    assert product.calls == before + 3
""")


def test_layers_take_views_and_parameters() -> None:
    fake_gpu.run(f"""{_MATRICES}
product = Counted(products, "product")
def of_rows(x, w, bias=None):
    made = x.flatten(0, -2) @ w.t()
    return (made if bias is None else made + bias).view(*x.shape[:-1], N)

for call in (ops.linear, ops.linear.default):
    known_of("linear").clear()
    for lead in ((M,), (2, 3), (2, 1, 3)):
        repeated(call, of_rows, lambda: (drawn(*lead, K), drawn(N, K), drawn(N)), product)
        repeated(call, of_rows, lambda: (drawn(*lead, K), drawn(N, K)), product)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            for turn in range(3):
                x, w, bias = drawn(M, K), torch.nn.Parameter(drawn(N, K)), torch.nn.Parameter(drawn(N))
                before = product.calls
                found = call(x, w, bias)
                driver.fake_run()
                assert torch.equal(found, of_rows(x, w, bias)) and type(found) is torch.Tensor
                assert not found.requires_grad and (turn == 0 or product.calls == before)
    x, w = drawn(M, K), drawn(N, K).requires_grad_()
    assert call(x, w).requires_grad

for call in (ops.matmul, ops.matmul.default):
    known_of("matmul").clear()
    repeated(call, torch.matmul, lambda: (drawn(2, 3, K), turned(K, N)), product)
    repeated(call, torch.matmul, lambda: (drawn(M, K), turned(K, N)), product)
    draw = lambda: (drawn(M, K), turned(K, N))
    repeated(lambda a, b: call(a, b, out_dtype=torch.float32), torch.matmul, draw, product)
    repeated(lambda a, b: call(other=b, input=a), torch.matmul, draw, product, 0)

x, w = drawn(M, K), drawn(N, K)
out = drawn(M, N)
for _ in range(3):
    assert ops.linear.out(x, w, out=out) is None
driver.fake_run()
assert torch.equal(out, x @ w.t())
same = drawn(N, N)
before = len(known_of("linear"))
for _ in range(3):  # both operands are one tensor: nobody sees which of them a launch takes
    found = ops.linear(same, same)
    driver.fake_run()
    assert torch.equal(found, same @ same.t())
assert len(known_of("linear")) == before
x, w = drawn(N, N), drawn(N, N)
for _ in range(3):
    found = ops.linear(x, w)
    driver.fake_run()
    assert torch.equal(found, x @ w.t())
""")


def test_convolutions() -> None:
    fake_gpu.run(f"""{_MATRICES}
from pycutlass.pytorch import convolutions
from torch.nn import functional
conv2d = Counted(convolutions.convolutions, "conv2d")
def images(n, channels, p, q):
    return drawn(n, p, q, channels).permute(0, 3, 1, 2)

def expected(x, w, *more):
    return functional.conv2d(x, w, *more).to(memory_format=torch.channels_last)

for call in (ops.conv2d, ops.conv2d.default):
    known_of("conv2d").clear()
    repeated(call, expected, lambda: (images(2, 4, 5, 6), images(6, 4, 3, 2)), conv2d)
    repeated(call, expected, lambda: (images(2, 8, 5, 6), images(6, 8, 1, 1)), conv2d)  # a product of pixels
    padded = lambda x, w: call(x, w, None, [1, 1], [1, 0])
    of_padded = lambda x, w: expected(x, w, None, 1, (1, 0))
    repeated(padded, of_padded, lambda: (images(2, 4, 5, 6), images(6, 4, 3, 2)), conv2d)
    for turn in range(3):
        x, w = images(2, 4, 5, 6), images(6, 4, 3, 2)
        before = conv2d.calls
        found = call(x, w, padding=(1, 0))
        driver.fake_run()
        assert torch.equal(found, of_padded(x, w)) and conv2d.calls == before
""")


_OWN = f"""{_MATRICES}
from pycutlass.pytorch.operators import define

def operator(name, compute, schema="(Tensor a, Tensor b) -> Tensor"):
    fake = lambda *given, **named: given[0].new_empty(given[0].shape[0], given[1].shape[1])
    made = define(name + schema, compute, fake, repeats=True)
    return made, known_of(name, "out" if "out" in schema else "")

def now(tensor):
    driver.fake_run()
    return tensor

def doubled(tensor):
    return empty(tuple(tensor.shape)).copy_(2 * tensor)

def tried(name, compute, expected, schema="(Tensor a, Tensor b) -> Tensor", more=0, turns=4):
    # An operator of such a function is right each time; how many calls are known.
    made, known = operator(name, compute, schema)
    for _ in range(turns):
        tensors = drawn(M, K), turned(K, N), *(turned(N, N) for _ in range(more))
        found = made(*tensors)
        driver.fake_run()
        wanted = expected(*tensors)
        for one, other in zip(*((each,) if isinstance(each, torch.Tensor) else each for each in (found, wanted))):
            assert torch.equal(one, other), name
    return len(known)
"""


def test_what_launches_alone_do_not_make_is_not_kept() -> None:
    fake_gpu.run(f"""{_OWN}
wanted = lambda a, b: a @ b
assert tried("plain", lambda a, b: matmul(a, b), wanted) == 1
assert tried("copied", lambda a, b: matmul(a.clone(), b), wanted) == 0
assert tried("added", lambda a, b: now(matmul(a, b)) + 1, lambda a, b: a @ b + 1) == 0
assert tried("ignored", lambda a, b: matmul(a, a.t()), lambda a, b: a @ a.t()) == 0
assert tried("part", lambda a, b: matmul(a, b)[:, :2], lambda a, b: (a @ b)[:, :2]) == 0
assert tried("moved", lambda a, b: matmul(a, b).t(), lambda a, b: (a @ b).t()) == 1
assert tried("half", lambda a, b: matmul(a[:2], b), lambda a, b: a[:2] @ b) == 1
assert tried("seen", lambda a, b: matmul(a, b, alpha=float(a[0, 0] * 0 + 1)), wanted) == 1
assert tried("given", lambda a, b: (matmul(a, b), a)[1], lambda a, b: a) == 0
""")


def test_several_launches_and_what_is_between_them() -> None:
    fake_gpu.run(f"""{_OWN}
schema = "(Tensor a, Tensor b, Tensor c) -> Tensor"
wanted = lambda a, b, c: a @ b @ c
assert tried("chain", lambda a, b, c: matmul(matmul(a, b), c), wanted, schema, 1) == 1
assert tried("added_to", lambda a, b, c: matmul(matmul(a, b), c, matmul(a, b), beta=1),
             lambda a, b, c: a @ b @ c + a @ b, schema, 1) == 1
assert tried("changed", lambda a, b, c: matmul(doubled(now(matmul(a, b))), c), lambda a, b, c: 2 * (a @ b @ c),
             schema, 1) == 0
assert tried("two", lambda a, b, c: (matmul(a, b), matmul(matmul(a, b), c)), lambda a, b, c: (a @ b, a @ b @ c),
             "(Tensor a, Tensor b, Tensor c) -> (Tensor, Tensor)", 1) == 1
assert tried("listed", lambda a, b, c: [matmul(a, b), matmul(matmul(a, b), c)], lambda a, b, c: (a @ b, a @ b @ c),
             "(Tensor a, Tensor b, Tensor c) -> Tensor[]", 1) == 1
made, known = operator("lists", lambda tensors, scale=1.0: matmul(*tensors, alpha=scale),
                       "(Tensor[] a, float b=1.) -> Tensor")
for scale in (1.0, 2.0, 1.0, -0.0, 0.0, float("nan"), 1, 2):
    for more in range(3):
        a, b = drawn(M, K), turned(K, N)
        found = made([a, b], scale)
        driver.fake_run()
        torch.testing.assert_close(found, scale * (a @ b), rtol=0, atol=0, equal_nan=True)
assert len(known) == 5 + 2  # and integers, as the caller has them
""")


def test_settings_that_change_meanwhile() -> None:
    """What float32 is computed by is what was asked for when the kernel was chosen, whatever it is before and after."""
    fake_gpu.run(f"""{_OWN}
settings = torch.backends.cuda.matmul
asked_for, during = [], ["ieee"]
def compute(a, b):
    before, settings.fp32_precision = settings.fp32_precision, during[0]
    made = matmul(a, b)
    settings.fp32_precision = before
    asked_for.append(during[0])
    return made

made, known = operator("raced", compute)
def call(m, setting, of_call=None):
    settings.fp32_precision = setting
    during[0] = of_call or setting
    asked_for.clear()
    a, b = drawn(m, K), turned(K, N)
    found = made(a, b)
    driver.fake_run()
    assert torch.equal(found, a @ b)
    return list(asked_for)

assert call(1, "ieee") == ["ieee"] and call(1, "ieee") == []
assert call(1, "tf32") == ["tf32"] and call(1, "tf32") == []
assert call(1, "ieee") == ["ieee"]
assert call(2, "ieee", "tf32") == ["tf32"]
assert call(2, "ieee") == ["ieee"] and call(2, "ieee") == []
""")


def test_what_was_measured_and_threads() -> None:
    fake_gpu.run(f"""{_OWN}
from concurrent.futures import ThreadPoolExecutor
computed = []
def compute(a, b):
    computed.append(1)
    return matmul(a, b)
made, known = operator("measured", compute)
def right(m=M):
    a, b = drawn(m, K), turned(K, N)
    found = made(a, b)
    driver.fake_run()
    assert torch.equal(found, a @ b)
    return found
for _ in range(3):
    right()
assert len(computed) == 1
generation.begin()
right()
right()
assert len(computed) == 2
sys.setswitchinterval(1e-5)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda number: [right(1 + (number + turn) % 3) for turn in range(20)], range(4)))
before = len(computed)
right()
assert len(computed) == before
from torch.overrides import TorchFunctionMode
class Sees(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or dict()))
with Sees():  # calls of the dispatcher, whose kernel does not choose again
    right()
assert len(computed) == before
""")


@pytest.mark.parametrize("seed", [0, 1])
def test_random_calls_do_what_they_do_when_nothing_is_known(seed: int) -> None:
    """Tensors of few shapes that lie in memory in many ways, some of them in one buffer, with what is to be refused."""
    fake_gpu.run(f"""{_MATRICES}
draws = random.Random({seed})
counted = Counted(sums, "product"), Counted(products, "product")
chosen = lambda: sum(each.calls for each in counted)
buffer = drawn(4096)
before = buffer.clone()  # of what is copied behind a launch, the stand-in has run nothing yet
at = 0

def place(*shape):
    # A matrix or a vector: packed, with longer rows, at an odd address, or as rows of columns.
    global at
    rows, columns = shape if len(shape) == 2 else (1, *shape)
    how = draws.choice(["packed"] * 12 + ["long", "odd", "turned", "wide"])
    step = columns + draws.choice([1, 4]) if how == "long" else columns
    begin = 0 if draws.random() < 0.03 else at  # over another one
    begin += how == "odd"
    at = (begin + 2 * rows * (step + 4) + 15) // 16 * 16 % 3000
    if how == "turned":
        made = buffer.as_strided((rows, columns), (1, rows), begin)
    else:
        made = buffer.as_strided((rows, columns), (step, 1 + (how == "wide")), begin)
    return made if len(shape) == 2 else made[0]

def outcome(call, tensors, out):
    buffer.copy_(before)
    asked()
    try:
        made = call(*tensors) if out is None else (call(*tensors, out=out), out)[1]
    except PyCutlassError as error:
        assert not launches()
        return type(error), str(error)
    driver.fake_run()
    return made.clone(), buffer.clone()

def is_right(found, expected, out):
    if found[1].isnan().any():  # a copy of a result
        return out is not None and not out.is_contiguous()
    return torch.equal(found[0], expected)

operations = [
    ("addmm", lambda: (place(*draws.choice([(m, n), (m, n), (n,), (1, n), (m, 1)])), place(m, k), place(n, k).t()),
     lambda c, a, b: c + a @ b),
    ("linear", lambda: (place(m, k), place(n, k), place(n) if draws.random() < 0.5 else None),
     lambda x, w, bias: x @ w.t() if bias is None else x @ w.t() + bias),
]
launched = refused_ = served = 0
for turn in range(1500):
    (name, draw, exact), n, k = draws.choice(operations), N, K
    m = draws.choice([2, M])
    k = K + (draws.random() < 0.03)
    tensors = draw()
    k = K
    out = place(m, n) if draws.random() < 0.4 else None
    variant = getattr(ops, name) if out is None or draws.random() < 0.5 else getattr(ops, name).out
    buffer.copy_(before)
    try:
        expected = exact(*tensors)
    except RuntimeError:
        expected = None
    calls, found = chosen(), outcome(variant, tensors, out)
    is_refused = isinstance(found[0], type)
    said = turn, name, [each if each is None else (each.shape, each.stride(), each.data_ptr()) for each in tensors]
    if is_refused:
        assert torch.equal(buffer, before), said
        refused_ += 1
    else:
        assert expected is not None and is_right(found, expected, out), (said, found, expected)
        launched += 1
        served += chosen() == calls
    if draws.random() < (0.1 if is_refused else 0.01):
        known_of(name, "" if out is None else "out").clear()
        again = outcome(variant, tensors, out)
        assert again == found if is_refused else not isinstance(again[0], type), (said, found, again)
assert launched > 800 and refused_ > 40 and served > 150, (launched, refused_, served)
""")
