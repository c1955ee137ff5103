"""Tensors whose own code updates the arguments that are looking at them just then."""

from __future__ import annotations

import fake_gpu
import pytest
from prepared_arguments import TORCH

_PROGRAM = """
def there(values):
    array = Array(0, values)
    tensor = torch.from_numpy(memory_at(array.data.ptr, array.shape))
    tensor.array = array
    return tensor

def one():
    B = there(on_host(6, 7, 2))
    view = B.t()
    view.array = B.array
    return [there(on_host(5, 7, 1)), view, there(np.zeros((5, 6), np.float32))]

act, inner = None, []

class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        global act
        if act:
            now, act = act, None
            try:
                now()
                inner.append("updated")
            except PyCutlassError as error:
                inner.append(type(error).__name__)
                assert "cannot be updated now" in str(error), str(error)
        return super().__torch_function__(function, types, args, kwargs or {})

many = [[*each] for each in zip(*[one() for _ in range(300)])]
few = [[*each] for each in zip(*[one() for _ in range(2)])]
size = (5, 6, 7)
operation = group("device")
arguments = pycutlass.GemmGroupedArguments(
    operation, [size] * 2, [each.as_subclass(Own) for each in few[0]], few[1], None, few[2]
)
names = dict(zip("ABD", many))
"""
_INNER = {
    "resize": "arguments.update(problem_sizes=[size] * 300, **names)",
    "checked": "arguments.update(problem_sizes=[size] * 300, output_op=operation.epilogue_type(1.0, 0.0), **names)",
    "tensors": "arguments.update(A=few[0])",
}


@pytest.mark.parametrize("inner", _INNER)
def test_an_update_from_the_code_of_a_tensor_is_refused(inner: str) -> None:
    fake_gpu.run(
        f"""{TORCH}
{_PROGRAM}
def change():
    {_INNER[inner]}
for _ in range(3):
    act = change
    arguments.update(A=[each.clone().as_subclass(Own) for each in few[0]])
    assert act is None
assert inner == ["ArgumentError"] * 3, inner
arguments.update(problem_sizes=[size] * 2, A=few[0], B=few[1], D=few[2])
operation.run(arguments)
arguments.sync()
for a, b, d in zip(*few):
    assert torch.equal(d, a @ b)
assert arguments.problem_count == 2
""",
        seconds=120,
    )
