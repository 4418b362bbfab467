from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.show.cases import SAMPLES, crash, hang
from tests.unit.show.odd_cases import HOSTILE, hostile
from unhang.model import CAUSES, Outcome
from unhang.show.verdict import to_json

KEYS: dict[str, list[str]] = {
    "": ["schema", "outcome", "job", "hang", "findings", "outcomes", "inventory", "notes", "verdict"],
    "job": ["world_size", "nodes", "command", "backend", "torch_version", "exit_code"],
    "hang": ["kind", "onset_s", "detected_after_s", "waiting_ranks"],
    "finding": [
        "id", "rule", "cause", "title", "confidence", "culprit_ranks", "victim_ranks", "process_group", "collective",
        "location", "because", "evidence", "fixes", "consequence_of",
    ],
    "location": ["file", "line", "function"],
    "evidence": ["source", "line", "text"],
    "outcome": ["rule", "verdict", "reason"],
    "inventory": ["present", "absent"],
    "absent": ["what", "reason"],
}  # fmt: skip


def report(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(to_json(SAMPLES[name]().diagnosis))
    return loaded


def test_the_frozen_keys_stand_in_their_order() -> None:
    whole = report("hang")
    first = whole["findings"][0]
    assert list(whole) == KEYS[""]
    assert whole["schema"] == "unhang.report/1"
    assert list(whole["job"]) == KEYS["job"]
    assert list(whole["hang"]) == KEYS["hang"]
    assert list(first) == KEYS["finding"]
    assert list(first["location"]) == KEYS["location"]
    assert list(first["evidence"][0]) == KEYS["evidence"]
    assert list(whole["outcomes"][0]) == KEYS["outcome"]
    assert list(whole["inventory"]) == KEYS["inventory"]
    assert list(whole["inventory"]["absent"][0]) == KEYS["absent"]
    assert [list(fix)[:3] for fix in first["fixes"]] == [["title", "patch", "verify"], ["title", "setting", "verify"]]
    assert first["process_group"] == {"pg_name": "0", "pg_desc": "default_pg"}
    assert first["collective"]["op"] == "all_reduce"


@pytest.mark.parametrize("name", SAMPLES)
def test_values_are_of_the_contract(name: str) -> None:
    whole = report(name)
    assert whole["outcome"] == ("hang" if name == "cycle" else name)
    assert [f["id"] for f in whole["findings"]] == [f"F{i + 1}" for i in range(len(whole["findings"]))]
    assert all(f["cause"] in CAUSES for f in whole["findings"])
    assert {o["verdict"] for o in whole["outcomes"]} <= {"pass", "fail", "skipped", "error"}
    assert (whole["hang"] is None) == (name not in ("hang", "cycle"))


def test_the_same_diagnosis_gives_the_same_bytes() -> None:
    assert to_json(hang().diagnosis) == to_json(hang().diagnosis)


def test_rank_lists_take_one_line() -> None:
    assert b'"victim_ranks": [1, 2, 3]' in to_json(hang().diagnosis)


def test_foreign_text_comes_back_as_it_was() -> None:
    text = HOSTILE + "\udcff [\n  1,\n  2\n]"
    sample = hostile().diagnosis
    loaded = json.loads(to_json(replace(sample, notes=(text,))))
    assert loaded["notes"] == [text]


def test_numpy_numbers_and_nan_become_json() -> None:
    sample = hang().diagnosis
    odd = {"op": "all_reduce", "seq": np.int64(5), "rate": float("nan"), "sizes": ((np.int32(2), 3),), "group": {2, 1}}
    loaded = json.loads(to_json(replace(sample, findings=(replace(sample.findings[0], collective=odd),))))
    expected = {"op": "all_reduce", "seq": 5, "rate": None, "sizes": [[2, 3]], "group": [1, 2]}
    assert loaded["findings"][0]["collective"] == expected


def test_a_job_that_ended_well_and_did_wrong_is_no_clean_verdict() -> None:
    diagnosis = crash().diagnosis
    wrong = replace(diagnosis, outcome=Outcome.CLEAN)
    said = json.loads(to_json(wrong))
    assert (said["outcome"], said["verdict"]) == ("clean", "wrong")
    assert json.loads(to_json(replace(wrong, findings=())))["verdict"] == "clean"
    assert json.loads(to_json(diagnosis))["verdict"] == "crash"
