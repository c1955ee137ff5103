"""How near the default pick comes to the best kernel, on problems that were drawn before anything was fitted.

For each problem of pick_shapes.py all candidates that are predicted to take at most 1.5 times as long as the best are
checked and measured, each call alone with a cold L2 cache. What was measured is kept by types and layouts in
docs/gpu-results/pick/, where `tools/fit_model.py` reads it: parts may be measured on different days, and the report is
about all of them.

    python3 -m benchmarks.pick --only bf16-tnt,e4m3-tnt
    python3 -m benchmarks.pick --report

Candidates of one part are some hundred kernels. They can be made on a machine without a GPU:

    python3 -m benchmarks.pick --only bf16-tnt --build kernels.zip
    python3 -m benchmarks.pick --only bf16-tnt --bundle kernels.zip

Where new candidates are near the best of some problems alone, these are measured again, and the others are kept:

    python3 -m benchmarks.pick --only f16-tnt --problems "f16 tnt 560x720x50560,f16 tnt 1000x1280x5120"
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, environment, options, without_places, write_json
from benchmarks.pick_cases import MORE, PARTS, build, chosen, compiled, considered, kernels, sampled
from benchmarks.pick_report import report
from pycutlass import device
from pycutlass.cache import KernelCache

__all__ = ["KEPT", "main"]

#: Where times are kept, a file for each part.
KEPT = ROOT / "docs" / "gpu-results" / "pick"
#: What is kept of each problem that was measured after its part.
_TELLS = ("date", "commit", "GPU")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the parts that are asked for and report on all."""
    parser = options(__doc__, list(PARTS))
    parser.add_argument("--build", type=Path, metavar="FILE", help="only compile, and write the kernels to a bundle")
    parser.add_argument("--bundle", type=Path, nargs="*", default=[], metavar="FILE", help="take kernels from bundles")
    parser.add_argument("--problems", type=_names, default=(), metavar="NAMES", help="which, separated by commas")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FOLDER", help="where times are kept (%(default)s)")
    given = parser.parse_args(argv)
    if given.build:
        return 1 if any(map(print, build(given.only, given.build, given.problems))) else 0
    if not given.report:
        _measure(given.only, given.bundle, given.kept, given.problems, given.quick)
    return report(given.kept, given.out, quick=given.quick)


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(","))


def _measure(
    parts: Iterable[str], bundles: Sequence[Path], kept: Path, problems: Sequence[str] = (), quick: bool = False
) -> None:
    """Measure all problems of some parts, or those that are named, and write a file for each."""
    import torch

    from benchmarks.pick_contest import Contest

    torch.backends.cuda.matmul.allow_tf32 = True  # the problems of float32 are those of tf32
    started = time.monotonic()
    here, gpu = environment(), device.describe(device.current())
    for bundle in bundles:
        KernelCache().import_(bundle)
    if bundles:  # what other compilers made is found where there are none
        os.environ["PATH"] = ""
        os.environ.pop("CXX", None)
    for part in parts:
        shapes, more = (chosen(each, problems)[:: 8 if quick else 1] for each in (PARTS[part], MORE[part]))
        made = kernels([*shapes, *more], gpu)
        failed = compiled(made, is_known=bool(bundles))
        artifacts = {kernel.source().text: kernel.artifacts for kernel in made if kernel.artifacts}
        record: dict[str, Any] = {"part": part, "environment": here, "not_built": failed, "problems": []}
        if problems:
            known = json.loads((kept / f"{part}.json").read_text(encoding="utf-8"))
            others = [each for each in known["problems"] if each["shape"] not in problems]
            record = known | {"not_built": sorted({*known["not_built"], *failed}), "problems": others}
        for shape in (*shapes, *more):
            is_whole = shape not in more
            try:
                ranked = considered(shape, gpu) if is_whole else sampled(shape, gpu)
                outcome = Contest(shape, ranked, artifacts).outcome(finals=is_whole)
            except Exception as error:  # it is reported, and the other problems are still measured
                reason = without_places(f"{type(error).__name__}: {error}")[:500]
                record["problems"].append({"shape": shape.name, "error": reason})
                continue
            again = {"again": {name: here[name] for name in _TELLS}} if problems else {}
            record["problems"].append(outcome.record() | again)
            write_json(kept / f"{part}.json", record)
            print(f"{time.monotonic() - started:.1f} s {outcome.line()}", file=sys.stderr, flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
