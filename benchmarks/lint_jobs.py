"""What `unhang lint` sees in the programs of the blind rounds, without running them.

    python benchmarks/lint_jobs.py [--round N]... [--wrong]     default: all rounds

Of a program with a fault: whether a finding of the default rules, or a line of the way that it shows, is at the place that its truth names (up to three lines away);
of a healthy one: whether there is any finding. Many faults cannot be seen in the source (data, files, machines), so the first figure
is no share of what a linter could find. The rounds were written for `unhang run`, by authors who did not know the linter.
The figures stand in benchmarks/results/lint_jobs.json.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from unhang.lint.cards import LintSettings
from unhang.lint.checking import lint_paths

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "lint_jobs.json"
NEAR = 3  # lines


class Seen(NamedTuple):
    """A program, the cause that its truth names (empty: healthy), and the findings in it; `at`: of these, those at the fault."""

    program: str
    cause: str
    found: tuple[str, ...]
    at: tuple[str, ...]


def programs_of(number: int, folder: Path) -> Iterator[Path]:
    """The programs of a round, unpacked there."""
    with tarfile.open(HERE / f"blind_jobs_round{number}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    yield from sorted(p.parent for p in folder.rglob("truth.json"))


def seen_in(program: Path) -> Seen:
    """What the default rules find in a program."""
    truth = json.loads((program / "truth.json").read_text())
    result, faults = lint_paths([str(program)], LintSettings(), None, 1), places_of(truth)
    named = [(f.code, [(path, f.line), *((p, n) for p, n, _ in f.way)]) for path, f in result.found]
    found = {
        f"{code} {Path(places[0][0]).name}:{places[0][1]}": any(
            Path(p).name == file and abs(n - line) <= NEAR for p, n in places for file, line in faults
        )
        for code, places in named
    }
    cause = "" if truth["outcome"] == "healthy" else str(truth["cause"])
    return Seen(program.name, cause, tuple(found), tuple(x for x, is_there in found.items() if is_there))


def places_of(truth: dict[str, Any]) -> set[tuple[str, int]]:
    """(file, line) of the fault: the one that is named, and those that are as good."""
    lines = {Path(truth.get("file") or "").name: truth.get("lines") or []}
    more = (truth.get("also_acceptable") or {}).get("file_lines") or {}
    return {(Path(file).name, line) for given in (lines, more) for file, of in given.items() for line in of}


def main() -> None:
    """Prints a line for each round, and the sum by causes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--round", type=int, action="append")
    parser.add_argument(
        "--wrong", action="store_true", help="name the programs that are not told, and the healthy ones that are"
    )
    given = parser.parse_args()
    rounds = given.round or sorted(int(p.name[16:-7]) for p in HERE.glob("blind_jobs_round*.tar.xz"))
    table: dict[str, dict[str, int]] = {}
    causes: dict[str, list[int]] = {}
    for number in rounds:
        with tempfile.TemporaryDirectory() as folder:
            seen = [seen_in(p) for p in programs_of(number, Path(folder))]
        faulty, healthy = [x for x in seen if x.cause], [x for x in seen if not x.cause]
        told, noisy = [x for x in faulty if x.at], [x for x in healthy if x.found]
        table[str(number)] = {"faulty": len(faulty), "told": len(told), "healthy": len(healthy), "noisy": len(noisy)}
        print(f"round {number}: {len(told)} of {len(faulty)} told, {len(noisy)} of {len(healthy)} healthy ones noisy")
        for one in faulty:
            of = causes.setdefault(one.cause, [0, 0])
            of[0], of[1] = of[0] + bool(one.at), of[1] + 1
        for one in (x for x in seen if given.wrong and bool(x.at if x.cause else not x.found) is False):
            print(f"    {one.program} {one.cause or 'healthy'}: {', '.join(one.found) or 'nothing'}")
    for cause, (told_of, of_all) in sorted(causes.items(), key=lambda x: -x[1][1]):
        print(f"{cause:28} {told_of:4} of {of_all}")
    total = {k: sum(row[k] for row in table.values()) for k in ("faulty", "told", "healthy", "noisy")}
    print(total)
    if not given.round:
        RESULTS.write_text(json.dumps({"rounds": table, "causes": causes, "all": total}, indent=1) + "\n")


if __name__ == "__main__":
    main()
