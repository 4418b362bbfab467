"""Programs that nobody here had seen, each with a fault or healthy: how often the first answer is strictly right.

A folder of programs, each with a `truth.json`: launch (a command for the program's folder), outcome (hang, crash, healthy), cause, ranks, file,
lines. Strictly right is an answer with the right outcome, cause, ranks and line; a healthy job has to be clean. A suspected hang is ended
after some seconds, so that each job has an end; that is the only option given. `--one-device`: the ranks share one GPU, each as a host of
its own, on which NCCL insists. "passed" is the outcome of a job that NCCL lets pass although its calls do not fit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu_evidence.ranks import transport
from benchmarks.hangbench.jobs import run_limited, work_folder
from benchmarks.hangbench.score import HIT, Said, Score, Truth, said_in, score_fault, score_healthy, share

RESULTS = Path(__file__).parent / "results" / "blind_jobs.json"
ENDED_AFTER_S = 20.0
LIMIT_S = 150.0
# Read by each rank as Python starts: NCCL refuses two ranks of one host on the same device.
ONE_DEVICE = (
    "import os\nif (rank := os.environ.get('RANK')) is not None:\n    os.environ['NCCL_HOSTID'] = f'host-{rank}'\n"
)


def truths_of(given: Mapping[str, Any], world: int) -> list[Truth]:
    """What is right to say of a program. Where no one rank is to blame (null), nobody may be named, or all."""
    also = given.get("also_acceptable") or {}
    files = [(given["file"], given["lines"]), *also.get("file_lines", {}).items()] if given.get("file") else []
    lines = frozenset((Path(file).name, line) for file, numbers in files for line in numbers or ())
    blamed = [given["ranks"], *also.get("ranks", ())]
    ranks = {frozenset(x) for named in blamed for x in ((named,) if named is not None else ((), range(world)))}
    causes = (given["cause"], *also.get("causes", ()), *filter(None, (also.get("cause"),)))
    outcome = "clean" if given["outcome"] == "passed" else given["outcome"]
    return [Truth((outcome,), causes, r, lines, "required" if lines else "any") for r in ranks]


def score_of(given: Mapping[str, Any], said: Said, exit_code: int | None, world: int) -> Score:
    """The best of what the truth allows."""
    if given["outcome"] == "healthy":
        return score_healthy(said)
    scores = [score_fault(truth, said, exit_code) for truth in truths_of(given, world)]
    return max(scores, key=lambda x: (x.result == HIT, x.ranks, x.cause, x.line))


def one_device(folder: Path) -> dict[str, str]:
    """The variables with which ranks share a device."""
    (folder / "sitecustomize.py").write_text(ONE_DEVICE)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**transport(), "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}


def run_one(program: Path, python: str, keep: Path | None, on_one_device: bool = False) -> dict[str, Any]:
    """Runs a program under `unhang run` in a copy of its folder, and scores the report."""
    given = json.loads((program / "truth.json").read_text())
    with work_folder(keep / program.name if keep else None) as folder:
        shutil.copytree(program, folder / "job", ignore=shutil.ignore_patterns("truth.json", "__pycache__"))
        job = [python if word == "python" else word for word in given["launch"]]
        watch = [
            python,
            "-m",
            "unhang",
            "run",
            "--abort-after",
            str(ENDED_AFTER_S),
            "--report-dir",
            str(folder / "report"),
        ]
        more = one_device(folder) if on_one_device else None
        done = run_limited([*watch, "--", *job], folder / "job", LIMIT_S, more)
        path = folder / "report" / "report.json"
        report = json.loads(path.read_text()) if path.exists() else {}
        if keep is not None and path.exists():
            (folder / "report" / "screen.txt").write_text(done.output)
    said, world = said_in(report), int((report.get("job") or {}).get("world_size") or 0)
    score = score_of(given, said, done.exit_code, world)
    parts = [name for name in ("outcome", "cause", "ranks", "line") if not getattr(score, name)]
    return {
        "program": program.name, "truth": [given["outcome"], given["cause"], given["ranks"], given.get("lines")],
        "said": [said.outcome, said.cause, sorted(said.ranks), list(said.line or ()), said.title[:160]],
        "result": score.result, "not_right": parts, "exit_code": done.exit_code, "seconds": round(done.seconds, 1),
    }  # fmt: skip


def main() -> None:
    """Runs all programs of a folder, prints each and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="parts of names, with commas")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the jobs")
    parser.add_argument("--at-once", type=int, default=1, help="jobs at the same time")
    parser.add_argument("--one-device", action="store_true", help="the ranks share one GPU, on NCCL")
    parser.add_argument("--keep", type=Path, help="keep the reports in this folder")
    parser.add_argument("--round", help="keep the score in results/blind_jobs.json: before any change!")
    given = parser.parse_args()
    wanted = [part for part in given.only.split(",") if part]
    programs = [p.parent for p in sorted(given.folder.glob("*/truth.json"))]
    chosen = [p for p in programs if not wanted or any(part in p.name for part in wanted)]
    rows = []
    with ThreadPoolExecutor(given.at_once) as pool:
        for row in pool.map(lambda p: run_one(p, given.python, given.keep, given.one_device), chosen):
            rows.append(row)
            print(
                f"{row['program']:24} {row['result']:17} {','.join(row['not_right'])}\n    truth {row['truth']}\n    said  {row['said']}",
                flush=True,
            )
    faults = [r for r in rows if r["truth"][0] != "healthy"]
    healthy = [r for r in rows if r["truth"][0] == "healthy"]
    summary = {
        "strict": f"{sum(r['result'] == HIT for r in faults)} of {len(faults)}",
        "clean": f"{sum(r['result'] == HIT for r in healthy)} of {len(healthy)}",
        "accused": sum(bool(r["said"][1]) for r in healthy),
        **Counter(r["result"] for r in faults),
    }
    print(f"\nstrictly right {share(sum(r['result'] == HIT for r in faults), len(faults))}")
    print(json.dumps(summary))
    if given.round:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**kept, given.round: {"score": summary, "jobs": rows}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
