"""Measures the diffs of `unhang fix` on every fault of stories and programs that is in the code: made, applied, verified, nothing else changed.

    python -m benchmarks.fix_diffs [--only TEXT] [--part K/N] [--kept FOLDER]

What is measured takes the place of the same faults in the results; the others stay as they are.

Each fault is run under `unhang run` in a copy of the repository's programs, its report mended, the diff applied by `git apply`, the same
command run again, and both reports given to `unhang verify`. What a diff may touch: the lines it shows. That is checked on the files and on
their functions: no other file, and no function but the one that is mended (a helper is added beside it).
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.ranks.faults import STORIES as STORY_CASES
from tests.ranks.faults import Case
from tests.ranks.harness import Result, run_job
from tests.stories.cases import BROKEN
from tests.stories.cases import STORIES as TOLD

REPOSITORY = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results") / "fix_diffs.json"
# Causes of which some line of the program is the fault; of the others there is nothing to mend in the code, or no single way to do it.
IN_CODE = (
    "code-divergence", "uneven-inputs", "collective-order-race", "size-mismatch", "unused-parameters", "filesystem-race",
)  # fmt: skip
_TRIES = 3
_WHOLE = ("data_exhausted",)  # shows only in a run of full length
_LENGTHS = tomllib.loads((REPOSITORY / "benchmarks" / "hangbench" / "table.toml").read_text())["stories"]


@dataclass
class Row:
    """What became of one fault. `why`: why there is no diff, or what the mended program did. `tries`: runs until one was judged rightly."""

    name: str
    cause: str
    is_made: bool = False
    applies: bool = False
    is_verified: bool = False
    touches_other: bool = False
    lines_removed: int = 0
    lines_added: int = 0
    tries: int = 0
    why: str = ""


def faults() -> list[Case]:
    """The faults, as jobs: of the stories of the tests, of the stories that are told, and of the tests' programs that hang."""
    from tests.ranks.faults import HANGS

    told = [
        Case(
            f"{name}-{fault['name']}", str(REPOSITORY / "examples" / "stories" / name / story["file"]),
            ("--fault", fault["name"], *(() if fault["name"] in _WHOLE else _LENGTHS[name])), fault["outcome"], fault["cause"], tuple(fault["culprits"]), stall_after_s=5,
        )
        for name, story in TOLD.items()
        for fault in story["faults"]
    ]  # fmt: skip
    return [case for case in (*STORY_CASES, *BROKEN, *told, *HANGS) if case.cause in IN_CODE]


def measure(case: Case, folder: Path) -> Row:
    """Breaks, mends and verifies one job in a folder of its own.

    Blocks: for two runs of the job.
    """
    row, programs = Row(case.name, case.cause), folder / "programs"
    for name in ("tests/ranks", "examples"):
        shutil.copytree(REPOSITORY / name, programs / name, ignore=shutil.ignore_patterns("__pycache__", "*.xz"))
    _git(programs, "init", "-q")
    _git(programs, "add", "-A")
    moved = replace(case, program=str(programs / case.path.relative_to(REPOSITORY)))
    for row.tries in range(1, _TRIES + 1):  # on a busy machine a run may be judged otherwise, or the race not be lost
        before = _run(moved, folder / f"before{row.tries}")
        found = before.report["findings"]
        if found and found[0]["cause"] == case.cause:
            break
    else:
        row.why = f"the run gave another verdict: {found[0]['cause'] if found else before.report['outcome']}"
        return row
    fix = subprocess.run(
        [*_unhang(), "fix", str(before.report_dir)], capture_output=True, text=True, cwd=programs, check=False
    )
    row.is_made = fix.returncode == 0 and fix.stdout.startswith("--- ")
    row.why = "" if row.is_made else fix.stderr.strip().splitlines()[-1].partition("': ")[2].partition(". See")[0]
    if not row.is_made:
        return row
    (folder / "fix.patch").write_text(fix.stdout)
    body = [line for line in fix.stdout.splitlines() if not line.startswith(("---", "+++"))]
    row.lines_removed, row.lines_added = (sum(line.startswith(sign) for line in body) for sign in "-+")
    row.applies = _git(programs, "apply", str(folder / "fix.patch")).returncode == 0
    row.touches_other = _touches_other(programs)
    after = _run(replace(moved, outcome="clean", abort_after_s=60), folder / "after")
    verify = subprocess.run(
        [*_unhang(), "verify", "--before", str(before.report_dir), "--after", str(after.report_dir)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    row.is_verified = row.applies and verify.returncode == 0
    if not row.is_verified:
        again = after.report["findings"]
        row.why = f"the mended job: {after.report['outcome']}, {again[0]['title'] if again else verify.stdout[-300:]}"
    return row


def _run(case: Case, folder: Path) -> Result:
    folder.mkdir()
    return run_job(case, folder, limit_s=150)


def _unhang() -> list[str]:
    return [sys.executable, "-m", "unhang"]


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)


def _touches_other(programs: Path) -> bool:
    """Whether more than one file is changed, or more than one function or class at its top, not counting one that is new."""
    changed = _git(programs, "diff", "--name-only").stdout.split()
    if len(changed) != 1:
        return True
    old = _tops(_git(programs, "show", f":{changed[0]}").stdout)
    new = _tops((programs / changed[0]).read_text())
    return len([name for name in old if old[name] != new.get(name)]) > 1


def _tops(text: str) -> dict[str, str]:
    """What stands at the top of a file, but for imports: name of a function or class, or the text of a statement -> its code."""
    return {
        getattr(node, "name", ast.dump(node)): ast.dump(node)
        for node in ast.parse(text).body
        if not isinstance(node, ast.Import | ast.ImportFrom)
    }


def main() -> None:
    """Measures faults, prints a line for each, and keeps the figures beside those of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only faults with this in their name")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="only each Nth fault, from the Kth on")
    parser.add_argument("--kept", type=Path, help="keep diffs, reports and programs in this folder")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    cases = faults()
    rows = []
    for case in cases[part - 1 :: parts]:
        if options.only in case.name:
            rows.append(_measured(case, options.kept))
            print(_line(rows[-1]), flush=True)
    print(_kept(rows, [case.name for case in cases]))


def _measured(case: Case, kept: Path | None) -> Row:
    with tempfile.TemporaryDirectory(prefix="fix-") as made:
        folder = kept / case.name if kept else Path(made)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return measure(case, folder)
        except AssertionError as error:
            return Row(case.name, case.cause, why=f"the run failed: {str(error)[:200]}")


def _line(row: Row) -> str:
    named = (("made", row.is_made), ("applies", row.applies), ("verified", row.is_verified))
    marks = " ".join(name for name, holds in named if holds) or "no diff"
    return f"{row.name:36} {row.cause:22} {marks} {row.why}"


def _kept(measured: list[Row], names: list[str]) -> str:
    """Writes the rows with those of the other faults, in their order; the counts of all, in words."""
    rows = {row["name"]: Row(**row) for row in json.loads(RESULTS.read_text())["rows"]} if RESULTS.exists() else {}
    rows |= {row.name: row for row in measured}
    known = [rows[name] for name in names if name in rows]
    counts = {
        key: sum(getattr(row, key) for row in known) for key in ("is_made", "applies", "is_verified", "touches_other")
    }
    content = {
        "schema": "unhang.fix_diffs/1", "faults": len(known), **counts, "rows": [asdict(row) for row in known],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    return f"{len(known)} of {len(names)} faults whose cause is in the code: {counts}"


if __name__ == "__main__":
    main()
