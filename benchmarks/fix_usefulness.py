"""Would the first fix mend the fault, if done as written? Judged by hand, for the jobs of the blind rounds; this lays the sheet out and counts.

    python benchmarks/blind_jobs.py ROUND --keep KEPT      # runs the jobs and keeps their reports
    python benchmarks/fix_usefulness.py ROUND KEPT         # each fault: the truth, what was said, and its first fix

The judgements stand in results/fix_usefulness.json: `mends` for each job, and in one line why. A fix counts only as the report writes it: a
hint at the right place is none. A job whose cause was not found counts as not mended. A fault whose report has changed since it was judged
is listed: the first fix is kept with each judgement.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "fix_usefulness.json"


def first_fix(report: dict[str, Any]) -> str:
    """The first fix of the first finding as its text; empty where there is none."""
    fixes = (report.get("findings") or [{}])[0].get("fixes") or ()
    shown = [fixes[0].get(part) for part in ("title", "patch", "advice", "command", "setting")] if fixes else []
    return "\n".join(filter(None, shown))


def sheet(programs: Path, kept: Path) -> dict[str, dict[str, str]]:
    """By job: the truth with its own fix, what was said, and the first fix."""
    found = {}
    for path in sorted(programs.glob("*/truth.json")):
        truth, report = json.loads(path.read_text()), kept / path.parent.name / "report.json"
        if truth["outcome"] == "healthy":
            continue
        said = json.loads(report.read_text()) if report.exists() else {}
        title = (said.get("findings") or [{"title": "nothing"}])[0]["title"]
        right = f"{truth['cause']}, ranks {truth['ranks']}, {truth['file']}:{truth['lines']}: {truth.get('fix', '')}"
        found[path.parent.name] = {"truth": right, "said": title, "fix": first_fix(said)}
    return found


def main() -> None:
    """Prints the sheet of a round beside the judgements, and how many fixes mend their fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path)
    parser.add_argument("kept", type=Path)
    given = parser.parse_args()
    judged = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = sheet(given.programs, given.kept)
    for name, row in rows.items():
        mine = judged.get(name, {})
        state = "not judged yet" if not mine else "mends" if mine["mends"] else "does not mend"
        changed = " (judged by another text)" if mine and mine["fix"] != row["fix"].partition("\n")[0] else ""
        print(f"{name}: {state}{changed} {mine.get('why', '')}\n  truth {row['truth']}\n  said  {row['said']}")
        print("\n".join(f"    {line}" for line in row["fix"].splitlines()) + "\n")
    mended = sum(bool(judged.get(name, {}).get("mends")) for name in rows)
    print(
        f"the first fix mends {mended} of {len(rows)}; of all that were judged {sum(j['mends'] for j in judged.values())} of {len(judged)}"
    )


if __name__ == "__main__":
    main()
