"""What each test costs in CPU seconds, with all processes that it starts: `UNHANG_TEST_COSTS=FILE make test`, then `python -m tests.costs FILE`."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import warm

VARIABLE = "UNHANG_TEST_COSTS"


def used_s() -> float:
    """What this process and all that it has waited for have used by now."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + warm.used_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Appends one line per test to the file."""
    before_s, began = used_s(), time.monotonic()
    try:
        return (yield)
    finally:
        row = {"test": item.nodeid, "cpu_s": used_s() - before_s, "wall_s": time.monotonic() - began}
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.write(json.dumps(row) + "\n")


def main(path: str, shown: int = 60) -> None:
    """Prints the sums by folder and the dearest tests."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    folders: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        folders["/".join(row["test"].split("::")[0].split("/")[1:-1])].append(row["cpu_s"])
    for folder, costs in sorted(folders.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(costs):8.1f} s {len(costs):5d} tests  {folder}")
    print(f"{sum(row['cpu_s'] for row in rows):8.1f} s {len(rows):5d} tests  all")
    for row in sorted(rows, key=lambda row: -row["cpu_s"])[:shown]:
        print(f"{row['cpu_s']:8.2f} s of {row['wall_s']:6.1f} s  {row['test']}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
