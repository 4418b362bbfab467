"""How far each rule that speaks on logs can be trusted: right, wrong, or out of turn, on incidents that the sources had not seen.

A round of incidents is judged by the sources that were there before it (the commit in its name), as long as git has them. Rules
are written by people, so this is what leaving a round out means here: nothing of the round was known when they were written. Of
older rounds the wrong answers are on record by rule; their right ones count for the rule that gives the same answer today. Beside
it stands what the present sources say of all incidents, which they know.

`right`: the cause. `wrong`: another one. `out of turn`: a cause was named where nothing was established, or where nothing was
wrong. The bound is the lower end of Wilson's interval (95 %) of `right` among all that was said of unseen incidents.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from math import sqrt
from pathlib import Path
from typing import NamedTuple

from incident_accuracy import FOLDER, HEALTHY, RESULTS, judged

HERE = Path(__file__).resolve().parent
SAVED = HERE / "results" / "calibration.json"
# Which incidents of the tests a round brought: first and last number. Those of rounds 8 and 9 had other numbers while they were unseen.
ROUNDS = {
    "1 (585f2b2)": [(501, 560)],
    "2 (0e5fc29)": [(601, 660)],
    "3 (165bba6)": [(701, 760)],
    "4 (ec2cd8c)": [(801, 860)],
    "5 (c317dd5)": [(861, 920)],
    "6, part 1 (d473c98)": [(966, 980)],
    "6, part 2 (4c3f3f0)": [(936, 950)],
    "7, part 1 (713230a)": [(951, 965), (981, 995)],
    "7, part 2 (713230a)": [(921, 935)],
    "7, part 3 (713230a)": [(996, 1010)],
    "8, part 1 (33784b2)": [(1011, 1040)],
    "8, part 2 (33784b2)": [(1041, 1070)],
    "9 (aedd512)": [(1071, 1110)],
}
_RENUMBERED = {"8": 1010, "9": 1010}
_NAMES_CAUSE = 0.5
_ASK = """
import sys
sys.path.insert(0, sys.argv[1])
from incident_accuracy import judged
from pathlib import Path
import json
print(json.dumps([[j.name, j.cause, j.rule, j.diagnosis.findings[0].confidence] for j in judged(Path(sys.argv[2])) if j.diagnosis.findings]))
"""


class Said(NamedTuple):
    """One answer. `verdict`: "right", "wrong" or "out of turn"."""

    incident: str
    rule: str
    truth: str
    cause: str
    verdict: str


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a share (95 %); (0, 1) of nothing."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, hits / of
    middle, half = share + z * z / (2 * of), z * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def numbers_of(name: str) -> list[str]:
    """The incidents that a round brought."""
    return [f"{n:03}" for first, last in ROUNDS[name] for n in range(first, last + 1)]


def verdict(truth: str, cause: str, is_open: bool) -> str:
    """What an answer was; an incident of which the log does not tell the cause may still be told rightly."""
    if cause == truth:
        return "right"
    return "out of turn" if truth in ("unknown", HEALTHY) or is_open else "wrong"


def at_commit(commit: str, incidents: Iterable[Path]) -> list[tuple[str, str, str]] | None:
    """(incident, cause, rule) by the sources of a commit; None where git does not have them."""
    got = subprocess.run(["git", "archive", commit, "src"], cwd=HERE.parent, capture_output=True, timeout=60)
    if got.returncode:
        return None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "incidents")
        folder.mkdir()
        for path in incidents:
            (folder / path.name).write_bytes(path.read_bytes())
        with tarfile.open(fileobj=BytesIO(got.stdout)) as packed:
            packed.extractall(place, filter="data")
        asked = subprocess.run(
            [sys.executable, "-c", _ASK, str(HERE), str(folder)],
            env={"PYTHONPATH": str(Path(place, "src")), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    if asked.returncode:
        raise RuntimeError(f"the sources of {commit} cannot be asked: {asked.stderr[-400:]}")
    return [(name, cause, rule) for name, cause, rule, _ in json.loads(asked.stdout)]


def replayed(name: str) -> list[tuple[str, str, str]] | None:
    """What the sources before a round said of its incidents."""
    commit = name.rpartition("(")[2].rstrip(")")
    return at_commit(commit, [FOLDER / f"{n}.json" for n in numbers_of(name)])


def from_record(name: str, today: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    """The answers of a round that is only on record: the wrong ones, and for the others today's rule where it is right as well."""
    kept = json.loads(RESULTS.read_text())[name]
    shift = _RENUMBERED.get(name.split(",")[0].split(" ")[0], 0)
    wrong = {f"{int(n) + shift:03}": (cause, rule) for n, (_, cause, rule) in kept["wrong"].items()}
    silent = {f"{int(n) + shift:03}" for n in kept["silent"]}
    found = [(n, *said) for n, said in wrong.items()]
    return found + [(n, *today[n]) for n in numbers_of(name) if n not in wrong and n not in silent and n in today]


def unseen(today: Mapping[str, tuple[str, str]], is_fresh: bool) -> dict[str, list[tuple[str, str, str]]]:
    """Round -> its answers: replayed and saved, or as they were saved."""
    if not is_fresh and SAVED.exists():
        return {name: [(n, c, r) for n, c, r in rows] for name, rows in json.loads(SAVED.read_text()).items()}
    found = {name: replayed(name) or from_record(name, today) for name in ROUNDS}
    SAVED.write_text(json.dumps(found, indent=1) + "\n")
    return found


def said_of(rows: Iterable[tuple[str, str, str]], truths: Mapping[str, tuple[str, bool]]) -> Iterator[Said]:
    """The answers that name a cause, judged."""
    for incident, cause, rule in rows:
        truth, is_open = truths[incident]
        if cause != "unknown" and rule:
            yield Said(incident, rule, truth, cause, verdict(truth, cause, is_open))


def main() -> int:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--replay", action="store_true", help="judge every round anew by the sources before it")
    options.add_argument("--list", action="store_true", help="list the answers to unseen incidents that were not right")
    given = options.parse_args()
    found = judged()
    truths = {j.name: (j.truth, not j.is_scored) for j in found}
    today = {j.name: (j.cause, j.rule) for j in found if j.cause == j.truth}
    rounds = unseen(today, given.replay)
    before = [s for rows in rounds.values() for s in said_of(rows, truths)]
    known = list(said_of(((j.name, j.cause, j.rule) for j in found), truths))
    counts: dict[str, tuple[Counter[str], Counter[str]]] = defaultdict(lambda: (Counter(), Counter()))
    for which, answers in enumerate((before, known)):
        for s in answers:
            counts[s.rule][which][s.verdict] += 1
    print(f"{'':27} unseen: right wrong out of turn  at least   known: right wrong out of turn")
    for rule, (new, old) in sorted(counts.items(), key=lambda t: (wilson(t[1][0]["right"], t[1][0].total())[0], t[0])):
        least = wilson(new["right"], new.total())[0] if new else 0.0
        row = [new["right"], new["wrong"], new["out of turn"], least, old["right"], old["wrong"], old["out of turn"]]
        marks = "  one incident only" if old.total() == 1 else ""
        print("{:27} {:>13} {:>5} {:>11}  {:>8.0%} {:>14} {:>5} {:>11}{}".format(rule, *row, marks))
    if given.list:
        for s in before:
            if s.verdict != "right":
                print(f"{s.incident} {s.rule:24} truth {s.truth}, said {s.cause}")
    right = sum(s.verdict == "right" for s in before)
    low, high = wilson(right, len(before))
    print(f"\nof {len(before)} causes named in unseen incidents {right} were right ({low:.0%} to {high:.0%})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
