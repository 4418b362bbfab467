"""Every job of the table, judged from what it left behind: the rank, the line and the cause are named, and nobody of the healthy ones."""

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from .faults import Case
from .harness import check_fault, check_healthy
from .recordings import CASES, judged, unpacked

SCHEMA = jsonschema.Draft202012Validator(
    json.loads(resources.files("unhang.show").joinpath("report.schema.json").read_text())
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_the_verdict_is_right(case: Case, recorded: Path) -> None:
    result = judged(recorded, case)
    SCHEMA.validate(result.report)
    if case.outcome == "clean":
        check_healthy(result, case)
    else:
        check_fault(case, result)


SAYS = {
    "one_rank_twice": "both run as rank 1",
    "key_not_set": "it had set 5 keys like it before",
    "waits_in_finally": "ValueError: sample 1234 is corrupt",
    "waits_in_exit": "KeyError: 'labels'",
    "saves_in_a_framework": "left out barrier() of _save (loops.py:31)",
    "logs_in_a_framework": "skipped the all_reduce of ranks 0, 2, 3: logs_in_a_framework.py:19 runs only if `loss == loss`",
    "late_for_monitored_barrier": "monitored_barrier #1 of default_pg",
}


@pytest.mark.parametrize("name", SAYS)
def test_what_it_says(name: str, recorded: Path) -> None:
    first = judged(recorded, CASES[name]).report["findings"][0]
    assert SAYS[name] in json.dumps(first), first
    assert "Trainer().fit" not in json.dumps(first["fixes"])
