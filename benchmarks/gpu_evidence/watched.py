"""The same jobs, started by torchrun as users start them: watched by `unhang run`, and looked at by `unhang attach` while they hang.

The process groups have torch's own limit of ten minutes, so that whoever speaks within seconds is not torch. For each job: the verdict,
whether it is right, and the seconds from the fault to the verdict. Healthy jobs must end with 0, and nothing may be said of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu_evidence.faults import BY_NAME, CULPRIT, FAULTS, Fault
from benchmarks.gpu_evidence.judge import DID_NOT_HAPPEN, RIGHT, WRONG, verdict
from benchmarks.gpu_evidence.ranks import PROGRAM, free_port, inherited, transport, wait_until

RESULTS = Path(__file__).parents[1] / "results" / "gpu_watched.json"
WAYS = ("run", "attach")
TIMEOUT_S = 600.0  # of the process groups: torch's own
SETTLE_S = 6.0  # from the fault until somebody attaches
ATTACH_S = 40.0
ABORT_S = "20"  # what is only suspected is ended, too, so that its report is written


def launched(fault: Fault, folder: Path, given: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The command of torchrun, and its variables."""
    (folder / "marks").mkdir(parents=True)
    (folder / "evidence" / "dumps").mkdir(parents=True)
    job = {
        "place": fault.name,
        "folder": str(folder.resolve()),
        "backend": given.backend,
        "device": given.device,
        "timeout_s": TIMEOUT_S if not fault.is_healthy else 30.0,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(given.ranks)]
    command += ["--master-port", str(free_port()), str(PROGRAM)]
    more = {"GPU_EVIDENCE": json.dumps(job), "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}
    if given.backend == "nccl":
        more |= transport()
    return command, {**inherited(), **more}


def report_in(path: Path) -> dict[str, Any]:
    """What was written; a problem where that is no report."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        return {"problem": str(error)}
    return found


def fault_time(fault: Fault, folder: Path, ranks: int) -> float:
    """When the last rank came to the place; now, where none has."""
    marks = [folder / "marks" / str(rank) for rank in (*fault.culprits, CULPRIT, *range(ranks))]
    return max((mark.stat().st_mtime for mark in marks if mark.exists()), default=time.time())


def run(fault: Fault, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """A job under `unhang run`. Blocks: up to the limit of a job."""
    command, variables = launched(fault, folder, given)
    out = folder / "report.json"
    watched = [sys.executable, "-m", "unhang", "run", "--abort-after", ABORT_S, "--format", "json", "-o", str(out)]
    code = ended_in(
        [*watched, "--report-dir", str(folder / "report"), "--", *command], variables, folder, given.job_limit
    )
    after_s = time.time() - fault_time(fault, folder, given.ranks)
    report = report_in(out)
    hang = report.get("hang") or {}
    return {
        "exit_code": code,
        "after_s": round(after_s, 1),
        "kind": hang.get("kind"),
        "detected_after_s": hang.get("detected_after_s"),
        **judged(fault, given.ranks, report, healthy_is=code == 0),
    }


def attach(fault: Fault, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """A job without us, which `unhang attach` looks at. Blocks: up to the limit of a job."""
    command, variables = launched(fault, folder, given)
    out = folder / "report.json"
    with (folder / "output.txt").open("wb") as output:
        job = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        places = [folder / "marks" / str(rank) for rank in range(given.ranks)]
        wait_until(lambda: all(p.exists() for p in places) or job.poll() is not None, given.job_limit - ATTACH_S)
        time.sleep(0.5 if fault.is_healthy else SETTLE_S)
        if job.poll() is not None:
            return {"result": DID_NOT_HAPPEN, "problem": "it had ended by itself"}
        began = time.monotonic()
        looked = [sys.executable, "-m", "unhang", "attach", str(job.pid), "--format", "json", "-o", str(out)]
        code = ended_in([*looked, "--report-dir", str(folder / "report")], variables, folder, ATTACH_S, "attach.txt")
        took_s = time.monotonic() - began
    finally:
        end_session(job.pid)
        job.wait()
    report = report_in(out)
    return {
        "exit_code": code,
        "took_s": round(took_s, 1),
        **judged(fault, given.ranks, report, healthy_is=code in (0, 3)),
    }


def judged(fault: Fault, ranks: int, report: dict[str, Any], healthy_is: bool) -> dict[str, Any]:
    """The verdict on a report."""
    if "problem" in report:
        return {"result": WRONG, "problem": report["problem"]}
    first = (report.get("findings") or [{}])[0]
    result = verdict(fault.truth(ranks), report)
    place = first.get("location") or {}
    return {
        "result": WRONG if fault.is_healthy and not healthy_is else result,
        "outcome": report.get("outcome"),
        "said": {name: first.get(name) for name in ("rule", "cause", "culprit_ranks", "title") if first},
        "line": f"{Path(str(place.get('file'))).name}:{place.get('line')}" if place else "",
    }


def ended_in(
    command: Sequence[str], variables: dict[str, str], folder: Path, limit_s: float, name: str = "output.txt"
) -> int | None:
    """Its exit code; None where the limit ended it, with all that it had started."""
    with (folder / name).open("ab") as output:
        process = subprocess.Popen(
            command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_session(process.pid)
        process.wait()


def end_session(session: int) -> None:
    """Ends every process of a session that we began."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                os.kill(int(folder.name), signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs and prints a line for each. Returns 1 where one is wrong."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path, help="a new folder")
    options.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS))
    options.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--only", nargs="+", choices=sorted(BY_NAME), metavar="FAULT")
    options.add_argument("--ranks", type=int, choices=(2, 3, 4), default=3)
    options.add_argument("--job-limit", type=float, default=90, help="seconds for one job")
    options.add_argument("--limit", type=float, default=540, help="seconds for everything")
    options.add_argument("--at-once", type=int, default=4)
    options.add_argument("--results", type=Path, default=RESULTS)
    given = options.parse_args(arguments)
    last = time.monotonic() + given.limit

    def one(wanted: tuple[str, Fault]) -> dict[str, Any]:
        way, fault = wanted
        if fault.needs_cuda and given.device != "cuda":
            return {"skipped": "needs a device"}
        if last - time.monotonic() < given.job_limit / 2:
            return {"skipped": "no time left"}
        found = (run if way == "run" else attach)(fault, given.out / way / fault.name, given)
        print(
            f"{way:7}{fault.name:24} {found['result']:15} {found.get('after_s') or found.get('took_s')} s "
            f"{found.get('outcome')} {found.get('kind') or ''} {found.get('said') or found.get('problem', '')} {found.get('line', '')}",
            flush=True,
        )
        return found

    faults = [BY_NAME[name] for name in given.only] if given.only else FAULTS
    wanted = [(way, fault) for fault in faults for way in given.way]
    with ThreadPoolExecutor(given.at_once) as pool:
        rows = {f"{w} {f.name}": row for (w, f), row in zip(wanted, pool.map(one, wanted), strict=True)}
    counts = Counter(str(row.get("result", "skipped")) for row in rows.values())
    print(
        ", ".join(f"{number} {result}" for result, number in sorted(counts.items())), f"of which {counts[RIGHT]} right"
    )
    given.results.write_text(
        json.dumps({"backend": given.backend, "ranks": given.ranks, "jobs": rows}, indent=1) + "\n"
    )
    return int(counts[WRONG] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
