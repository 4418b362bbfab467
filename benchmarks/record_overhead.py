"""What unhang costs a training: every cost line, in one command.

    python benchmarks/record_overhead.py [--only PART ...] [--pairs 100]

    run      step time and CPU time of a DDP job under `unhang run`, against the same job without
    guards   the same with all the guards of docs/guards.md in the script, computing and with a step that sleeps (a rank whose
             device computes), against the same job without
    null     both jobs without anything: what the method itself shows; computing and sleeping
    calls    microseconds per use of each guard
    import   milliseconds of `import unhang`

Each part adds its figures to benchmarks/results/record_overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import call_cost
import twins

RESULTS = twins.HERE / "results" / "record_overhead.json"
PARTS = ("null", "run", "guards", "calls", "import")
JOBS = {
    "null": [("null", False), ("null", True)],
    "run": [("run", False)],
    "guards": [("guards", False), ("guards", True)],
}
WORDS = {"null": "null run: nothing on either side", "run": "under `unhang run`", "guards": "with all guards"}
# What was promised, and the unit of it.
RATIO_GOAL = 1.01
GOALS = {
    "align": 100.0,
    "heartbeat step": 2.0,
    "and all names, after torch": 30.0,
    "and all names, without torch": 30.0,
}


def verdict(low: float, high: float, goal: float) -> str:
    """The goal, and whether it is met: by the whole interval, or it is not settled."""
    return f"goal <= {goal:g}: {'met' if high <= goal else 'missed' if low > goal else 'not settled'}"


def ratio_verdict(found: dict[str, Any], null: dict[str, Any] | None) -> str:
    """As `verdict`, where the null run shows that the method can tell a difference as small as the goal."""
    if null is None:
        return f"goal <= {RATIO_GOAL:g}: not settled, there is no null run"
    low, high = null["interval"]
    if low < 2 - RATIO_GOAL or high > RATIO_GOAL:
        return f"goal <= {RATIO_GOAL:g}: not settled, the null run shows {null['median']:.3f} ({low:.3f} to {high:.3f})"
    return verdict(*found["interval"], RATIO_GOAL)


def line(label: str, found: dict[str, Any], unit: str, judged: str = "") -> None:
    """Prints one figure with what it is worth."""
    middle, (low, high), (lower, upper) = found["median"], found["interval"], found["quartiles"]
    print(
        f"  {label:<34}{middle:9.4g} {unit:<3} 95 % {low:.4g} to {high:.4g}, quartiles {lower:.4g} to {upper:.4g}, "
        f"n={found['n']}   {judged}".rstrip(),
        flush=True,
    )


def measure_jobs(part: str, pairs: int, null: dict[str, Any]) -> dict[str, Any]:
    """The twins of one part."""
    kept = {}
    for what, sleeps in JOBS[part]:
        name = f"{what}, sleeping" if sleeps else what
        found = twins.measure(pairs + twins.WARM_UP + 1, what, sleeps)
        kept[name] = {key: twins.summary(values) for key, values in found.items() if len(values) > 1}
        of = kept[name]
        kind = "a step that sleeps" if sleeps else "a step that computes on one thread per rank"
        print(f"{WORDS[what]}; {twins.RANKS} ranks, {kind}, {of['step_ms']['median']:.1f} ms without")
        null_ratio = null.get("null, sleeping" if sleeps else "null", {}).get("ratio")
        line("step time, ratio", of["ratio"], "", "" if what == "null" else ratio_verdict(of["ratio"], null_ratio))
        line("CPU time of a rank, ratio", of["cpu_ratio"], "")
        line("CPU time of a rank, more per step", of["extra_cpu_us"], "us")
        line("small all_reduce, more per call", of["extra_us"], "us")
        if "own_cpu_share" in of:
            line("one core, by our own processes", of["own_cpu_share"], "")
    return kept


def measure_calls() -> dict[str, Any]:
    """Microseconds per use."""
    found = {**call_cost.alone(), **call_cost.exchanged(blocks=12)}
    kept = {name: twins.summary(values) for name, values in found.items()}
    print(
        f"one use of a guard; align beside a bare loader, together and assert_same beside an all_reduce, {twins.RANKS} ranks"
    )
    for name, summed in kept.items():
        line(name, summed, "us", verdict(*summed["interval"], GOALS[name]) if name in GOALS else "")
    return kept


def measure_import() -> dict[str, Any]:
    """Milliseconds of the import."""
    kept = {name: twins.summary(values) for name, values in call_cost.imports(rounds=9).items()}
    print("import of unhang, and of every public name of it")
    for name, summed in kept.items():
        line(name, summed, "ms", verdict(*summed["interval"], GOALS[name]) if name in GOALS else "")
    return kept


def main() -> None:
    """Prints the figures and writes them to benchmarks/results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--pairs", type=int, default=100, help="of blocks, for each job (default 100)")
    given = options.parse_args()
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    measure_alone = {"calls": measure_calls, "import": measure_import}
    for part in given.only:
        load = os.getloadavg()[0]
        found = (
            measure_alone[part]() if part in measure_alone else measure_jobs(part, given.pairs, kept.get("null", {}))
        )
        kept[part] = {"load_before": load, **found}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
