"""Launches of plans of groups on a stand-in for the driver: other tensors, sizes and streams are really taken."""

from __future__ import annotations

import fake_gpu
from prepared_arguments import TORCH

_PLAN = """
from pycutlass.plan import GemmKind, GroupCandidate

operation = group("device")
math = operation.tile_description.math_instruction
kind = GemmKind(operation.A, operation.B, operation.C, operation.C, math.element_a, math.element_b,
                math.element_accumulator, math.math_operation, operation.epilogue_functor)

def plan_of():
    plan = pycutlass.GroupedGemm([pycutlass.TensorSpec((5, 7), "float32")],
                                 [pycutlass.TensorSpec((7, 6), "float32", (1, 7))])
    plan.kind = kind
    plan._choices._kind = kind
    plan._choices.of = lambda sizes, axis, on_device: GroupCandidate(operation)
    return plan

def drawn(*sizes):
    xs = [np.random.randint(-4, 5, (m, k)).astype(np.float32) for m, _, k in sizes]
    ws = [np.random.randint(-4, 5, (n, k)).astype(np.float32).T for _, n, k in sizes]
    return xs, ws

def launches():
    return [line for line in log() if line.startswith("cuLaunchKernel")]

def check(got, xs, ws):
    assert all(np.array_equal(d, x @ w) for d, x, w in zip(got, xs, ws)), got

plan = plan_of()
"""


def test_new_tensors_and_sizes_are_exchanged_and_go_to_their_stream() -> None:
    program = f"""{_PLAN}
stream = Stream(0)
for number, sizes in enumerate([[(5, 6, 7)], [(5, 6, 7)], [(3, 2, 4), (0, 3, 3), (8, 1, 1)], [(1, 1, 9)] * 5]):
    xs, ws = drawn(*sizes)
    log()
    got = plan.run(xs, ws, stream=stream.ptr if number % 2 else None)
    assert len(launches()) == 1
    check(got, xs, ws)
assert len(plan._runs._local.launches) == 1
in_a_thread(lambda: check(plan.run(xs, ws), xs, ws))
stream.destroy()
"""
    fake_gpu.run(program)


def test_rows_that_are_divided_take_one_launch() -> None:
    program = f"""{_PLAN}
xs = np.random.randint(-4, 5, (9, 7)).astype(np.float32)
ws = np.random.randint(-4, 5, (3, 6, 7)).astype(np.float32).swapaxes(1, 2)
for offs in ([2, 2, 9], [0, 0, 0], [4, 5, 6]):
    out = np.full((9, 6), 77, np.float32)
    log()
    assert plan.run_once(xs, ws, out=out, offs=offs) is out
    assert len(launches()) == (1 if offs[-1] else 0)
    begin = 0
    for number, end in enumerate(offs):
        assert np.array_equal(out[begin:end], xs[begin:end] @ ws[number])
        begin = end
    assert np.all(out[begin:] == 77)
assert not hasattr(plan._runs._local, "launches") or not plan._runs._local.launches
"""
    fake_gpu.run(program)


def test_what_is_refused_launches_nothing() -> None:
    program = f"""{_PLAN}
xs, ws = drawn((5, 6, 7), (2, 3, 4))
plan.run(xs, ws)
log()
refused(lambda: plan.run([x.astype(np.float16) for x in xs], ws), "float16")
refused(lambda: plan.run(xs, [np.ascontiguousarray(w) for w in ws]), "columns")
refused(lambda: plan.run(xs, ws[:1]), "2 problems")
refused(lambda: plan.run(xs, ws, out=[np.zeros((5, 6), np.float32)]), "out")
assert not launches()
check(plan.run(xs, ws), xs, ws)
"""
    fake_gpu.run(program)


def test_what_a_graph_has_captured_is_kept_as_long_as_the_plan() -> None:
    program = f"""{_PLAN}
def on_gpu(*sizes):
    xs, ws = drawn(*sizes)
    return [Array(0, x) for x in xs], [Array(0, w) for w in ws], [Array(0, np.zeros((m, n), np.float32))
                                                                  for m, n, _ in sizes]

stream = Stream(0)
first, second = on_gpu((5, 1, 7), (3, 1, 4)), on_gpu((2, 1, 9))
plan.run(*first[:2], out=first[2], stream=stream.ptr)
with captured(stream) as graph:
    plan.run(*first[:2], out=first[2], stream=stream.ptr)
assert len(plan._runs._captured) == 1
plan.reset_operands()
plan.run(*second[:2], out=second[2], stream=stream.ptr)
for each in first[2]:
    each.set(np.full(each.now().shape, 77, np.float32))
graph.replay()
pycutlass._core.Stream(0, stream.ptr).synchronize()
for xs, ws, out in (first, second):
    check([each.now() for each in out], [each.now() for each in xs], [each.now() for each in ws])
plan = None
stream.destroy()
"""
    fake_gpu.run(program)


_DIVIDED = f"""{TORCH}
import weakref
from fake_gpu.inside import log
{_PLAN}
from pycutlass.plan.device_groups import DeviceGroup

capturing, tables, make_tables = False, [], DeviceGroup._tables

def lent(tensor):
    driver.fake_lend(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes(), 0)
    return tensor

def kept_tables(group, wanted):
    # memory of the host, which is free at once when it goes, and not behind the launch
    made = make_tables(group, wanted)
    tables.extend(map(lent, (made[0], *made[1])))
    return made

DeviceGroup._tables = kept_tables
DeviceGroup.is_captured = property(lambda group: capturing)
plan._device = 0
plan._compiled = lambda sizes, group: GroupCandidate(operation)

def new(shape, dtype, **where):
    return lent(torch.full(shape, 77, dtype=dtype))

torch.empty = new
xs, ws = lent(torch.randint(-4, 5, (12, 7)).float()), lent(torch.randint(-4, 5, (3, 6, 7)).float()).mT

def check(got, ends):
    driver.fake_run()
    begin = 0
    for number, end in enumerate(ends):
        end = max(begin, min(end, 12))
        assert torch.equal(got[begin:end], xs[begin:end] @ ws[number]), (got, ends)
        begin = end
    return got[begin:]

ENDS = [[2, 2, 9], [0, 0, 0], [12, 12, 12], [4, 5, 6], [9, 3, 99], [-5, 7, 2]]
"""


def test_what_is_behind_the_last_group_on_the_device_is_zero_in_new_results() -> None:
    program = f"""{_DIVIDED}
for run in (plan.run, plan.run_once):
    for ends in ENDS:
        for dtype in (torch.int32, torch.int64):
            offs = torch.tensor(ends, dtype=dtype)
            log()
            rest = check(run(xs, ws, offs=offs), ends)
            assert len(launches()) == 1
            assert (rest == 0).all(), rest
            out = new((12, 6), torch.float32)
            assert run(xs, ws, out=out, offs=offs) is out
            assert (check(out, ends) == 77).all()
"""
    fake_gpu.run(program)


def test_under_capture_a_group_of_the_device_leaves_nothing_behind() -> None:
    """What `torch.compile` checks: all that is alive in a graph's memory is what the model returns."""
    program = f"""{_DIVIDED}
def look(run):
    offs = torch.tensor(ENDS[0])
    x, w = lent(xs.clone()), lent(ws.clone())
    got = run(x, w, offs=offs)
    driver.fake_run()
    alive = [weakref.ref(each) for each in (x, w, got, offs)]
    del x, w, got, offs
    return sum(each() is not None for each in alive)

assert look(plan.run_once) == 0
assert look(plan.run) > 0, "outside of a capture a plan keeps the last"
assert len(plan._runs._kept) == 1
capturing = True
for run in (plan.run, plan.run_once):
    assert look(run) == 0
assert not plan._runs._captured and len(plan._runs._kept) == 1
"""
    fake_gpu.run(program)
