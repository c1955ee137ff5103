"""Compile the default kernels, and build the package pycutlass-kernels of them.

::

    python -m tools.make_bundle                                    # all targets: hours
    python -m tools.make_bundle --targets sm_90a --most 40 --jobs 2
    python -m tools.make_bundle --list --targets sm_90a            # compile nothing: name the kernels

Which kernels there are, `pycutlass.plan.defaults` says. Each is compiled into the user's kernel cache, so what an
interrupted run has compiled is not compiled again. The bundles, one for each target, and their index are put into
packages/pycutlass-kernels, and a wheel is built from it without a network. A report says what they are made of.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pycutlass import compiler
from pycutlass.cache import Artifact
from pycutlass.cache.bundle import write_bundle
from pycutlass.cache.package import PackagedBundle, write_index
from pycutlass.errors import PyCutlassError
from pycutlass.plan.defaults import MOST_KERNELS, TARGETS, default_kernels
from pycutlass.report import BuildReport
from pycutlass.toolkit import own_headers_digest
from pycutlass.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "packages" / "pycutlass-kernels"
MOST_BYTES = 100 * 10**6  # of a bundle
_REGISTERS = 255  # the most that a thread can have
_NATIVE_REGISTERS = 168  # of the 384 threads of a Hopper-native kernel, which moves them between its warp groups
# What manylinux_2_28 has of the GNU C library and of what comes with its compiler.
_SYMBOLS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
_VERSIONS = re.compile(rb"\0(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)(?=\0)")


class BundleError(Exception):
    """A bundle that is not to be published."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        for target in options.targets:
            for kernel in default_kernels(target, options.most):
                print(target, kernel.source().name)
        return 0
    if options.jobs:
        os.environ["PYCUTLASS_JOBS"] = str(options.jobs)
    folder = options.package / "pycutlass_kernels"
    bundles: list[PackagedBundle] = []
    report: dict[str, Any] = {}
    try:
        # A compiler that is named makes all kernels itself: none comes from an installed package.
        os.environ["PYCUTLASS_BACKEND"] = compiler.backend()
        (folder / "kernels.json").unlink(missing_ok=True)  # it must not go with other bundles than its own
        for target in options.targets:
            made, failed = compiled(target, options.most)
            bundle = bundled(folder, target, made)
            bundles.append(bundle)
            report[target] = described(made, failed, (folder / bundle.file).stat().st_size)
            print(in_words(target, report[target]), flush=True)
        _remove_others(folder, bundles)
        write_index(folder, __version__, own_headers_digest(), bundles)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "kernels-report.json").write_text(json.dumps(report, indent=1) + "\n")
        if not options.no_wheel:
            print(built_wheel(options.package, options.out))
    except (BundleError, PyCutlassError) as error:
        print(f"make_bundle: {error}", file=sys.stderr)
        return 1
    return 1 if any(each["failed"] for each in report.values()) else 0


def compiled(target: str, most: int) -> tuple[list[Artifact], dict[str, str]]:
    """Return the default kernels of a target, and why some could not be compiled, by name."""
    kernels = default_kernels(target, most)
    made: dict[int, Artifact] = {}
    failed: dict[str, str] = {}
    # For "sm_90", Hopper-native kernels are built for sm_90a, and others for what a plan asks for on such a GPU.
    for done in compiler.compile_many(kernels, target=target.removesuffix("a"), strict=False):
        name = kernels[done.position].source().name
        if isinstance(done.result, Artifact):
            made[done.position] = done.result
        else:
            failed[name] = str(done.result).partition("\n")[0]
        print(f"{target} {len(made) + len(failed)}/{len(kernels)} {name}", flush=True)
    return [made[position] for position in sorted(made)], failed


def bundled(folder: Path, target: str, made: Sequence[Artifact]) -> PackagedBundle:
    """Write the bundle of a target, unless it is too large or needs other libraries than its platform has."""
    size = sum(len(each.cubin) + len(each.host) for each in made)
    if len(made) > MOST_KERNELS or size > MOST_BYTES:
        raise BundleError(
            f"a bundle has at most {MOST_KERNELS} kernels of {MOST_BYTES / 1e6:.0f} MB, and that of {target} would "
            f"have {len(made)} of {size / 1e6:.1f} MB: take fewer with --most"
        )
    for each in made:
        if newer := too_new(each.host):
            raise BundleError(
                f"the host side of {each.name} needs {', '.join(newer)}, which manylinux_2_28 lacks: build it with an "
                f"older g++ or C library"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(folder / f"{target}.zip", made, is_compressed=False)  # the wheel is compressed
    return PackagedBundle(f"{target}.zip", tuple(sorted({each.target for each in made})), len(made))


def too_new(host: bytes) -> list[str]:
    """Return the versions of symbols that a shared object needs and the platform of the wheel lacks."""
    found = {(match[1].decode(), match[2].decode()) for match in _VERSIONS.finditer(host)}
    return sorted(f"{name}_{text}" for name, text in found if _numbers(text) > _SYMBOLS[name])


def described(made: Sequence[Artifact], failed: dict[str, str], size: int) -> dict[str, Any]:
    """Return what a bundle is made of, as JSON has it."""
    reports = {each.name: BuildReport.from_json(each.report) for each in made}
    natives = {each.name for each in made if each.target.endswith("a")}
    odd = {
        name: report.registers
        for name, report in reports.items()
        if (report.registers != _NATIVE_REGISTERS if name in natives else report.registers >= _REGISTERS)
    }
    return {
        "kernels": len(made),
        "bytes": size,
        "targets": dict(Counter(each.target for each in made)),
        "seconds": round(sum(max(each.seconds_device, each.seconds_host) for each in reports.values()), 1),
        "compilers": sorted({each.compiler for each in reports.values()}),
        "problems": {
            name: problems
            for name, report in reports.items()
            if (problems := report.problems(is_native=name in natives))
        },
        "registers": dict(sorted(Counter(each.registers for each in reports.values()).items())),
        "odd_registers": odd,
        "failed": failed,
    }


def in_words(target: str, facts: dict[str, Any]) -> str:
    """Return what a bundle is made of, for people."""
    targets = ", ".join(f"{count} for {name}" for name, count in facts["targets"].items())
    lines = [
        f"{target}: {facts['kernels']} kernels ({targets}), {facts['bytes'] / 1e6:.1f} MB, "
        f"{facts['seconds']:,} s of compilers, {len(facts['problems'])} with spills or other problems, "
        f"{len(facts['odd_registers'])} with registers out of the ordinary"
    ]
    lines += [f"  {name}: {'; '.join(problems)}" for name, problems in facts["problems"].items()]
    lines += [f"  {name}: {registers} registers" for name, registers in facts["odd_registers"].items()]
    lines += [f"  {name} could not be compiled: {reason}" for name, reason in facts["failed"].items()]
    return "\n".join(lines)


def built_wheel(package: Path, out: Path) -> Path:
    """Build the wheel of the package, and return where it is."""
    shutil.rmtree(package / "build", ignore_errors=True)  # bundles of an earlier run
    before = set(out.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--wheel-dir", out, package], capture_output=True, text=True)
    if done.returncode:
        raise BundleError(f"the wheel could not be built:\n{done.stdout}{done.stderr}")
    wheels = sorted(out.glob("pycutlass_kernels-*.whl"), key=lambda path: (path not in before, path.stat().st_mtime))
    return wheels[-1]


def _remove_others(folder: Path, bundles: Iterable[PackagedBundle]) -> None:
    """Delete bundles of an earlier run that are not among those of this one."""
    for path in set(folder.glob("*.zip")) - {folder / each.file for each in bundles}:
        path.unlink()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.strip(".").split(".")))


def _targets(text: str) -> list[str]:
    given = text.split(",")
    if unknown := [each for each in given if each not in TARGETS]:
        raise argparse.ArgumentTypeError(f"there are default kernels for {', '.join(TARGETS)}, not for {unknown[0]}")
    return list(dict.fromkeys(given))


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MOST_KERNELS:
        raise argparse.ArgumentTypeError(f"a bundle has 1 to {MOST_KERNELS} kernels, not {text}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.make_bundle", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", type=_targets, default=list(TARGETS), help="several between commas; default: all")
    parser.add_argument("--most", type=_count, default=MOST_KERNELS, help="kernels of each target, default 400")
    parser.add_argument("--jobs", type=int, help="compilers at once, default: what cores and memory carry")
    parser.add_argument("--list", action="store_true", help="name the kernels, and compile nothing")
    parser.add_argument("--package", type=Path, default=PACKAGE, help="tree of the package")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheel and the report go")
    parser.add_argument("--no-wheel", action="store_true", help="build no wheel")
    return parser


if __name__ == "__main__":
    sys.exit(main())
