"""A fuzz of epilogue functions: random functions in random kernels on random problems, against NumPy in f64.

    python3 -m tools.fuzz_functions --seed 1 --minutes 5 --out results

Kernels are drawn as `tools.fuzz` draws them, with another epilogue. All that is multiplied are small integers, whose
sums are exact. Outputs are poisoned, and lie in memory with room between their lines that must stay as it is.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, TensorDescription, cutlass, device
from pycutlass.errors import DescriptionError
from pycutlass.types import ELEMENTS, element
from tools.fuzz import gemm_kernels
from tools.fuzz.drawn_functions import ACCUMULATOR, GRAIN, Drawn, drawn_function

KINDS = {"half": 8, "tf32": 3, "int8": 3, "f64": 2, "f32": 2, "hopper": 3}
COMPUTE = {"f32": 24, "f16": 11, "bf16": 8, "f64": 24}
TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "s8": torch.int8,
    "s32": torch.int32,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
TAGS = {row.short: row.tag for row in ELEMENTS}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: What memory holds before a launch, and what is between its lines.
POISON, SLACK = 99, 80


@dataclass
class Kernel:
    """A random function, and the operation that has it."""

    index: int
    kind: str
    drawn: Drawn
    operation: Any


def draw(seed: int, index: int) -> Kernel:
    """Return kernel `index` of `seed`."""
    chance = random.Random(f"functions:{seed}:{index}")
    (kind,) = chance.choices([*KINDS], [*KINDS.values()])
    while True:
        try:
            plain = getattr(gemm_kernels, kind)(chance)
            accumulator = plain.accumulator_type()
            wide = "f64" if accumulator.short == "f64" else chance.choice(["f32", "f32", "f32", "f16", "bf16"])
            drawn = drawn_function(chance.randrange(10**9), COMPUTE[wide])
            graph = drawn.function.graph
            names = [each.name for each in graph.of_form("matrix", "row", "column")]
            names += [name for name, _ in graph.outputs if name != "D"]
            reduced = dict(graph.reductions)
            kinds = ["f16", "bf16", "f32", "s8", "s32", "e4m3", "e5m2"]
            types = {name: TAGS[chance.choice(kinds)] for name in names}
            types |= dict.fromkeys(reduced, TAGS["f64" if wide == "f64" else "f32"])
            fields = {name: getattr(plain, name) for name in plain._FIELDS if name != "epilogue_functor"}
            written = plain.D
            if accumulator.short == "f32" and not plain.is_sm90 and chance.random() < 0.2:
                kind_of_D = TAGS[chance.choice(["e4m3", "e5m2"])]
                written = TensorDescription(kind_of_D, cutlass.RowMajor, 2 ** chance.randint(0, 4))
                fields |= {"C": written, "D": None}
            functor = drawn.function(written.element, written.alignment, accumulator.tag, TAGS[wide], **types)
            return Kernel(index, kind, drawn, GemmOperationUniversal(**fields, epilogue_functor=functor))
        except DescriptionError:
            continue


def padded(shape: tuple[int, ...], slack: int, kind: str, values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in memory with `slack` elements behind each line, and that memory; all of it holds `values`."""
    memory = torch.full((*shape[:-1], shape[-1] + slack), SLACK, dtype=TORCH[kind], device=DEVICE)
    inside = memory[..., : shape[-1]]
    inside.copy_(values if isinstance(values, torch.Tensor) else torch.as_tensor(values).expand(shape))
    return inside, memory


class Case:
    """One problem of a kernel: operands, what they are as arrays, and what must come out."""

    def __init__(self, kernel: Kernel, number: int, seed: int) -> None:
        self.kernel, self.operation = kernel, kernel.operation
        self.functor = self.operation.epilogue_functor
        self.chance = random.Random(f"functions:{seed}:{kernel.index}:{number}")
        self.numbers = np.random.default_rng(self.chance.randrange(2**32))
        operation, tile = self.operation, self.operation.tile_description.threadblock_shape
        steps = [
            max(each.alignment for each in pair)
            for pair in (
                (operation.A, operation.C),
                (operation.B, operation.D, operation.C),
                (operation.A, operation.B),
            )
        ]
        most = (2 * tile[0] + 40, 2 * tile[1] + 40, 160)
        self.size = tuple(
            -(-self.chance.randint(1, each) // step) * step for each, step in zip(most, steps, strict=True)
        )
        self.batch = self.chance.choice([1, 1, 2, 3])
        in_arrays = not (operation.is_sm90 or operation.is_stream_k)
        self.listed = in_arrays and self.batch > 1 and self.chance.random() < 0.4

    def shape(self, *extents: int) -> tuple[int, ...]:
        return extents if self.batch == 1 else (self.batch, *extents)

    def integers(self, kind: str, *shape: int, most: int = 8, grain: float = GRAIN) -> np.ndarray[Any, Any]:
        if kind in ("s8", "s32"):
            most, grain = 2, 1.0
        return self.numbers.integers(-most, most + 1, shape) * grain

    def operand(self, name: str, rows: int, columns: int) -> tuple[Any, Any]:
        described = getattr(self.operation, name)
        array = self.numbers.integers(-1, 2, self.shape(rows, columns)).astype(np.float64)
        slack = described.alignment * self.chance.randint(0, 2)
        if described.is_row_major:
            return padded(array.shape, slack, described.type.short, torch.from_numpy(array))[0], array
        turned = np.ascontiguousarray(array.swapaxes(-1, -2))
        made = padded(turned.shape, slack, described.type.short, torch.from_numpy(turned))[0]
        return made.transpose(-1, -2), array

    def run(self) -> str:
        """Launch, and return what is wrong; nothing where all is right."""
        (m, n, k), functor, operation = self.size, self.functor, self.operation
        (A, a), (B, b) = self.operand("A", m, k), self.operand("B", k, n)
        given: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        for port in functor.inputs:
            extents = {"matrix": (m, n), "row": (n,), "column": (m,)}[port.form]
            shared = self.chance.random() < 0.3
            shape = extents if shared else self.shape(*extents)
            arrays[port.name] = self.integers(port.type.short, *shape)
            slack = port.alignment * self.chance.randint(0, 2) if port.form == "matrix" else 0
            values = torch.from_numpy(arrays[port.name])
            if port.form == "matrix":
                given[port.name] = padded(shape, slack, port.type.short, values)[0]
            else:  # vectors may begin anywhere
                line, first = values.reshape(-1), self.chance.randint(0, 3)
                memory = torch.full((first + len(line),), SLACK, dtype=TORCH[port.type.short], device=DEVICE)
                memory[first:] = line
                given[port.name] = memory[first:].view(shape)
            axis = {"row": -2, "column": -1}.get(port.form)
            if axis is not None:
                arrays[port.name] = np.expand_dims(arrays[port.name], axis)
        C = source = None
        if functor.reads_source:
            source = self.integers(operation.C.type.short, *self.shape(m, n))
            C = padded(source.shape, operation.C.alignment, operation.C.type.short, torch.from_numpy(source))[0]
        written = {}
        forms = {port.name: port.form for port in functor.outputs}
        for name, kind, step in (
            ("D", functor.output, operation.D.alignment),
            *((port.name, port.type, port.alignment) for port in functor.outputs),
        ):
            extents = {"row": (n,), "column": (m,), "scalar": (1,)}.get(forms.get(name, ""), (m, n))
            slack = step * self.chance.randint(0, 2) if len(extents) == 2 else 0
            poison = POISON if kind.is_integer else float("nan")
            written[name] = padded(self.shape(*extents), slack, kind.short, poison)
            given[name] = written[name][0]
        D = given.pop("D")
        scalars = dict.fromkeys(functor.scalar_names, 0.5)
        options: dict[str, Any] = {"epilogue": given} if given else {}
        if self.batch > 1:
            options |= {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": self.batch}
        if self.listed:
            options["gemm_mode"] = cutlass.gemm.Mode.Array
            A, B, C, D = self.apart(A, 3), self.apart(B, 3), self.apart(C, 3), self.apart(D, 3)
            forms = {port.name: port.form for port in functor.ports}
            options["epilogue"] = {
                name: self.apart(each, 3 if forms[name] == "matrix" else 2) for name, each in given.items()
            }
        arguments = GemmArguments(
            operation, (m, n, k), A, B, C, D, output_op=operation.epilogue_type(**scalars), **options
        )
        operation.run(arguments)
        arguments.sync()
        exact = functor.evaluate(a @ b, source, scalars, arrays, np.dtype(np.float64))
        counts = {"row": m, "column": n, "scalar": m * n}
        for name, (inside, memory) in written.items():
            error = self.kernel.drawn.errors.get(name, 0.0)
            if name in self.kernel.drawn.reductions:
                error = self.kernel.drawn.reductions[name].tolerance(counts[forms[name]])
                exact[name] = exact[name].reshape(inside.shape)
            if wrong := self.compare(name, inside, memory, exact[name], 1.5 * error):
                return f"{name}: {wrong}"
        return ""

    def apart(self, tensor: Any, dimensions: int) -> list[Any] | None:
        """Return the tensors of all problems; one that they share stands for each."""
        if tensor is None:
            return None
        return list(tensor) if tensor.ndim == dimensions else [tensor] * self.batch

    def compare(self, name: str, inside: Any, memory: Any, exact: Any, error: float) -> str:
        kind = element({port.name: port.tag for port in self.functor.ports}.get(name, self.functor.element_output))
        if memory.shape[-1] > inside.shape[-1] and not (memory[..., inside.shape[-1] :].float() == SLACK).all():
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


def compiled(kernels: list[Kernel], dry: bool) -> Iterator[tuple[Kernel, Any]]:
    """Yield kernels as they get done, and what was made of each; `dry` ones at once."""
    if dry:
        yield from ((kernel, None) for kernel in kernels)
        return
    for done in pycutlass.compiler.compile_many([each.operation for each in kernels]):
        yield kernels[done.position], done.result


def main() -> None:
    """Run until time is up, print what is wrong, and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--case", help="seed:kernel:problem, to run one again")
    parser.add_argument("--dry", action="store_true", help="without a GPU: the host's reference is what is run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    assert ACCUMULATOR >= 160, "K is at most 160 here"
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
    deadline = time.monotonic() + 60 * options.minutes
    tally: collections.Counter[str] = collections.Counter()
    nodes: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
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
    report = {"seed": options.seed, "tally": dict(tally), "nodes": dict(nodes), "failures": failures}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"fuzz-functions-{options.seed}.json").write_text(json.dumps(report, indent=1))
    print(*failures[:40], sep="\n")
    print(dict(tally), dict(nodes))
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
