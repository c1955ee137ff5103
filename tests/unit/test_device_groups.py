"""Groups that offs on the device divides: the tables that are made of it, which never point beside the tensors.

Here they are made of host memory, where what they hold can be followed.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import pycutlass  # noqa: E402
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError  # noqa: E402
from pycutlass.plan.device_groups import DeviceGroup, leaves_zeros  # noqa: E402
from pycutlass.plan.group import Group  # noqa: E402
from pycutlass.plan.group_kinds import kind_of_group  # noqa: E402
from pycutlass.plan.grouped_gemm import GroupedGemm  # noqa: E402
from pycutlass.plan.kinds import Wanted  # noqa: E402
from pycutlass.plan.offsets import Offsets  # noqa: E402
from pycutlass.plan.port_copies import beside_group  # noqa: E402

F32 = torch.float32


def unread(ends: list[int]) -> Offsets:
    """Return offsets that the host takes no look at."""
    offsets = Offsets([0] * len(ends))
    offsets.tensor, offsets.ends = torch.tensor(ends, dtype=torch.int32), None
    return offsets


def described(
    xs: Any, ws: Any, ends: list[int], out: Any, zeroes_rest: bool = False, **further: Any
) -> tuple[DeviceGroup, dict[str, Any]]:
    group = Group(xs, ws, unread(ends), further.get("cs"), further.get("bias"))
    target = group.result(out, lambda n: n)
    kind = kind_of_group(group, target, Wanted())
    made = DeviceGroup(kind, group, target, None, zeroes_rest=zeroes_rest)
    tables, strides = made.tables_and_strides()
    again = made.tables()
    assert tables.keys() == again.keys()
    assert all(torch.equal(table, again[name]) for name, table in tables.items())
    return made, tables | strides


def followed(tables: dict[str, Any], letter: str, number: int, by_rows: bool, memory: Any) -> Any:
    """Return the matrix that a kernel finds for a problem, as a view of the memory that it must be in."""
    m, n, k = tables["problem_sizes"][number].tolist()
    rows, columns = {"A": (m, k), "B": (k, n), "C": (m, n), "D": (m, n)}[letter]
    ld = int(tables[f"ld{letter.lower()}"][number])
    start, rest = divmod(int(tables[letter][number]) - memory.untyped_storage().data_ptr(), memory.element_size())
    strides = (ld, 1) if by_rows else (1, ld)
    last = start + max(rows - 1, 0) * strides[0] + max(columns - 1, 0) * strides[1]
    assert rest == 0
    assert start >= memory.storage_offset()
    if rows and columns:
        held = memory.untyped_storage().nbytes() // memory.element_size()
        assert last < held
    return memory.as_strided((rows, columns), strides, start) if rows and columns else memory.new_empty((rows, columns))


def is_by_rows(tensor: Any) -> bool:
    return bool(tensor.stride(-1) == 1)


LAYOUTS = list(itertools.product([False, True], repeat=2))
ENDS = [[3, 3, 10, 12], [0, 0, 0, 0], [12, 12, 12, 12], [1, 2, 3, 4]]


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize(("turned_x", "turned_w"), LAYOUTS)
def test_rows_are_found(turned_x: bool, turned_w: bool, ends: list[int]) -> None:
    xs = torch.randn(8, 12).T if turned_x else torch.randn(12, 8)
    ws = torch.randn(4, 5, 8).mT if turned_w else torch.randn(4, 8, 5)
    out, bias = torch.empty(12, 5), torch.randn(4, 5)
    _, tables = described(xs, ws, ends, out, bias=bias)
    for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        assert tables["problem_sizes"][number].tolist() == [end - begin, 5, 8]
        torch.testing.assert_close(followed(tables, "A", number, not turned_x, xs), xs[begin:end])
        torch.testing.assert_close(followed(tables, "B", number, not turned_w, ws), ws[number])
        assert int(tables["D"][number]) == out.data_ptr() + begin * 5 * 4
        assert int(tables["C"][number]) == bias[number].data_ptr()
        assert int(tables["ldc"][number]) == 0
    assert {each.dtype for each in tables.values()} == {torch.int32, torch.int64}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize(("turned_x", "turned_w"), LAYOUTS)
def test_k_and_columns_are_found(turned_x: bool, turned_w: bool, ends: list[int]) -> None:
    xs = torch.randn(12, 5).T if turned_x else torch.randn(5, 12)
    ws = torch.randn(6, 12).T if turned_w else torch.randn(12, 6)
    out = torch.empty(4, 5, 6)
    _, tables = described(xs, ws, ends, out)
    for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        assert tables["problem_sizes"][number].tolist() == [5, 6, end - begin]
        torch.testing.assert_close(followed(tables, "A", number, not turned_x, xs), xs[:, begin:end])
        torch.testing.assert_close(followed(tables, "B", number, not turned_w, ws), ws[begin:end])
        assert int(tables["D"][number]) == out[number].data_ptr()
    stack, whole = torch.randn(4, 5, 12), torch.empty(5, 12)
    wide = torch.randn(12, 12).T if turned_w else torch.randn(12, 12)
    _, tables = described(stack, wide, ends, whole)
    for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        assert tables["problem_sizes"][number].tolist() == [5, end - begin, 12]
        torch.testing.assert_close(followed(tables, "A", number, True, stack), stack[number])
        torch.testing.assert_close(followed(tables, "B", number, not turned_w, wide), wide[:, begin:end])
        assert int(tables["D"][number]) == whole.data_ptr() + begin * 4


@pytest.mark.parametrize("ends", [[-5, 3, 2, 12], [3, 99, 4, 7], [2**31 - 1] * 4, [-(2**31)] * 4, [9, 1, 1, 99]])
def test_whatever_offs_holds_no_address_is_beside_the_tensors(ends: list[int]) -> None:
    offsets = Offsets([0] * 4)
    offsets.tensor, offsets.ends = torch.tensor(ends, dtype=torch.int32), None
    xs, ws, out = torch.randn(12, 8), torch.randn(4, 8, 5), torch.empty(12, 5)
    group = Group(xs, ws, offsets)
    made = DeviceGroup(kind_of_group(group, None, Wanted()), group, group.result(out, lambda n: n), None)
    addresses, strides = made.tables_and_strides()
    tables = addresses | strides
    lengths = tables["problem_sizes"][:, 0]
    assert (lengths >= 0).all()
    assert lengths.sum() <= 12
    for number in range(4):
        begin = int(lengths[:number].sum())
        torch.testing.assert_close(followed(tables, "A", number, True, xs), xs[begin : begin + int(lengths[number])])


@pytest.mark.parametrize("ends", [[3, 3, 10, 11], [0, 0, 0, 0], [12, 12, 12, 12], [9, 1, 1, 5], [-4, 99, 2, 3]])
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_behind_the_last_group_is_a_sum_of_nothing(turned: bool, ends: list[int]) -> None:
    last = min(max(0, *ends), 12)
    xs, ws, out = torch.randn(12, 8), torch.randn(4, 8, 5), torch.empty(5, 12).T if turned else torch.empty(12, 5)
    _, tables = described(xs, ws, ends, out, zeroes_rest=True)
    assert len({len(each) for each in tables.values() if each is not None}) == 1
    assert tables["problem_sizes"][4].tolist() == [12 - last, 5, 0]
    assert followed(tables, "D", 4, not turned, out).shape == (12 - last, 5)
    assert int(tables["D"][4]) == out.data_ptr() + last * out.stride(0) * 4
    assert int(tables["B"][4]) == ws.data_ptr()
    assert tables["problem_sizes"][:4].equal(described(xs, ws, ends, out)[1]["problem_sizes"])
    stack, wide, whole = torch.randn(4, 5, 8), torch.randn(8, 12), torch.empty(5, 12)
    _, tables = described(stack, wide, ends, whole, zeroes_rest=True)
    assert tables["problem_sizes"][4].tolist() == [5, 12 - last, 0]
    assert int(tables["D"][4]) == whole.data_ptr() + last * 4
    _, tables = described(torch.randn(5, 12), torch.randn(12, 6), ends, torch.empty(4, 5, 6), zeroes_rest=True)
    assert len(tables["problem_sizes"]) == 4  # K is divided, and what no group has is in no sum


class Counting(TorchDispatchMode):
    """Counts operators that launch kernels on a GPU."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(function).split(".")[1] not in ("slice", "select", "empty", "alias", "detach")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("zeroes_rest", [False, True])
def test_tables_take_few_kernels(zeroes_rest: bool) -> None:
    group = Group(X, W, unread(ENDS_OF_4))
    target = group.result(OUT, lambda n: n)
    made = DeviceGroup(kind_of_group(group, target, Wanted()), group, target, None, zeroes_rest=zeroes_rest)
    with Counting() as counting:
        made.tables_and_strides()
    assert counting.count == (12 if zeroes_rest else 10)


@pycutlass.epilogue_function
def shifted(accum: Any, shift: pycutlass.epilogue.Scalar) -> Any:
    return accum + shift


@pytest.mark.parametrize(
    ("epilogue", "scalars", "leaves"),
    [
        (None, {"alpha": -3.0, "beta": 0.0}, True),
        (None, {"alpha": float("inf")}, False),
        (None, {"alpha": 1.0, "beta": 1.0}, False),
        (pycutlass.relu, {"alpha": 2.0}, True),
        (pycutlass.sigmoid, {"alpha": 2.0}, False),
        (shifted, {"shift": 0.0}, True),
        (shifted, {"shift": 1.0}, False),
        (shifted, {"shift": float("nan")}, False),
    ],
)
def test_which_epilogues_leave_zeros(epilogue: Any, scalars: dict[str, float], leaves: bool) -> None:
    kind = kind_of_group(Group(X, W, unread(ENDS_OF_4)), None, Wanted(epilogue, precision="3xtf32"))
    assert leaves_zeros(kind.epilogue, scalars) is leaves


def test_there_are_no_more_tiles_than_are_told() -> None:
    for turned in (False, True):
        out = torch.empty(64, 300).T if turned else torch.empty(300, 64)
        xs, ws = torch.randn(300, 16), torch.randn(5, 16, 64)
        made, _ = described(xs, ws, [0] * 5, out)
        plan = GroupedGemm(xs, ws, offs=[60, 120, 180, 240, 300], out=out)
        for each in plan.candidates():
            most = made.most_tiles(each.candidate)
            for ends in ([1, 2, 3, 4, 300], [299, 300, 300, 300, 300], [65, 130, 195, 260, 300]):
                sizes = [(end - begin, 64, 16) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
                tile = each.candidate.operation.tile_description.threadblock_shape
                rows, columns = (tile[1], tile[0]) if turned else tile[:2]
                assert sum(-(-m // rows) * -(-n // columns) for m, n, _ in sizes) <= most


X, W, OUT = torch.randn(12, 8), torch.randn(4, 8, 5), torch.empty(12, 5)
ENDS_OF_4 = [3, 3, 10, 12]


def with_plan(out: Any = OUT, xs: Any = X, ws: Any = W, stream: Any = None, **further: Any) -> None:
    group = Group(xs, ws, unread(ENDS_OF_4), further.get("cs"), further.get("bias"))
    wanted = Wanted(further.get("epilogue"), precision=further.get("precision"))
    target = group.result(out, lambda n: n)
    DeviceGroup(kind_of_group(group, target, wanted), group, target, stream)


@pycutlass.epilogue_function
def scaled(accum: Any, row: pycutlass.epilogue.Row) -> Any:
    return accum * row


@pycutlass.epilogue_function
def summed(accum: Any) -> Any:
    return {"D": accum, "total": pycutlass.epilogue.sum(accum, axis=1)}


def without_torch() -> None:
    offsets = unread(ENDS_OF_4)
    offsets.tensor = object()
    group = Group(X, W, offsets)
    DeviceGroup(kind_of_group(group, None, Wanted()), group, group.result(OUT, lambda n: n), None)


def elsewhere() -> None:
    offsets = unread(ENDS_OF_4)
    offsets.device = 1
    group = Group(X, W, offsets)
    DeviceGroup(kind_of_group(group, None, Wanted()), group, group.result(OUT, lambda n: n), None)


MEMORY = torch.randn(200)
REFUSED: list[tuple[str, Any]] = [
    ("tensors of torch alone: pass offs=offs.tolist", without_torch),
    (r"torch\.cuda\.stream\(stream\)", lambda: with_plan(stream=3)),
    (
        r"makes total of many elements.*offs\.tolist",
        lambda: with_plan(epilogue=summed, precision="3xtf32"),
    ),
    (
        r"has tensors of its own.*rows of results.*offs\.tolist",
        lambda: with_plan(torch.empty(5, 12).T, epilogue=scaled, precision="3xtf32"),
    ),
    (r"ws is a list.*torch\.stack\(ws\), or offs=offs\.tolist", lambda: with_plan(ws=list(W))),
    ("offs is on GPU 1, and xs is on the host", elsewhere),
    ("^out overlaps xs .*, xs at ", lambda: with_plan(xs=MEMORY[:96].view(12, 8), out=MEMORY[90:150].view(12, 5))),
    ("^out overlaps cs ", lambda: with_plan(cs=MEMORY[:60].view(12, 5), out=MEMORY[5:65].view(12, 5))),
    ("^out overlaps bias ", lambda: with_plan(bias=MEMORY[:20].view(4, 5), out=MEMORY[15:75].view(12, 5))),
    (r"a bias beside cs.*add the bias to cs", lambda: with_plan(cs=torch.randn(12, 5), bias=torch.randn(5))),
    ("not equally far", lambda: with_plan(bias=[MEMORY[0:5], MEMORY[5:10], MEMORY[20:25], MEMORY[30:35]])),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message: str, call: Any) -> None:
    with pytest.raises(PyCutlassError, match=message):
        call()


def test_without_a_sum_there_is_nothing_to_point_at() -> None:
    group = Group(torch.empty(3, 0), torch.empty(0, 5), unread([0, 0, 0, 0]))
    made = DeviceGroup(kind_of_group(group, None, Wanted()), group, group.result(torch.empty(4, 3, 5), int), None)
    assert made.tables()["problem_sizes"].tolist() == [[3, 5, 0]] * 4


def test_what_is_added_may_be_where_results_go() -> None:
    with_plan(cs=OUT)
    with_plan(bias=torch.randn(5))
    with_plan(bias=list(torch.randn(4, 5)))


def test_a_bias_that_is_divided_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"bias is divided.*offs\.tolist"):
        Group(torch.randn(4, 5, 12), torch.randn(12, 12), unread(ENDS_OF_4), bias=torch.randn(12))


def test_elements_of_two_types_are_refused() -> None:
    with pytest.raises(ArgumentError, match="xs is float32 and ws is float16"):
        with_plan(ws=W.half())
    with pytest.raises(ArgumentTypeError, match=r"operand C must .*float32"):
        with_plan(cs=torch.empty(12, 5, dtype=torch.float16))


@pycutlass.epilogue_function
def several(
    accum: Any,
    row: pycutlass.epilogue.Row,
    column: pycutlass.epilogue.Column,
    whole: pycutlass.epilogue.Tensor,
    number: pycutlass.epilogue.PerBatch,
) -> Any:
    y = (accum * number + row) * column
    return {"D": y + whole, "inner": y}


def beside(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tensors of the epilogue, and the tables that are made for a group with them."""
    ports = {
        "row": torch.randn(4, 5),
        "column": torch.randn(12),
        "whole": torch.randn(12, 7)[:, :5],
        "number": torch.randn(4),
        "inner": torch.empty(12, 5),
        **changes,
    }
    group = Group(X, W, unread(ENDS_OF_4))
    target = group.result(OUT, lambda n: n)
    kind = kind_of_group(group, target, Wanted(several, precision="3xtf32"))
    made = DeviceGroup(kind, group, target, None, ports)
    tables, strides = made.tables_and_strides()
    return ports, made.epilogue_of(tables, strides)


@pytest.mark.parametrize("changes", [{}, {"column": torch.randn(12, 1)}], ids=["vector", "column of one"])
def test_tensors_of_the_epilogue_are_found(changes: dict[str, Any]) -> None:
    ports, tables = beside(**changes)
    assert list(tables["number"]) == list(ports["number"])
    assert tables["row"].tolist() == [ports["row"][number].data_ptr() for number in range(4)]
    assert tables["column"].tolist() == [ports["column"].data_ptr() + 4 * begin for begin in (0, 3, 3, 10)]
    for name, ld in (("whole", 7), ("inner", 5)):
        addresses, steps = tables[name]
        assert addresses.tolist() == [ports[name].data_ptr() + 4 * ld * begin for begin in (0, 3, 3, 10)]
        assert steps.tolist() == [ld] * 4


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"row, a row of the epilogue, must be one tensor of \(4, 5\), with one for each group; got", {"row": W[0, 0]}),
        (r"column, a column of the epilogue, must be one tensor of \(12,\), divided", {"column": list(OUT)}),
        (r"whole, a matrix of the epilogue, must be one tensor of \(12, 5\)", {"whole": torch.randn(4, 12, 5)}),
        (
            "inner overlaps whole|whole overlaps inner",
            {"whole": MEMORY[:60].view(12, 5), "inner": MEMORY[9:69].view(12, 5)},
        ),
        ("inner overlaps out|out overlaps inner", {"inner": OUT}),
    ],
)
def test_tensors_of_the_epilogue_that_do_not_fit(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(PyCutlassError, match=message):
        beside(**changes)


@pytest.mark.parametrize(("name", "given"), [
    ("row", torch.randn(5, 4).T), ("row", torch.randn(4, 10)[:, ::2]), ("column", torch.randn(24)[::2]),
    ("whole", torch.randn(5, 12).T),
])  # fmt: skip
def test_tensors_of_the_epilogue_are_copied_where_that_is_allowed(name: str, given: Any) -> None:
    ports, _ = beside()
    group = Group(X, W, unread(ENDS_OF_4))
    kind = kind_of_group(group, group.result(OUT, lambda n: n), Wanted(several, precision="3xtf32"))
    as_given = beside_group(kind, group, ports, allow_copy=True)
    assert all(as_given[each] is ports[each] for each in ports), "all of them can be taken"
    taken = beside_group(kind, group, {**ports, name: given}, allow_copy=True)
    assert torch.equal(taken[name], given)
    beside(**taken)
    with pytest.raises(PyCutlassError, match=rf"{name}.*With allow_copy=True it is copied\.$"):
        beside_group(kind, group, {**ports, name: given}, allow_copy=False)
