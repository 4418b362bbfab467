"""The table of runs, with what is drawn from the seed, and the truth about each run once its record is there."""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hangbench.score import Truth

from unhang.inside.inject import FAULTS

HERE = Path(__file__).parent
STORIES = HERE.parents[1] / "examples" / "stories"
TABLE = tomllib.loads((HERE / "table.toml").read_text())
TRUTHS = {story["name"]: story for story in tomllib.loads((STORIES / "stories.toml").read_text())["story"]}
RANKS, SEED = 4, 1
_DRAWN = ("rank", "step", "call", "batch")


@dataclass(frozen=True)
class Run:
    """One run of the benchmark. `fault`: as `unhang inject` takes it, "" where nothing is injected. `truth`: without the record."""

    name: str
    kind: str
    story: str
    program: Path
    args: tuple[str, ...]
    fault: str
    options: tuple[str, ...]
    truth: Truth | None = None
    is_own: bool = False
    widened: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing may be found."""
        return self.truth is None


def lines_with(program: Path, text: str) -> frozenset[tuple[str, int]]:
    """The lines of a program that hold a text; the first one of a text that goes over several.

    Raises:
        LookupError: there is none.
    """
    whole, found, at = program.read_text(), set(), -1
    while (at := whole.find(text, at + 1)) >= 0:
        found.add((program.name, whole.count("\n", 0, at) + 1))
    if not found:
        raise LookupError(f"{program.name} has no line with {text!r}")
    return frozenset(found)


def all_runs(seed: int = SEED) -> list[Run]:
    """All runs, those with faults first."""
    return [*own_faults(), *injected_faults(seed), *healthy_runs()]


def own_faults() -> list[Run]:
    """The faults that the stories bring along."""
    return [
        _own(story, fault)
        for story in TRUTHS.values()
        for fault in ({**story, "name": "broken"}, *story["faults"])
        if fault["outcome"] != "clean"
    ]


def _own(story: Mapping[str, Any], fault: Mapping[str, Any]) -> Run:
    program = STORIES / story["name"] / story["file"]
    is_broken = fault["name"] == "broken"
    truth = Truth(
        (fault["outcome"],),
        (fault["cause"],),
        frozenset(fault["culprits"]),
        lines_with(program, fault["marker"] + "\n"),
        fault.get("location", "required"),
        bool(fault.get("any_culprit")),
    )
    args = ("--broken",) if is_broken else ("--fault", fault["name"])
    kind = f"own:{fault['name']}" if not is_broken else f"own:{story['name']}"
    return Run(f"{story['name']}/own-{fault['name']}", kind, story["name"], program, args, "", _options(), truth, True)


def injected_faults(seed: int = SEED) -> list[Run]:
    """The faults of the catalogue in the stories' programs."""
    counted: Counter[str] = Counter()
    runs = []
    for row in TABLE["run"]:
        for _ in range(row.get("draws", 1)):
            name = f"{row['story']}/{row['fault']}"
            counted[name] += 1
            runs.append(_injected(row, f"{name}-{counted[name]}", seed))
    return runs


def _injected(row: Mapping[str, Any], name: str, seed: int) -> Run:
    fault, program = FAULTS[row["fault"]], STORIES / row["story"] / "train.py"
    known = {parameter.name for parameter in fault.parameters}
    drawn = random.Random(f"{seed}:{name}")
    given = {"rank": list(range(RANKS)), **{key: row[key] for key in _DRAWN if key in row}}
    values = [f"{key}={_draw(drawn, key, among)}" for key, among in given.items() if key in known]
    rule = {**TABLE["faults"].get(fault.name, {}), **row}
    truth = Truth(
        tuple(rule.get("outcomes", ["hang"])),
        tuple(rule.get("causes", [fault.cause])),
        frozenset(),
        frozenset[tuple[str, int]]().union(*(lines_with(program, text) for text in row.get("also", []))),
        rule.get("line", "required"),
    )
    spec = f"{fault.name}:{','.join([*values, *filter(None, [row.get('more')])])}"
    args = tuple(TABLE["stories"][row["story"]])
    return Run(name, fault.name, row["story"], program, args, spec, _options(), truth, widened=row.get("widened", ""))


def _draw(drawn: random.Random, key: str, among: Sequence[Any]) -> Any:
    return drawn.choice(among) if key == "rank" else drawn.randint(among[0], among[-1])


def healthy_runs() -> list[Run]:
    """Runs in which nothing is wrong, or nothing that stops a job."""
    runs: list[Run] = []
    for row in TABLE["healthy"]:
        story = row.get("story", "hard")
        program = STORIES / story / "train.py" if "story" in row else HERE / row["program"]
        usual = [(args, "") for args in row["args"]]
        harmless = [(TABLE["stories"][story], fault) for fault in row.get("harmless", [])]
        for args, fault in [*usual, *harmless]:
            name = f"{story}/healthy-{1 + sum(run.story == story for run in runs)}"
            kind = f"with {fault.partition(':')[0]}" if fault else args[-1] if story == "hard" else "plain"
            options = tuple(row["options"]) if "options" in row else _options()
            runs.append(Run(name, kind, story, program, tuple(args), fault, options))
    return runs


def _options() -> tuple[str, ...]:
    return tuple(TABLE["options"])


def truth_with(truth: Truth, record: Iterable[Mapping[str, Any]]) -> Truth:
    """The truth, with the ranks and lines that were struck."""
    struck = [event for event in record if event["event"] == "happened"]
    lines = {(Path(event["file"]).name, int(event["line"])) for event in struck if event["file"]}
    return Truth(
        truth.outcomes,
        truth.causes,
        truth.ranks | {event["rank"] for event in struck},
        truth.lines | lines,
        truth.line_rule,
        truth.is_any_rank,
    )
