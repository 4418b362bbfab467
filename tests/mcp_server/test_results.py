"""Results in few words."""

from __future__ import annotations

import json
from typing import Any

from unhang.mcp_server import Size, fitted, of_report, shortened

FINDING: dict[str, Any] = {
    "id": "F1", "rule": "r", "cause": "code-divergence", "title": "rank 0 called alone", "confidence": 0.9, "culprit_ranks": [0],
    "victim_ranks": [1, 2, 3], "location": {"file": "train.py", "line": 3, "function": "main"}, "because": "w" * 2000,
    "evidence": [{"source": "rank 0 calls", "line": None, "text": f"#{i}"} for i in range(50)],
    "fixes": [{"title": "Does not help: waiting", "verify": "-"}, {"title": "Let all call", "patch": "p", "verify": "run"}],
    "consequence_of": None,
}  # fmt: skip
REPORT = {
    "outcome": "hang", "job": {"world_size": 4}, "hang": {"kind": "proven"}, "findings": [FINDING, {**FINDING, "consequence_of": "F1"}],
    "outcomes": [{"rule": str(i), "verdict": "pass"} for i in range(100)],
    "inventory": {"absent": [{"what": "dumps", "reason": "none were written"}]}, "notes": [],
}  # fmt: skip


def test_a_report_in_few_words() -> None:
    found = fitted(REPORT, of_report, 8000)
    (finding,) = found["findings"]
    assert (finding["culprits"], finding["victims"], finding["place"]) == ("rank 0", "ranks 1-3", "train.py:3 in main")
    assert finding["fix"] == {"title": "Let all call", "patch": "p", "verify": "run"}
    assert found["consequences"] == ["rank 0 called alone"]
    assert "outcomes" not in found
    assert "missing_evidence" not in found  # a cause is named


def test_without_a_finding_it_says_what_is_missing() -> None:
    assert fitted({**REPORT, "findings": []}, of_report, 8000)["missing_evidence"] == ["dumps: none were written"]


def test_it_fits() -> None:
    many = {**REPORT, "findings": [FINDING] * 40}
    for most in (1500, 4000, 8000):
        assert len(json.dumps(fitted(many, of_report, most))) <= most


def test_what_is_left_out_is_counted() -> None:
    assert shortened(["abcdef", "b", "c"], Size(4, 2)) == ["abcd ... (2 more characters)", "b", "... 1 more"]
    assert shortened({"a": 0, "b": "", "c": [], "d": None, "e": False}, Size(4, 2)) == {"a": 0, "e": False}
