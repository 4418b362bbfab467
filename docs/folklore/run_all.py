"""Runs all experiments: `python docs/folklore/run_all.py [--quick] [--json]`."""

from __future__ import annotations

import importlib
import json
import sys

from ranks import import_for_ddp, outcome_of, start, tell

NAMES = (
    "expand_to_repeat",
    "longer_timeout",
    "blocking_wait",
    "fewer_workers",
    "p2p_ib_off",
    "more_barriers",
    "find_unused_parameters",
    "retain_graph",
    "no_parameter_broadcast",
)


def main(options: list[str]) -> None:
    """Runs all, and prints what they measured."""
    import_for_ddp()
    results = {}
    at_once = 3 if "--quick" in options else 1  # they mostly wait, but their figures would suffer
    for number in range(0, len(NAMES), at_once):
        experiments = {name: importlib.import_module(name) for name in NAMES[number : number + at_once]}
        started = {name: start(experiment.measure, "--quick" in options) for name, experiment in experiments.items()}
        for name, experiment in experiments.items():
            results[name] = outcome_of(started[name])
            if "--json" not in options:
                tell(experiment.__doc__, results[name])
    if "--json" in options:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
