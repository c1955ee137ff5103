"""The command line of the comparison."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from tools.verdicts import __doc__ as purpose
from tools.verdicts.draw import drawn
from tools.verdicts.judge import alike, differences, judged, verdict


def _compare(path: Path, say: Callable[[str], None]) -> int:
    """Say how the verdicts of a file differ from those of now, alike ones together; return how many differ."""
    lines = path.read_text().splitlines()
    seed = json.loads(lines[0])["seed"]
    found: dict[tuple[str, str, str], list[tuple[int, str, str]]] = defaultdict(list)
    differing = 0
    both: Counter[bool] = Counter()
    for line in lines[1:]:
        before, described = json.loads(line), drawn(seed, json.loads(line)["number"])
        if described["kind"] != before["kind"]:
            sys.exit(f"{path} was written by a version of this tool that draws other descriptions: write it again")
        after = json.loads(json.dumps(verdict(described)))
        if before["verdict"] == after["verdict"] == "accepted":
            both[before["digest"] == after["digest"]] += 1
        different = list(differences(before, after))
        differing += bool(different)
        for what, old, new in different:
            found[what, alike(old), alike(new)].append((before["number"], old, new))
    for (what, _, _), cases in sorted(found.items(), key=lambda item: -len(item[1])):
        number, old, new = cases[0]
        say(f"{len(cases)} x {what}, first in {seed}:{number}\n  - {old}\n  + {new}")
    say(f"{both.total():,} are accepted by both, {both[False]:,} of them with another text")
    say(f"{differing} of {len(lines) - 1} verdicts differ, in {len(found)} ways")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.verdicts", description=(purpose or "").splitlines()[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--write", type=Path, metavar="FILE", help="write the verdicts, one a line")
    chosen.add_argument("--compare", type=Path, metavar="FILE", help="compare with what --write wrote")
    chosen.add_argument("--show", metavar="SEED:NUMBER", help="show one description and its verdict")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20000)
    given = parser.parse_args()
    if given.compare:
        sys.exit(bool(_compare(given.compare, print)))
    if given.show:
        described = drawn(*map(int, given.show.split(":")))
        print(json.dumps({**described, **verdict(described)}, indent=2))
        return
    total: Counter[str] = Counter()
    with given.write.open("w") as out:
        out.write(json.dumps({"seed": given.seed}) + "\n")
        for each in judged(given.seed, given.count):
            total[f"{each['kind']}: {each['verdict']}"] += 1
            out.write(json.dumps(each) + "\n")
    for what, count in sorted(total.items()):
        print(f"{count:8,} {what}")


if __name__ == "__main__":
    main()
