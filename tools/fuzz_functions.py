"""A fuzz of epilogue functions: random functions in random kernels on random problems, against NumPy in f64.

    python3 -m tools.fuzz_functions --seed 1 --minutes 5 --out results

Compiling takes most of the time, which a machine without a GPU can do before:

    python3 -m tools.fuzz_functions --seed 1 --kernels 1000 --build kernels.zip
    python3 -m tools.fuzz_functions --seed 1 --kernels 1000 --bundle kernels.zip --out results

Kernels are drawn as `tools.fuzz` draws them, with another epilogue. All that is multiplied are small integers, whose
sums are exact. Outputs are poisoned, and lie in memory with room between their lines that must stay as it is.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pycutlass
from benchmarks import common
from pycutlass import (
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    ReductionArguments,
    ReductionOperation,
    cutlass,
    device,
)
from pycutlass.types import element
from tools.fuzz import bundles
from tools.fuzz.drawn_functions import ACCUMULATOR, GRAIN
from tools.fuzz.function_kernels import COLUMN, Kernel, draw
from tools.gpu_function_fuzz import made_report

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "s8": torch.int8,
    "u8": torch.uint8,
    "s32": torch.int32,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: What memory holds before a launch, and what is between its lines.
POISON, SLACK = 99, 80


def padded(
    shape: tuple[int, ...], slack: int, kind: str, values: Any, layout: Any = cutlass.RowMajor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in memory with `slack` elements behind each line, and that memory; all of it holds `values`."""
    if layout is COLUMN:
        turned = values.transpose(-1, -2) if isinstance(values, torch.Tensor) else values
        inside, memory = padded((*shape[:-2], shape[-1], shape[-2]), slack, kind, turned)
        return inside.transpose(-1, -2), memory
    memory = torch.full((*shape[:-1], shape[-1] + slack), SLACK, dtype=TORCH[kind], device=DEVICE)
    inside = memory[..., : shape[-1]]
    inside.copy_(values if isinstance(values, torch.Tensor) else torch.as_tensor(values).expand(shape))
    return inside, memory


class Problem:
    """Operands of one problem, or of a batch: tensors, what they are as arrays, and what must come out."""

    def __init__(self, case: Case, size: tuple[int, int, int], batch: int = 1) -> None:
        self.size, self.batch = size, batch
        self.chance, self.numbers, self.operation = case.chance, case.numbers, case.operation
        self.functor, self.drawn = self.operation.epilogue_functor, case.kernel.drawn
        m, n, k = size
        self.products = np.zeros(self.shape(m, n))
        if isinstance(self.operation, ReductionOperation):
            self.sums = self.partial_sums(case)
        else:
            (self.A, a), (self.B, b) = self.operand("A", m, k), self.operand("B", k, n)
            self.products = a @ b
        D = getattr(self.operation, "D", self.operation.C)
        self.layouts = {"D": D.layout} | {port.name: port.beside(D).layout for port in self.functor.ports}
        self.arrays: dict[str, Any] = {}
        self.given = {port.name: self.read(port) for port in self.functor.inputs}
        self.C = self.source = None
        if self.functor.reads_source:
            C = self.operation.C
            self.source = self.integers(C.type.short, *self.shape(m, n))
            values = torch.from_numpy(self.source)
            self.C = padded(self.source.shape, C.alignment, C.type.short, values, C.layout)[0]
        self.written = {}
        self.forms = {port.name: port.form for port in self.functor.outputs}
        selected = {port.name: port.selected for port in self.functor.outputs}
        for name, kind, step in (
            ("D", self.functor.output, D.alignment),
            *((port.name, port.type, port.alignment) for port in self.functor.outputs),
        ):
            across = self.functor.columns(n) if name == "D" else self.columns(name, n)
            extents = {"row": (across,), "column": (m,), "scalar": (1,)}.get(self.forms.get(name, ""), (m, across))
            extents = (m, selected[name]) if selected.get(name) else extents
            slack = step * self.chance.randint(0, 2) if len(extents) == 2 else 0
            poison = POISON if kind.is_integer else float("nan")
            self.written[name] = padded(self.shape(*extents), slack, kind.short, poison, self.layouts[name])
            self.given[name] = self.written[name][0]
        self.D = self.given.pop("D")

    def columns(self, name: str, n: int) -> int:
        """Return how many columns a tensor of the function stands for, of a product with `n`."""
        return next(int(port.columns(n)) for port in self.functor.ports if port.name == name)

    def partial_sums(self, case: Case) -> Any:
        """Return random partial sums, as many as K; without a GPU those that a GEMM makes on the host."""
        m, n, k = self.size
        if DEVICE == "cuda":
            most = int(ACCUMULATOR) // k
            partial = self.numbers.integers(-most, most + 1, (k, m, n)).astype(np.float64)
            self.products = partial.sum(axis=0)
            return torch.from_numpy(partial).to(DEVICE, TORCH[self.functor.accumulator.short])
        alone = self.operation = case.kernel.alone
        # Enough for each slice, and a multiple of every alignment; Hopper-native kernels divide it evenly.
        depth = 16 * k if alone.is_sm90 else 160
        (A, a), (B, b) = self.operand("A", m, depth), self.operand("B", depth, n)
        self.operation, self.products = case.operation, a @ b
        mode = cutlass.gemm.Mode.GemmSplitKParallel
        self.maker = GemmArguments(alone, (m, n, depth), A, B, gemm_mode=mode, split_k_slices=k)
        alone.run(self.maker)
        return self.maker.ptr_D

    def shape(self, *extents: int) -> tuple[int, ...]:
        return extents if self.batch == 1 else (self.batch, *extents)

    def integers(self, kind: str, *shape: int, most: int = 8, grain: float = GRAIN) -> np.ndarray[Any, Any]:
        if kind in ("s8", "s32", "u8"):
            most, grain = 2, 1.0
        least = 0 if kind == "u8" else -most
        return self.numbers.integers(least, most + 1, shape) * grain

    def operand(self, name: str, rows: int, columns: int) -> tuple[Any, Any]:
        described = getattr(self.operation, name)
        least = 0 if described.type.short == "u8" else -1
        array = self.numbers.integers(least, 2, self.shape(rows, columns)).astype(np.float64)
        slack = described.alignment * self.chance.randint(0, 2)
        if described.is_row_major:
            return padded(array.shape, slack, described.type.short, torch.from_numpy(array))[0], array
        turned = np.ascontiguousarray(array.swapaxes(-1, -2))
        made = padded(turned.shape, slack, described.type.short, torch.from_numpy(turned))[0]
        return made.transpose(-1, -2), array

    def read(self, port: Any) -> Any:
        """Return a tensor that the function reads."""
        m, n, _ = self.size
        n = port.columns(n)
        extents = {"matrix": (m, n), "row": (n,), "column": (m,), "number": (1,)}[port.form]
        shape = extents if self.chance.random() < 0.3 else self.shape(*extents)
        array = self.integers(port.type.short, *shape)
        axis = {"row": -2, "column": -1, "number": -1}.get(port.form)
        self.arrays[port.name] = array if axis is None else np.expand_dims(array, axis)
        values = torch.from_numpy(array)
        if port.form == "matrix":
            slack = port.alignment * self.chance.randint(0, 2)
            return padded(shape, slack, port.type.short, values, self.layouts[port.name])[0]
        line, first = values.reshape(-1), self.chance.randint(0, 3)  # vectors may begin anywhere
        memory = torch.full((first + len(line),), SLACK, dtype=TORCH[port.type.short], device=DEVICE)
        memory[first:] = line
        return memory[first:].view(shape)

    def wrong(self, scalars: dict[str, float]) -> str:
        """Return what is wrong; nothing where all is right."""
        m, n, _ = self.size
        if not m or not n:
            return ""
        exact = self.functor.evaluate(self.products, self.source, scalars, self.arrays, np.dtype(np.float64))
        across = self.functor.columns(n)
        counts = {"row": m, "column": across, "scalar": m * across}
        for name, (inside, memory) in self.written.items():
            error = self.drawn.errors.get(name, 0.0)
            if name in self.drawn.reductions:
                error = self.drawn.reductions[name].tolerance(counts[self.forms[name]])
                exact[name] = exact[name].reshape(inside.shape)
            if wrong := self.compare(name, inside, memory, exact[name], 1.5 * error):
                return f"{name}: {wrong}"
        return ""

    def compare(self, name: str, inside: Any, memory: Any, exact: Any, error: float) -> str:
        kind = element({port.name: port.tag for port in self.functor.ports}.get(name, self.functor.element_output))
        line = inside.shape[-2 if self.layouts[name] is COLUMN else -1]
        if memory.shape[-1] > line and not (memory[..., line:].float() == SLACK).all():
            return "memory between the lines was written"
        found = inside.double().cpu().numpy()
        rounded = kind.round(exact).astype(np.float64)
        if error == 0:
            wrong = ~(found == rounded)
        elif kind.is_integer:
            wrong = ~(np.abs(found - np.clip(exact, *kind.limits)) <= error + 0.5 + 1e-9)
        else:
            exact = np.clip(exact, *kind.limits) if kind.is_float8 else exact
            least = {"e4m3": 2.0**-10, "e5m2": 2.0**-17}.get(kind.short, 1e-7)  # half a step of the smallest
            wrong = ~(np.abs(found - exact) <= error + np.abs(exact) * kind.epsilon + least)
        if not wrong.any():
            return ""
        first = tuple(int(each[0]) for each in np.nonzero(wrong))
        return f"{wrong.sum()} of {wrong.size} wrong, first at {first}: {found[first]} and not {exact[first]}"


class Case:
    """One call of a kernel: a problem, a batch, a group, or partial sums."""

    def __init__(self, kernel: Kernel, number: int, seed: int) -> None:
        self.kernel, self.operation = kernel, kernel.operation
        self.chance = random.Random(f"functions:{seed}:{kernel.index}:{number}")
        self.numbers = np.random.default_rng(self.chance.randrange(2**32))
        self.scalars = dict.fromkeys(self.operation.epilogue_functor.scalar_names, 0.5)
        self.size: Any = self.drawn_size()
        self.batch = 1

    def drawn_size(self) -> tuple[int, int, int]:
        """Return M, N and K; K is how many partial sums there are of a reduction."""
        operation = self.kernel.alone
        D = getattr(operation, "D", operation.C)
        pairs = ((operation.A, operation.C, D), (operation.B, operation.C, D), (operation.A, operation.B))
        steps = [max(each.alignment for each in pair) for pair in pairs]
        if operation.epilogue_functor.columns(2) == 1:  # of D with half as many columns
            steps[1] *= 2
        tile = operation.tile_description.threadblock_shape
        most = (2 * tile[0] + 40, 2 * tile[1] + 40, 160)
        if isinstance(self.operation, ReductionOperation):
            rows, columns = self.operation.shape
            most, steps[2] = (20 * rows + 40, 2 * columns + 40, 9), 1
        least = 1
        if selected := max((port.selected for port in operation.epilogue_functor.outputs), default=0):
            # Rows fit a tile, and have at least as many elements as are selected.
            most = most[0], tile[1], most[2]
            least = selected if operation.epilogue_functor.columns(2) == 2 else 2 * selected
        draws = zip((1, least, 1), most, steps, strict=True)
        m, n, k = (-(-self.chance.randint(low, high) // step) * step for low, high, step in draws)
        return m, n, k

    def run(self) -> str:
        """Launch, and return what is wrong; nothing where all is right."""
        if isinstance(self.operation, ReductionOperation):
            return self.run_sums()
        return self.run_group() if isinstance(self.operation, GemmOperationGrouped) else self.run_gemm()

    def run_gemm(self) -> str:
        operation = self.operation
        self.batch = batch = self.chance.choice([1, 1, 2, 3])
        in_arrays = not (operation.is_sm90 or operation.is_stream_k)
        made = Problem(self, self.size, batch)
        operands: list[Any] = [made.A, made.B, made.C, made.D]
        options: dict[str, Any] = {"epilogue": made.given} if made.given else {}
        if batch > 1:
            options |= {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": batch}
        elif not operation.is_sm90 and self.chance.random() < 0.4:
            parts = -(-self.size[2] // operation.family.slice_step(operation.A, operation.B))
            options |= {"split_k_slices": self.chance.randint(1, min(parts, 9))}
        if in_arrays and batch > 1 and self.chance.random() < 0.4:
            forms = {port.name: port.form for port in operation.epilogue_functor.ports}
            dimensions = {name: 3 if form in ("matrix", "top_k") else 2 for name, form in forms.items()}
            operands = [self.apart(each, 3) for each in operands]
            ports = {name: self.apart(each, dimensions[name]) for name, each in made.given.items()}
            options |= {"gemm_mode": cutlass.gemm.Mode.Array, "epilogue": ports}
        scalars = operation.epilogue_type(**self.scalars)
        self.launched(GemmArguments(operation, self.size, *operands, output_op=scalars, **options))
        return made.wrong(self.scalars)

    def run_group(self) -> str:
        """Launch problems of many sizes, some of them empty, or sums of nothing."""
        operation = self.operation
        count = self.chance.choice([1, 2, 5, 20])
        sizes = [self.drawn_size() for _ in range(count)]
        reduces = any(port.form != "matrix" for port in operation.epilogue_functor.outputs)
        for number, (m, n, k) in enumerate(sizes):
            kept = m if reduces or self.chance.random() < 0.9 else 0
            sizes[number] = kept, n, k if self.chance.random() < 0.9 else 0
        self.size = sizes
        problems = [Problem(self, size) for size in sizes]
        lists = ([getattr(each, name) for each in problems] for name in "ABCD")
        A, B, C, D = lists
        ports = {name: [each.given[name] for each in problems] for name in problems[0].given}
        scalars = operation.epilogue_type(**self.scalars)
        C_or_none = C if operation.epilogue_functor.reads_source else None
        options: dict[str, Any] = {"epilogue": ports} if ports else {}
        self.launched(GemmGroupedArguments(operation, sizes, A, B, C_or_none, D, output_op=scalars, **options))
        wrong = ((number, each.wrong(self.scalars)) for number, each in enumerate(problems))
        return next((f"problem {number}: {said}" for number, said in wrong if said), "")

    def run_sums(self) -> str:
        operation, (m, n, partitions) = self.operation, self.size
        made = Problem(self, self.size)
        scalars = operation.epilogue_type(**self.scalars)
        options: dict[str, Any] = {"epilogue": made.given} if made.given else {}
        self.launched(
            ReductionArguments(operation, (m, n), partitions, made.sums, made.D, made.C, output_op=scalars, **options)
        )
        return made.wrong(self.scalars)

    def launched(self, arguments: Any) -> None:
        self.operation.run(arguments)
        arguments.sync()

    def apart(self, tensor: Any, dimensions: int) -> list[Any] | None:
        """Return the tensors of all problems; one that they share stands for each."""
        if tensor is None:
            return None
        return list(tensor) if tensor.ndim == dimensions else [tensor] * self.batch


def compiled(kernels: list[Kernel], dry: bool) -> Iterator[tuple[Kernel, Any]]:
    """Yield kernels as they get done, and what was made of each; `dry` ones at once."""
    if dry:
        yield from ((kernel, None) for kernel in kernels)
        return
    for native in (True, False):  # apart, as bundles are built: beside a reduction GEMMs have kernels of partial sums
        chosen = [each for each in kernels if each.operation.is_sm90 is native]
        for done in pycutlass.compiler.compile_many([each.operation for each in chosen]):
            yield chosen[done.position], done.result


def main() -> None:
    """Run until time is up, print what is wrong, and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--case", help="seed:kernel:problem, to run one again")
    parser.add_argument("--dry", action="store_true", help="without a GPU: the host's reference is what is run")
    parser.add_argument("--build", type=Path, metavar="FILE", help="only compile, and write the kernels to a bundle")
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="take kernels from a bundle, and compile none")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    assert ACCUMULATOR >= 160, "K is at most 160 here"
    if options.build:
        drawn = (draw(options.seed, index).operation for index in range(options.kernels))
        raise SystemExit("\n".join(bundles.build([*drawn], options.build)) or 0)
    if options.bundle:
        bundles.take(options.bundle)
    if not options.dry:
        device.require()
    if options.case:
        seed, index, number = map(int, options.case.split(":"))
        kernel = draw(seed, index)
        pycutlass.compiler.add_module([kernel.operation])
        print(
            kernel.operation.emit(), kernel.drawn.function.graph, Case(kernel, number, seed).run() or "right", sep="\n"
        )
        return
    begun = time.monotonic()
    deadline = begun + 60 * options.minutes
    tally: collections.Counter[str] = collections.Counter()
    nodes: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    functions: list[str] = []
    index = 0
    while time.monotonic() < deadline and index < options.kernels:
        few = [
            draw(options.seed, index + each) for each in range(min(4 * (os.cpu_count() or 1), options.kernels - index))
        ]
        index += len(few)
        for kernel, result in compiled(few, options.dry):
            if time.monotonic() > deadline:
                break
            tally["kernels"] += 1
            tally[kernel.kind] += 1
            tally[type(kernel.operation).__name__] += 1
            nodes.update(value.node for value in kernel.drawn.function.graph.values)
            if isinstance(result, Exception):
                failures.append(f"{options.seed}:{kernel.index}: not built: {str(result)[:2000]}")
                tally["not built"] += 1
                continue
            for number in range(options.problems):
                case = Case(kernel, number, options.seed)
                try:
                    wrong = case.run()
                except Exception as error:
                    wrong = f"{type(error).__name__}: {error}"
                tally["cases"] += 1
                if wrong:
                    tally["wrong"] += 1
                    failures.append(f"{options.seed}:{kernel.index}:{number}: {case.size} x {case.batch}: {wrong}")
            functions.append(hashlib.sha256(repr(kernel.drawn.function.graph).encode()).hexdigest()[:12])  # it ran
    if options.out:
        report = made_report(options.seed, time.monotonic() - begun, tally, nodes, functions, failures)
        common.write_json(options.out / f"fuzz-functions-{options.seed}.json", report)
    print(*failures[:40], sep="\n")
    print(dict(tally), dict(nodes))
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
