"""Public incidents inside whole logs: how often the verdict (cause, ranks) is the same as on the lines alone.

Each disguise of `tests/logs/disguise.py` makes a whole log from each incident. Nothing that the verdict rests on is taken away.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.logs.disguise import ALL  # noqa: E402
from tests.logs.incident import Disguise, Incident  # noqa: E402

from unhang.diagnosis import diagnose  # noqa: E402
from unhang.errors import UnhangError  # noqa: E402

FOLDER = ROOT / "tests" / "incidents"


class Said(NamedTuple):
    """A verdict. `rule`: whose it is; it does not count."""

    cause: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.cause} {list(self.ranks)}"


class Row(NamedTuple):
    """What came of one disguise."""

    name: str
    of: int
    same: int
    refused: int
    seconds: float


REFUSED = "refused"


def incidents(folder: Path = FOLDER) -> list[Incident]:
    """All incidents of a folder."""
    return [Incident(path.stem, json.loads(path.read_text())["log"]) for path in sorted(folder.glob("*.json"))]


def said_of(path: Path) -> Said:
    """The verdict on a log or a folder of logs."""
    try:
        findings = diagnose(path).findings
    except UnhangError as error:
        return Said(f"{REFUSED}: {error}", ())
    return Said(findings[0].cause, findings[0].culprit_ranks) if findings else Said("unknown", ())


def alone(incident: Incident) -> Said:
    """The verdict on the lines alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        path.write_text(incident.log, errors="surrogateescape")
        return said_of(path)


def disguised(incident: Incident, way: Disguise) -> Said:
    """The verdict on the whole log."""
    with tempfile.TemporaryDirectory() as folder:
        return said_of(way.write(incident, Path(folder)))


def main() -> int:
    """Prints the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    options.add_argument("--wrong", action="store_true", help="list what differs")
    options.add_argument("--only", default="", help="disguises, with commas")
    options.add_argument("--incidents", default="", help="numbers of incidents, with commas")
    options.add_argument("--show", action="store_true", help="print the files of what differs")
    given = options.parse_args()
    chosen = set(filter(None, given.only.split(",")))
    numbers = set(filter(None, given.incidents.split(",")))
    all_of = [i for i in incidents(given.folder) if not numbers or i.name in numbers]
    bare = {incident.name: alone(incident) for incident in all_of}
    rows: list[Row] = []
    for way in ALL:
        if chosen and way.name not in chosen:
            continue
        began = time.monotonic()
        tried = all_of if len(all_of) < way.every else all_of[:: way.every]
        differs = [(i, said) for i in tried if (said := disguised(i, way)) != bare[i.name]]
        refused = sum(said.cause.startswith(REFUSED) for _, said in differs)
        rows.append(Row(way.name, len(tried), len(tried) - len(differs), refused, time.monotonic() - began))
        for incident, said in differs if given.wrong else ():
            print(f"{way.name:44} {incident.name}  {bare[incident.name]} -> {said}", flush=True)
            if given.show:
                for name, data in way.make(incident).items():
                    print(f"--- {name}\n{data.decode(errors='replace')}")
    print_table(rows, Counter(said.cause for said in bare.values()))
    return int(any(row.same < row.of for row in rows))


def print_table(rows: Sequence[Row], causes: Counter[str]) -> None:
    """Same verdict of N for each disguise."""
    print(f"\n{'disguise':44} same  of        refused  seconds")
    for name, count, same, refused, seconds in rows:
        print(f"{name:44} {same:>4} {count:>3} {same / count:>7.1%} {refused:>7} {seconds:>8.1f}")
    same, of = sum(row.same for row in rows), sum(row.of for row in rows)
    print(f"{'all':44} {same:>4} {of:>4} ({same / max(1, of):.1%}), {sum(row.refused for row in rows)} refused")
    print(f"on the lines alone: {causes['unknown']} of {causes.total()} unknown")


if __name__ == "__main__":
    raise SystemExit(main())
