"""What unhang costs a training: every cost line, in one command.

    python benchmarks/record_overhead.py [--only PART ...] [--cycles 60] [--turn 25] [--guards NAME ...]

    null     two equal jobs without anything: what the method itself shows; computing and sleeping
    guards   step time and CPU time of a DDP job with all the guards of docs/guards.md in the script, computing and with a step
             that sleeps (a rank whose device computes), against the same job without
    calls    microseconds per use of each guard
    import   milliseconds of `import unhang`
    run      as guards, for a job under `unhang run` as the hub of a job of several nodes, samples on; only where it is asked for

Without options it takes about twenty minutes; four times the cycles halve the intervals. With `--turn 1` the two jobs change
after every step, and each step begins with cold caches: a bound from above, kept under a name of its own. Each job's and each
part's figures are added to benchmarks/results/record_overhead.json as soon as they are there; ended early by Ctrl-C or SIGTERM,
what the job under way has measured so far is printed and kept too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import call_cost
import step_program
import twins

RESULTS = twins.HERE / "results" / "record_overhead.json"
PARTS = ("null", "guards", "calls", "import", "run")
BY_DEFAULT = PARTS[:4]
JOBS = {
    "null": [("null", False), ("null", True)],
    "run": [("run", False), ("run", True)],
    "guards": [("guards", False), ("guards", True)],
}
WORDS = {"null": "null run: nothing on either side", "run": "under `unhang run --join`", "guards": "with all guards"}
# What was promised, and the unit of it.
RATIO_GOAL = 1.01
GOALS = {
    "align": 100.0,
    "heartbeat step": 2.0,
    "and all names, after torch": 30.0,
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


def measure_jobs(part: str, given: argparse.Namespace, kept: dict[str, Any], cut: threading.Event) -> None:
    """The twins of one part; adds what is found to the results after each job."""
    for what, sleeps in JOBS[part]:
        if cut.is_set():
            return
        guards = given.guards if what == "guards" else []
        kind = "a step that sleeps" if sleeps else "a step that computes on one thread per rank"
        of = twins.measure(given.cycles, what, sleeps, guards, cut.is_set, given.turn)
        if not of:
            print(f"{WORDS[what]}, {kind}: cut off before the first two cycles were measured")
            continue
        turns = ", turns of one step" if given.turn == 1 else ""
        kind_of_step = f"{', sleeping' if sleeps else ''}{turns}"
        kept.setdefault(part, {})[f"{' '.join(guards) or what}{kind_of_step}"] = of
        save(kept)
        words = f"with {', '.join(guards)}" if guards else WORDS[what]
        print(f"{words}; {twins.RANKS} ranks, {kind}, {of['step_ms']['median']:.1f} ms without{turns}")
        null_ratio = kept.get("null", {}).get(f"null{kind_of_step}", {}).get("ratio")
        line("step time, ratio", of["ratio"], "", "" if what == "null" else ratio_verdict(of["ratio"], null_ratio))
        line("step time, ratio of whole cycles", of["cycle_ratio"], "")
        line("CPU time of a rank, ratio", of["cpu_ratio"], "")
        line("CPU time of a rank, more per step", of["extra_cpu_us"], "us")
        line("small all_reduce, more per call", of["extra_us"], "us")
        if "own_cpu_share" in of:
            print(f"  our own processes: {of['own_cpu_share']['median']:.2%} of one core")


def measure_calls() -> dict[str, Any]:
    """Microseconds per use."""
    apart = {f"{name}, machines apart": values for name, values in call_cost.exchanged(4, True).items() if "al" in name}
    found = {**call_cost.alone(), **call_cost.exchanged(8), **apart}
    kept = {name: twins.summary(values) for name, values in found.items() if "all_reduce, m" not in name}
    print(
        f"one use of a guard; align beside a bare loader, together and assert_same beside an all_reduce, {twins.RANKS} ranks on "
        "one machine; machines apart: as if each rank had its own, so that align goes over a group"
    )
    for name, summed in kept.items():
        line(name, summed, "us", verdict(*summed["interval"], GOALS[name]) if name in GOALS else "")
    return kept


def measure_import() -> dict[str, Any]:
    """Milliseconds of the import."""
    kept = {name: twins.summary(values) for name, values in call_cost.imports(rounds=5).items()}
    print("import of unhang, and of every public name of it")
    for name, summed in kept.items():
        line(name, summed, "ms", verdict(*summed["interval"], GOALS[name]) if name in GOALS else "")
    return kept


def save(kept: dict[str, Any]) -> None:
    """Writes the results, in one piece."""
    RESULTS.parent.mkdir(exist_ok=True)
    unfinished = RESULTS.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(kept, indent=1) + "\n")
    unfinished.replace(RESULTS)


def main() -> None:
    """Prints the figures and writes them to benchmarks/results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(BY_DEFAULT))
    options.add_argument("--cycles", type=int, default=60, help="of 100 steps, for each job (default 60)")
    options.add_argument(
        "--turn", type=int, choices=(1, 25), default=twins.PER_TURN, help="steps until the other job goes on"
    )
    options.add_argument("--guards", nargs="+", choices=step_program.GUARDS, default=[], help="those of part guards")
    given = options.parse_args()
    cut = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: cut.set())
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    measure_alone: dict[str, Callable[[], dict[str, Any]]] = {"calls": measure_calls, "import": measure_import}
    for part in given.only:
        if cut.is_set():
            return
        kept.setdefault(part, {})["load_before"] = os.getloadavg()[0]
        if part in measure_alone:
            kept[part] |= measure_alone[part]()
            save(kept)
        else:
            measure_jobs(part, given, kept, cut)


if __name__ == "__main__":
    main()
