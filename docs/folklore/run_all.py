"""Runs all experiments: `python docs/folklore/run_all.py [--quick] [--json]`."""

from __future__ import annotations

import importlib
import json
import sys

from ranks import apart, import_for_ddp, tell

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
    for name in NAMES:
        experiment = importlib.import_module(name)
        results[name] = apart(experiment.measure, "--quick" in options)
        if "--json" not in options:
            tell(experiment.__doc__, results[name])
    if "--json" in options:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
