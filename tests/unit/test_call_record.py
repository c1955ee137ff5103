"""The call record without a GPU: tables of operands, arguments of epilogues, and what is refused there."""

from __future__ import annotations

import struct

import fake_gpu
import pytest

from pycutlass import _core
from pycutlass.epilogue.scalars import EpilogueLayout
from pycutlass.errors import CacheError
from pycutlass.types import ELEMENTS

_SCALED = """
from pycutlass import _core
from pycutlass.kernel import epilogue_layout, load

M, N, K = 5, 8, 6
F32, FORMS, ROLES = _core.ELEMENTS["f32"], _core.FORMS, _core.ROLES
from extra_epilogue import SCALARS as numbers, exact


class Given:
    '''Tensors of one launch, on GPU 0.'''

    def __init__(self, seed, scale_A_rows=1):
        self.host = {"A": on_host(M, K, seed), "B": on_host(K, N, seed + 1, "F"), "C": on_host(M, N, seed + 2)}
        self.host |= {"D": np.zeros((M, N), np.float32), "scale_A": on_host(scale_A_rows, 1, seed + 3).reshape(-1)}
        self.host |= {"scale_B": on_host(N, 1, seed + 4).reshape(-1), "bias": on_host(N, 1, seed + 5).reshape(-1)}
        self.host |= {"extra": on_host(M, N, seed + 6), "second": np.zeros((M, N), np.float64)}
        self.here = {name: Array(0, each) for name, each in self.host.items()}

    def check(self, alpha=0.5):
        host, here = self.host, self.here
        scale_A = host["scale_A"][:, None] if len(host["scale_A"]) > 1 else host["scale_A"][0]
        made = exact(host | {"A": host["A"] * scale_A, "B": host["B"] * host["scale_B"]}, alpha=alpha)
        assert (here["D"].now() == made["D"]).all()
        assert (here["second"].now() == made["second"]).all()


def make(given, alpha_at=0):
    call = _core.GemmCall(load(operation, 0))
    layout = epilogue_layout(load(operation, 0))
    here = given.here
    addresses = {name: here[name].data.ptr for name in ("bias", "extra", "second")} | {"alpha": alpha_at}
    call.set_epilogue(layout.pack(numbers, addresses, {"extra": (N,), "second": (N,)}))
    scale_A = "scalar" if given.host["scale_A"].size == 1 else "vector"
    forms = {"A": "tensor", "B": "tensor", "C": "tensor", "D": "tensor", "scale_A": scale_A, "scale_B": "vector"}
    for name, form in forms.items():
        tensor, ld = given.here[name], {"A": K, "B": K, "C": N, "D": N}.get(name, 0)
        size = given.host[name].nbytes
        call.set_operand(ROLES[name], tensor.data.ptr, (ld, 0), size, 4, F32, FORMS[form])
        call.remember(name, tensor, name)
    for name, field in layout.tensors.items():
        tensor = given.here[name]
        call.set_epilogue_tensor(name, field.offset, (N, 0), given.host[name].nbytes, 4, field.written)
        call.remember(name, tensor, name)
    call.set_problem(0, M, N, K, 1)
    assert call.plan() == 0
    return call


def launch(call):
    call.run()
    call.last_stream.synchronize()


operation = gemm("scaled")
"""


def test_scales_vectors_and_a_second_output_reach_the_kernel() -> None:
    program = """
for rows in (1, M):
    given = Given(10, rows)
    launch(make(given))
    given.check()
alpha = Array(0, np.array([3.0], np.float32))
given = Given(11)
launch(make(given, alpha.data.ptr))
given.check(3.0)
print(make(given).operands)
"""
    said = fake_gpu.run(_SCALED + program)
    assert said == "['A', 'B', 'C', 'D', 'scale_A', 'scale_B', 'bias', 'extra', 'second']\n"


def test_every_operand_can_be_exchanged_and_all_or_none_are() -> None:
    program = """
given, other = Given(20), Given(30)
call = make(given)
names = call.operands
assert call.update(*(other.here[name] for name in names))
launch(call)
other.check()

assert call.update(None, None, None, given.here["D"], None, None, None, None, given.here["second"])
launch(call)
given.host = other.host
given.check()

short = Array(0, np.zeros(3, np.float32))
assert not call.update(*(Given(40).here[name] for name in names[:-3]), short, None, None), "a bias of another length"
for culprit in ("bias", "scale_B", "A", "D"):
    assert not call.update(*[None] * 8, given.here[culprit]), "a second output of another type"
assert not call.update(*[None] * 10), "more operands than there are"
launch(call)
given.check()
"""
    fake_gpu.run(_SCALED + program)


def test_a_second_output_over_what_is_read_is_not_taken() -> None:
    """C may be D itself; nothing else that is written may be anywhere but alone."""
    program = """
borrowed = []


def over(name, other):
    # A tensor like `name` with the memory of another, until the end.
    array = Array(0, given.host[name])
    borrowed.append((array, array.data))
    array.data = SimpleNamespace(ptr=given.here[other].data.ptr, device_id=0)
    return array


given = Given(50)
call = make(given)
for other in call.operands[:-1]:
    assert not call.update(*[None] * 8, over("second", other)), other
assert not call.update(None, over("B", "D"), *[None] * 7)
assert not call.update(*[None] * 6, over("bias", "D"), None, None)
launch(call)
given.check()
assert call.update(None, None, over("C", "D"), *[None] * 6), "C is D"
for array, own in borrowed:
    array.data = own
"""
    fake_gpu.run(_SCALED + program)


def test_a_call_goes_over_to_another_with_its_own_memory() -> None:
    program = """
given, other = Given(60), Given(70, M)
call, prepared = make(given), make(other)
call.adopt(prepared)
del prepared
launch(call)
other.check()
third = Given(80, M)
assert call.update(*(third.here[name] for name in call.operands))
launch(call)
third.check()
"""
    fake_gpu.run(_SCALED + program)


def test_what_the_kernel_was_not_compiled_for_is_refused() -> None:
    program = """
given = Given(90)
call = make(given)
plain = _core.GemmCall(load(gemm(), 0))

def refused(what):
    try:
        what()
    except pycutlass.errors.CacheError as error:
        print(error)
    else:
        print("taken")

refused(lambda: call.set_operand(0, given.here["A"].data.ptr, (K,), 4, 4, _core.ELEMENTS["f16"], 0))
refused(lambda: plain.set_operand(ROLES["scale_A"], given.here["A"].data.ptr, (K,), 4, 4, F32, 0))
refused(lambda: call.set_operand(77, given.here["A"].data.ptr, (K,), 4, 4, F32, 0))
refused(lambda: call.set_epilogue(bytes(8)))
refused(lambda: call.set_epilogue_tensor("bias", 0, (), 4, 4, False))
refused(lambda: call.remember("scale_C", given.here["A"], "scale_C"))
refused(lambda: epilogue_layout(load(operation, 0)).pack({"alpha": 1.0, "beta": 0.0}, {}))
launch(call)
given.check()
"""
    said = fake_gpu.run(_SCALED + program)
    assert said.splitlines() == [
        "operand A is of f16, and the kernel was compiled for one of f32: description and kernel do not belong "
        "together",
        "operand scale_A is of f32, and the kernel has none: description and kernel do not belong together",
        "no operand has number 77",
        f"the epilogue takes {struct.calcsize('fffxxxxddPPPPqq')} bytes of arguments, got 8",
        "the epilogue has no address of bias",
        "the call has no operand scale_C",
        "the kernel's epilogue takes alpha, beta, bias, delta, epsilon, extra, gamma, second, and is given alpha, "
        "beta: description and kernel do not belong together",
    ]


def test_an_operation_whose_kernel_is_of_another_type_is_refused() -> None:
    """Where the table of types of a description and its kernel disagreed, results would be silently wrong."""
    program = """
from descriptions import parts
from fake_gpu.inside import _load
operation = _load(pycutlass.GemmOperationUniversal(**parts("f64_simt")), "gemm")
A, B, D = (Array(0, np.zeros((4, 4))) for _ in range(3))
try:
    pycutlass.GemmArguments(operation, (4, 4, 4), A, Array(0, np.zeros((4, 4), order="F")), None, D)
except pycutlass.errors.CacheError as error:
    print(error)
"""
    said = fake_gpu.run(program)
    assert said.startswith("operand A is of f64, and the kernel was compiled for one of f32") or "epilogue" in said


def test_every_element_type_has_a_number_of_its_own() -> None:
    codes = [row.code for row in ELEMENTS]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes


def test_numbers_are_rounded_as_kernels_round_them() -> None:
    fields = [(kind, "value", kind, 8 * at, size, 0, False) for at, (kind, size) in enumerate(_SIZES.items())]
    layout = EpilogueLayout(8 * len(fields), fields)
    packed = layout.pack({"f64": 1e-310, "f32": 1e300, "f16": 2049.0, "s32": -7.0, "s64": 2.0**53}, {})
    assert struct.unpack("<d f4x e6x i4x q", packed) == (1e-310, float("inf"), 2048.0, -7, 2**53)
    # By way of f32, where 1 + 2**-11 + 2**-25 is a tie that goes to even.
    packed = layout.pack({"f64": 0.0, "f32": 0.0, "f16": 1 + 2**-11 + 2**-25, "s32": 0, "s64": 0}, {})
    assert struct.unpack_from("<e", packed, 16) == (1.0,)


_SIZES = {"f64": 8, "f32": 4, "f16": 2, "s32": 4, "s64": 8}


def test_addresses_and_strides_have_their_places() -> None:
    fields = [
        ("bias", "stride", "s64", 24, 8, 1, False),
        ("bias", "address", "f16", 8, 8, 0, False),
        ("alpha", "value", "f32", 0, 4, 0, False),
        ("bias", "stride", "s64", 16, 8, 0, False),
    ]
    layout = EpilogueLayout(40, fields)
    packed = layout.pack({"alpha": 1.5}, {"bias": 0x1234}, {"bias": (7, 9)})
    assert struct.unpack("<f4xQqq8x", packed) == (1.5, 0x1234, 7, 9)
    assert [*layout.tensors] == ["bias"]
    assert layout.scalars == {"alpha"}
    for values, addresses in (
        ({}, {"bias": 1}),
        ({"alpha": 1.0}, {}),
        ({"alpha": 1.0}, {"bias": 0}),
        ({"alpha": 1.0, "beta": 0.0}, {"bias": 1}),
        ({"alpha": 1.0}, {"bias": 1, "alpha": 8}),
    ):
        with pytest.raises(CacheError, match="do not belong together"):
            layout.pack(values, addresses)


def test_roles_begin_with_the_operands_of_every_kernel() -> None:
    assert list(_core.ROLES.items())[:4] == [("A", 0), ("B", 1), ("C", 2), ("D", 3)]


_EXTRA = """
from pycutlass import cutlass
from descriptions import parts
from extra_epilogue import SCALARS, ExtraEpilogue, exact
from fake_gpu.inside import _load

M, N, K = 5, 8, 8
functor = ExtraEpilogue(cutlass.float32, cutlass.float64, 4)
described = parts("f32") | {"epilogue_functor": functor}
operation = _load(pycutlass.GemmOperationUniversal(**described), "scaled")
scalars = operation.epilogue_type(**SCALARS)


def drawn(seed):
    host = {"A": on_host(M, K, seed), "B": on_host(K, N, seed + 1, "F"), "C": on_host(M, N, seed + 2)}
    host |= {"D": np.zeros((M, N), np.float32), "extra": on_host(M, N, seed + 3)}
    return host | {"bias": on_host(N, 1, seed + 4).reshape(-1), "second": np.zeros((M, N))}


def split(given):
    return [given[name] for name in "ABCD"], {name: given[name] for name in ("extra", "bias", "second")}


def make(given):
    tensors, others = split(given)
    return pycutlass.GemmArguments(operation, (M, N, K), *tensors, output_op=scalars, epilogue=others)


def check(host, D, second):
    made = exact(host)
    assert (D == made["D"]).all(), (D, made["D"])
    assert (second == made["second"]).all()
"""


def test_an_epilogue_with_tensors_of_its_own_is_launched_and_updated() -> None:
    program = """
host = drawn(1)
here = {name: Array(0, each) for name, each in host.items()}
arguments = make(here)
operation.run(arguments)
arguments.sync()
check(host, here["D"].now(), here["second"].now())

other = drawn(2)
there = {name: Array(0, each) for name, each in other.items()}
arguments._execution.update = None  # the fast path does it alone
tensors, others = split(there)
arguments.update(**dict(zip("ABCD", tensors)), epilogue=others)
operation.run(arguments)
arguments.sync()
check(other, there["D"].now(), there["second"].now())

del arguments._execution.update
arguments.update(epilogue={"bias": Array(0, host["bias"]), "extra": None})
operation.run(arguments)
arguments.sync()
check(other | {"bias": host["bias"]}, there["D"].now(), there["second"].now())

arguments.update(epilogue={"bias": host["bias"]}, output_op=operation.epilogue_type(1.0, 1.0, epsilon=1.0))
operation.run(arguments)
arguments.sync()
D = other["A"] @ other["B"] + other["C"]
assert (there["D"].now() == D).all() and (there["second"].now() == D).all()
"""
    fake_gpu.run(_EXTRA + program)


def test_arrays_of_the_host_come_and_go() -> None:
    program = """
host = drawn(3)
arguments = make(host)
operation.run(arguments)
arguments.sync()
check(host, host["D"], host["second"])
other = drawn(4)
arguments.update(A=other["A"], epilogue={"extra": other["extra"]})
operation.run(arguments)
arguments.sync()
check(host | {"A": other["A"], "extra": other["extra"]}, host["D"], host["second"])
"""
    fake_gpu.run(_EXTRA + program)


def test_a_kernel_of_another_epilogue_is_refused() -> None:
    program = """
for functor, family in (
    (ExtraEpilogue(cutlass.float32, cutlass.float32, 4), "scaled"),
    (ExtraEpilogue(cutlass.float32, cutlass.float64, 4), "gemm"),
    (pycutlass.LinearCombination(cutlass.float32, 4), "scaled"),
):
    changed = {"epilogue_functor": functor, "swizzling_functor": cutlass.IdentitySwizzle2}
    operation = pycutlass.GemmOperationUniversal(**described | changed)
    _load(operation, family)
    given = {name: Array(0, each) for name, each in drawn(5).items()}
    tensors, others = split(given)
    if functor.ports:
        others["second"] = Array(0, np.zeros((M, N), functor.outputs[0].type.dtype))
    else:
        others = None
    try:
        pycutlass.GemmArguments(
            operation, (M, N, K), *tensors, output_op=operation.epilogue_type(1.0, 1.0), epilogue=others
        )
    except pycutlass.errors.CacheError as error:
        print(str(error).partition(":")[0])
    operation.artifacts.clear()
    forget_kernels()
"""
    said = fake_gpu.run(_EXTRA + program).splitlines()
    assert said == [
        "second is described as an output of f32, and to the kernel it is an output of f64",
        "the kernel's epilogue takes alpha, beta, and is given alpha, beta, bias, delta, epsilon, extra, gamma, second",
        "the kernel's epilogue takes alpha, beta, bias, delta, epsilon, extra, gamma, second, and is given alpha, beta",
    ]
