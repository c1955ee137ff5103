"""Calls of fused operators like earlier ones, on a stand-in for the driver: launched without Python looking again."""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import THERE, TORCH

pytest.importorskip("torch")

_CALLS = f"""{TORCH}
import pycutlass.pytorch, pycutlass.plan.choices
from pycutlass import cutlass
from pycutlass.epilogue import Row, Scalar, Source, Tensor
from pycutlass.plan import Candidate
from pycutlass.plan.measured import generation
from pycutlass.pytorch import epilogue_handle, fused, operators
from descriptions import parts
from fake_gpu.inside import _load, log as asked
{THERE}
@pycutlass.epilogue_function
def scaled(accum, c: Source, extra: Tensor, bias: Row, alpha: Scalar = 0.5, beta: Scalar = 2.0,
           gamma: Scalar = -1.0, delta: Scalar = 0.25, epsilon: Scalar = 4.0):
    t = alpha * accum + beta * c + gamma * extra + delta * bias
    return {{"D": t, "second": epsilon * t}}

handle = epilogue_handle(scaled, second=torch.float64)
M, N, K = 20, 12, 16
alive = []  # the stand-in has memory for as long as these are there

def of_kind(self, m):
    kind = self._kind
    described = {{"A": kind.A, "B": kind.B, "C": kind.C, "epilogue_functor": kind.epilogue}}
    return Candidate(_load(pycutlass.GemmOperationUniversal(**parts("f32") | described), "scaled"))

pycutlass.plan.choices.Choices.of = of_kind

def memory(shape, dtype=np.float32):
    array = Array(0, np.full(shape, np.nan, dtype))
    words = (*shape[:-1], shape[-1] * array.dtype.itemsize // 4)
    tensor = torch.from_numpy(memory_at(array.data.ptr, words).view(dtype))
    alive.append(array)
    return tensor

def new_empty(like, shape, dtype=None):
    return memory(tuple(shape), np.float64 if dtype is torch.float64 else np.float32)

made_by_torch = torch.empty
def empty(*shape, **how):
    return memory(shape[0]) if isinstance(shape[0], tuple) else made_by_torch(*shape, **how)

def empty_strided(shape, stride, dtype, device):
    last = sum(step * (extent - 1) for step, extent in zip(stride, shape))
    return memory((1 + last,), np.float64 if dtype is torch.float64 else np.float32).as_strided(shape, stride)

def clone(tensor, memory_format=None):
    return memory(tuple(tensor.shape)).copy_(tensor)

def contiguous(tensor):
    return tensor if tensor.is_contiguous() else clone(tensor)

torch.Tensor.new_empty, torch.empty, torch.empty_strided = new_empty, empty, empty_strided
torch.Tensor.clone, torch.Tensor.contiguous = clone, contiguous

def drawn(m=M):
    given = of(m, K), of(N, K), of(m, N), of(m, N), of(N)
    alive.extend(given)
    a, b, c, extra, bias = given
    return a, b.t(), c, extra, bias

looked = []
checked = fused._checked
def counted(*given):
    looked.append(given)
    return checked(*given)
fused._checked = counted
operator = torch.ops.pycutlass.fused_mm
(known_calls,) = [each.calls for each in operators._known["pycutlass::fused_mm"] if "out" not in each._names]

def right(found, a, b, c, extra, bias, scalars=()):
    alpha, beta, gamma, delta, epsilon = (*scalars, *(0.5, 2.0, -1.0, 0.25, 4.0)[len(scalars):])
    driver.fake_run()
    d = alpha * (a @ b) + beta * c + gamma * extra + delta * bias
    assert torch.equal(found[0], d) and torch.equal(found[1], epsilon * d.double())
    assert [each.shape for each in found] == [d.shape, d.shape]

def compute(*tensors, scalars=(), known=None):
    a, b, *others = tensors
    looked.clear()
    asked()
    found = operator(a, b, handle, others, list(scalars))
    assert sum(line.startswith("cuLaunchKernel") for line in asked()) == 1
    assert known is None or known is not bool(looked), known
    right(found, *(each.detach() for each in tensors), scalars)

for turn in range(5):
    compute(*drawn(), known=turn > 0)
"""


def test_known_calls_are_launched_at_once() -> None:
    fake_gpu.run(f"""{_CALLS}
assert len(known_calls) == 1
for m in (1, 2, 9):
    for turn in range(3):
        compute(*drawn(m), known=turn > 0)
compute(*drawn(), known=True)
with torch.inference_mode():
    compute(*drawn())
compute(*drawn(), known=True)
""")


def test_plans_find_tensors_by_name() -> None:
    """So they do in C++ from the second run on, where all that the epilogue has are given and nothing else."""
    fake_gpu.run(f"""{_CALLS}
from pycutlass.plan.base import Plan
checked, looked = Plan._checked, []
Plan._checked = lambda *given: (looked.append(given), checked(*given))[1]
a, b, c, extra, bias = drawn()
second = memory((M, N), np.float64)
function = fused.fused(handle, torch.float32).epilogue({{"c": c, "extra": extra, "bias": bias}})
plan = pycutlass.Gemm(a, b, c, epilogue=function, epilogue_inputs={{"extra": extra, "bias": bias, "second": second}})
for turn in range(4):
    a, b, c, extra, bias = drawn()
    out, second = memory((M, N)), memory((M, N), np.float64)
    alive.extend((out, second))
    inputs = {{"bias": bias, "second": second, "extra": extra}}
    looked.clear()
    asked()
    assert plan.run(a, b, c, out, epilogue_inputs=inputs) is out
    assert bool(looked) is (turn == 0)
    assert sum(line.startswith("cuLaunchKernel") for line in asked()) == 1
    right((out, second), a, b, c, extra, bias)
    made = plan.run(a, b, c, epilogue_inputs=inputs)
    right((made, second), a, b, c, extra, bias)
for wrong in ({{}}, {{**inputs, "more": bias}}, {{"bias": bias, "extra": extra}}, {{**inputs, "extra": None}},
              {{**inputs, "bias": extra}}, {{**inputs, "second": second[:1]}}, None, [inputs]):
    try:
        plan.run(a, b, c, out, epilogue_inputs=wrong)
    except PyCutlassError:
        continue
    raise AssertionError("not refused", wrong)
""")


def test_scalars_tell_calls_apart() -> None:
    fake_gpu.run(f"""{_CALLS}
for scalars in ([1.0], [1.0, 3.0], [0.0], [-0.0], [1.0, 3.0, 2.0, 0.5, 8.0]):
    for turn in range(3):
        compute(*drawn(), scalars=scalars, known=turn > 0)
assert len(known_calls) == 6, len(known_calls)
""")


def test_others_are_looked_at() -> None:
    fake_gpu.run(f"""{_CALLS}
a, b, c, extra, bias = drawn()
wide = of(M, 2 * N)
alive.append(wide)
compute(a, b, c, wide[:, :N], bias, known=False)
compute(a, b, wide[:, N:], extra, bias, known=False)
shifted = of(M * N + 1)
alive.append(shifted)
compute(a, b, c, shifted[1:].view(M, N), bias, known=False)  # aligned otherwise
pairs = of(2 * N)
alive.append(pairs)
compute(a, b, c, extra, pairs[::2], known=False)
compute(*drawn(), known=True)

weights = torch.nn.Parameter(b)
try:
    operator(a, weights, handle, [c, extra, bias], [])
except PyCutlassError as error:
    assert "gradient" in str(error)
else:
    raise AssertionError("a gradient was lost")
with torch.no_grad():
    compute(a, weights, c, extra, bias, known=True)
    compute(a, b, c, extra, torch.nn.Parameter(bias), known=True)

for wrong, words in (
    ([c, extra], "2 are"),
    ([c, extra, bias, bias], "4 are"),
    ([c, extra, bias[:-1]], "bias"),
    ([c, extra[:-1], bias], "extra"),
    ([extra.double(), extra, bias], "float64"),
):
    asked()
    try:
        operator(a, b, handle, wrong, [])
    except PyCutlassError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
    assert not any(line.startswith("cuLaunchKernel") for line in asked())
compute(*drawn(), known=True)
""")


def test_what_was_measured_has_calls_looked_at_again() -> None:
    fake_gpu.run(f"""{_CALLS}
generation.begin()
compute(*drawn(), known=False)
compute(*drawn(), known=True)
""")


def test_threads_and_many_shapes() -> None:
    fake_gpu.run(f"""{_CALLS}
from concurrent.futures import ThreadPoolExecutor
sys.setswitchinterval(1e-5)

def work(number):
    for turn in range(20):
        tensors = drawn(1 + (number + turn) % 3)
        found = operator(*tensors[:2], handle, list(tensors[2:]), [])
        right(found, *tensors)

with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
known_calls.clear()
for m in range(1, 12):
    compute(*drawn(m))
    compute(*drawn(m), known=True)
assert len(known_calls) == 11
""")


def test_images_of_other_extents_are_refused() -> None:
    """They have as many pixels, whose rows look the same to a product."""
    fake_gpu.run(f"""{_CALLS}
def images(n, channels, p, q):
    return of(n * p * q, channels).view(n, p, q, channels).permute(0, 3, 1, 2)

x, w = images(2, K, 5, 2), of(N, K).view(N, K, 1, 1)
alive.extend((x, w))

def conv(c, extra, bias):
    alive.extend((c, extra, bias))
    asked()
    found = torch.ops.pycutlass.fused_conv2d(x, w, [1, 1], [0, 0], [1, 1], 1, handle, [c, extra, bias], [])
    assert sum(line.startswith("cuLaunchKernel") for line in asked()) == 1
    driver.fake_run()
    rows = [each.permute(0, 2, 3, 1).reshape(-1, each.shape[1]) for each in (x, c, extra, *found)]
    d = 0.5 * (rows[0] @ w.view(N, K).t()) + 2 * rows[1] - rows[2] + 0.25 * bias
    assert torch.equal(rows[3], d) and torch.equal(rows[4], 4 * d.double())
    assert [each.shape for each in found] == [(2, N, 5, 2)] * 2

for _ in range(4):
    looked.clear()
    conv(images(2, N, 5, 2), images(2, N, 5, 2), of(N))
assert not looked
for n, p, q in ((2, 2, 5), (5, 2, 2), (1, 10, 2)):
    for wrong in (0, 1):
        tensors = [images(2, N, 5, 2), images(2, N, 5, 2), of(N)]
        tensors[wrong] = images(n, N, p, q)
        alive.extend(tensors)
        asked()
        try:
            torch.ops.pycutlass.fused_conv2d(x, w, [1, 1], [0, 0], [1, 1], 1, handle, tensors, [])
        except PyCutlassError as error:
            assert "must be of" in str(error), error
        else:
            raise AssertionError((n, p, q, wrong))
        assert not any(line.startswith("cuLaunchKernel") for line in asked())
""")
