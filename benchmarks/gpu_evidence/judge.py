"""What `unhang diagnose` says of each job of a set, and whether that is right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RIGHT, ABSTAINS, WRONG, DID_NOT_HAPPEN = "right", "abstains", "wrong", "did not happen"
LIMIT_S = 60


def verdict(truth: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """RIGHT: cause and ranks. WRONG: another cause, or a rank that is not to blame. ABSTAINS: neither is claimed.

    Where the truth is "none", any finding is WRONG; where it is "unknown", so is only a rank that is not to blame.
    """
    findings = report.get("findings") or []
    said = findings[0] if findings else {"cause": "unknown", "culprit_ranks": ()}
    if truth["cause"] == "none":
        return WRONG if findings else RIGHT
    blamed, culprits = set(said["culprit_ranks"]), set(truth["culprit_ranks"])
    known = {truth["cause"], *truth["also_right"]}
    if truth["either_rank"]:
        return ABSTAINS if said["cause"] == "unknown" else RIGHT if said["cause"] in known else WRONG
    if blamed - culprits or (said["cause"] not in known and said["cause"] != "unknown"):
        return WRONG
    return RIGHT if blamed == culprits and said["cause"] in known else ABSTAINS


def diagnose(folder: Path) -> dict[str, Any]:
    """Asks `unhang diagnose` about the evidence of a job, and keeps its report beside. Blocks: up to LIMIT_S."""
    command = [sys.executable, "-m", "unhang", "diagnose", "--no-cache", "--format", "json"]
    done = subprocess.run([*command, str(folder / "evidence")], capture_output=True, timeout=LIMIT_S, check=False)
    (folder / "report.json").write_bytes(done.stdout)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"problem": done.stderr.decode("utf-8", "replace").strip()[-300:]}
    return report


def judged(folder: Path) -> dict[str, object]:
    """The verdict on a job of the set, with what was said."""
    truth = json.loads((folder / "truth.json").read_text())
    outcome = json.loads((folder / "outcome.json").read_text())
    report = diagnose(folder)
    first = (report.get("findings") or [{}])[0]
    said = {name: first.get(name) for name in ("rule", "cause", "culprit_ranks", "title")} if first else {}
    result = verdict(truth, report) if outcome["happened"] else DID_NOT_HAPPEN
    problem = {"problem": report["problem"]} if "problem" in report else {}
    return {"result": result, "outcome": report.get("outcome"), "said": said, **problem}
