"""Whether two versions of the sources find the same: runs one collection of evidence through both and compares all answers.

Usage: python benchmarks/same_findings.py OLD_SRC [NEW_SRC]. The evidence is that of the old sources' repository: incidents, logs,
texts in tests, bundles, simulated dumps, random jobs, the rules' examples, and what `explain` and `env` say. Each version is asked
through its own `unhang` command, in one process that lives for the whole run. The exit code is 1 if anything differs.

What differs is asked again: a difference that is gone then is told, and counted as `only once`, since a busy machine may cause it.
In which order the rules were asked is not compared; that of the findings is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from evidence_for_both import GROUPS, Case, examples, of_words
from one_version import Answers, Commands, Version

HERE = Path(__file__).resolve().parent
FACTS = ("rule", "cause", "culprit_ranks", "victim_ranks", "location", "confidence")
MOST_FIELDS, MOST_CHARACTERS = 5, 160
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


class Difference(NamedTuple):
    """One field of one case. A text of several lines is told by the first line that differs."""

    group: str
    case: str
    field: str
    old: Any
    new: Any


def content(label: str, out: str) -> Any:
    """What a command wrote: JSON as values, of a page its data; the verdicts of rules by rule."""
    kind = label.partition(" ")[0]
    try:
        page = _DATA.search(out) if kind == "html" else None
        value = json.loads(page[1] if page else out) if page or kind in ("json", "expected") else out
    except json.JSONDecodeError:
        return out
    if isinstance(value, dict) and isinstance(value.get("outcomes"), list):
        value["outcomes"] = {str(o["rule"] if isinstance(o, dict) else o[0]): o for o in value["outcomes"]}
    return value


def facts(value: Any) -> Any:
    """The outcome and FACTS of each finding of a report; nothing of any other text."""
    if not isinstance(value, dict) or not isinstance(value.get("findings"), list):
        return None
    findings = [{key: f.get(key) for key in FACTS} for f in value["findings"] if isinstance(f, dict)]
    return {"outcome": value.get("outcome"), "findings": findings}


def comparable(answers: Answers, is_full: bool) -> dict[str, Any]:
    """The answers to a case, or only their facts."""
    found: dict[str, Any] = {}
    for label, answer in answers.items():
        value = content(label, answer.get("out", ""))
        is_report = label.startswith("json")
        if is_full or "raised" in answer:
            found[label] = {**answer, "out": value}
        else:
            found[label] = {"code": answer["code"], "out": facts(value) if is_report else None}
    return found


def differences(old: Any, new: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(field, old, new) wherever two values differ."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))
    elif isinstance(old, list) and isinstance(new, list):
        rules = [[x.get("rule") if isinstance(x, Mapping) else None for x in side] for side in (old, new)]
        if rules[0] != rules[1] and any(chain(*rules)):
            yield at, *rules
        elif len(old) != len(new):
            yield at, old, new
        else:
            for number, (left, right) in enumerate(zip(old, new, strict=True)):
                yield from differences(left, right, f"{at}[{number}]")
    elif isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        lines = old.splitlines(), new.splitlines()
        pairs = enumerate(zip(*(side + [""] * (max(map(len, lines)) - len(side)) for side in lines), strict=True), 1)
        number, (left, right) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, (old, new)))
        yield f"{at} line {number}", left, right
    else:
        yield at, old, new


class Tally:
    """What came of one group."""

    def __init__(self) -> None:
        self.cases = self.different = self.unsteady = self.speaks = self.raised = 0
        self.seconds = 0.0

    def row(self, name: str) -> str:
        """A line of the table."""
        numbers = (self.cases, self.cases - self.different, self.different, self.unsteady, self.speaks, self.raised)
        return f"{name:12}" + "".join(f"{n:>14}" for n in numbers) + f"{self.seconds:>10.1f}"


class Comparison:
    """Asks both versions the same, and keeps the differences."""

    def __init__(self, old: Version, new: Version, is_full: bool) -> None:
        self._versions, self._is_full = (old, new), is_full
        self.tallies: dict[str, Tally] = {}
        self.found: list[Difference] = []
        self.only_once: list[Difference] = []

    def ask(self, commands: Commands) -> list[Answers]:
        """The answers of both, which work at the same time."""
        for version in self._versions:
            version.ask(commands)
        return [version.answer() for version in self._versions]

    def known(self, what: str) -> list[str]:
        """The names that either version knows.

        Raises:
            SystemExit: one of them cannot tell.
        """
        answers = [answer.get("json", answer.get("process", {})) for answer in self.ask({"json": [what]})]
        if failed := [answer["raised"] for answer in answers if "raised" in answer]:
            raise SystemExit(f"{what}: {failed[0]}")
        return list(dict.fromkeys(chain.from_iterable(json.loads(answer["out"]) for answer in answers)))

    def compare(self, cases: Iterable[Case]) -> None:
        """Asks both for each case."""
        last = time.monotonic()
        for case in cases:
            tally = self.tallies.setdefault(case.group, Tally())
            old, new = (comparable(answers, self._is_full) for answers in self.ask(case.commands))
            tally.cases += 1
            report = old.get("json", {}).get("out")
            tally.speaks += bool(isinstance(report, dict) and report.get("findings"))
            tally.raised += any("raised" in answer for answer in old.values())
            if found := [Difference(case.group, case.name, *each) for each in differences(old, new)]:
                old, new = (comparable(answers, self._is_full) for answers in self.ask(case.commands))
                tally.different += (again := old != new)
                tally.unsteady += not again
                told = f"{case.group}: {case.name} differs in {found[0].field}{'' if again else ', and not when asked again'}"
                print(f"{told}: {shown(found[0].old)} -> {shown(found[0].new)}", file=sys.stderr, flush=True)
                (self.found if again else self.only_once).extend(found)
            now = time.monotonic()
            tally.seconds, last = tally.seconds + now - last, now
            if tally.cases % 100 == 0:
                print(f"{case.group}: {tally.cases} cases, {tally.different} differ", file=sys.stderr, flush=True)


def shown(value: Any) -> str:
    """A value in short."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."


def blocks(found: Iterable[Difference], most: int) -> Iterator[str]:
    """A block for each case that differs, at most so many of a group."""
    cases: dict[tuple[str, str], list[Difference]] = {}
    for each in found:
        cases.setdefault((each.group, each.case), []).append(each)
    number = Counter[str]()
    for (group, name), each_of in cases.items():
        number[group] += 1
        if number[group] <= most:
            lines = [f"  {d.field}\n    - {shown(d.old)}\n    + {shown(d.new)}" for d in each_of[:MOST_FIELDS]]
            more = [f"  and {len(each_of) - MOST_FIELDS} more fields"] * (len(each_of) > MOST_FIELDS)
            yield "\n".join([f"{group}: {name}", *lines, *more])
    for group, count in number.items():
        if count > most:
            yield f"{group}: {count - most} more cases differ (--json writes all)"


def main() -> int:
    """Prints the table and the differences."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("old", type=Path, help="the src folder of the old version; its repository holds the evidence")
    options.add_argument("new", type=Path, nargs="?", default=HERE.parent / "src", help="the src folder of the new one")
    depth = options.add_mutually_exclusive_group()
    depth.add_argument("--full-text", action="store_true", help="compare every text (this is the default)")
    depth.add_argument("--facts", action="store_true", help="compare outcome, rules, causes, ranks, places, confidence")
    options.add_argument("--draws", type=int, default=2000, help="random jobs")
    options.add_argument("--only", default="", help=f"groups, with commas: {','.join(GROUPS)},examples,explain")
    options.add_argument("--most", type=int, default=20, help="differing cases to print of each group")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all differences to this file")
    given = options.parse_args()
    chosen = set(filter(None, given.only.split(","))) or {*GROUPS, "examples", "explain"}
    if unknown := chosen - {*GROUPS, "examples", "explain"}:
        options.error(f"no such group: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        versions = [Version(src, place) for src in (given.old, given.new)]
        comparison = Comparison(versions[0], versions[1], not given.facts)
        if "examples" in chosen:
            comparison.compare(examples(comparison.known("!examples")))
        if "explain" in chosen:
            comparison.compare(of_words(comparison.known("!words")))
        for name in (name for name in GROUPS if name in chosen):
            (place / name).mkdir()
            comparison.compare(GROUPS[name](given.old.resolve().parent, place / name, given.draws))
        for version in versions:
            version.end()
    print("\n\n".join(blocks(comparison.found, given.most)), end="\n\n" if comparison.found else "")
    titles = ("cases", "equal", "different", "only once", "with findings", "raised")
    print(f"{'group':12}" + "".join(f"{title:>14}" for title in titles) + f"{'seconds':>10}")
    print("\n".join(tally.row(name) for name, tally in comparison.tallies.items()))
    if given.json is not None:
        tallies = {name: vars(tally) for name, tally in comparison.tallies.items()}
        told: dict[str, Any] = {"groups": tallies, "differences": [each._asdict() for each in comparison.found]}
        told["only_once"] = [each._asdict() for each in comparison.only_once]
        given.json.write_text(json.dumps(told, indent=1) + "\n")
    return int(bool(comparison.found))


if __name__ == "__main__":
    raise SystemExit(main())
