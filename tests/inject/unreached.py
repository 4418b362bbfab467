"""Prints the rules that no fault reaches: `python -m tests.inject.unreached`."""

from __future__ import annotations

from unhang.inside.inject import FAULTS
from unhang.rules.registry import all_rules


def unreached_rules() -> list[str]:
    """The ids of the rules that no fault names."""
    named = {rule for fault in FAULTS.values() for rule in fault.found_by}
    return [rule.id for rule in all_rules() if rule.id not in named]


if __name__ == "__main__":
    print("\n".join(unreached_rules()))
