"""Tries the wheel on versions of Python and torch: real jobs of two ranks on gloo, from environments that hold nothing else.

For each row an environment is made, or taken where it lies in --folder from an earlier run. In it the wheel is installed, and

* healthy   a job runs under `unhang run`: exit code 0, its output complete, the outcome clean;
* hang      rank 0 alone calls all_reduce: exit code 124, rank 0 and its line are named;
* dead      rank 1 leaves with exit code 0, and rank 0 waits for it: rank 1 is named;
* attach    the hang again, started without unhang and looked at from outside: both lines are shown, and rank 1 is not accused
            (of two ranks that differ, stacks alone do not tell which is wrong);
* diagnose  the newest report, judged again.

Usage: python benchmarks/versions.py --folder FOLDER [--rows 3.12.1:2.7.1,...] (FOLDER gets 5 GB for each row, and keeps it; `python3.12` is looked
for on PATH and among pyenv's versions)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "reference" / "versions.md"
ROWS = "3.12.1:2.4.1,3.12.1:2.7.1,3.13.0:2.10.0,3.11.7:2.13.0,3.13.0:2.15.0"
PARTS = ("healthy", "hang", "dead", "attach", "diagnose")
LIMIT_S = 120 * max(1.0, os.getloadavg()[0] / (4 * (os.cpu_count() or 1)))  # a busy machine is slow
JOB = """import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def evaluate(loss):
    dist.all_reduce(loss)

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
open(f"arrived-{rank}", "w").close()
if dist.get_rank() == 0 and sys.argv[1] == "hang":
    evaluate(torch.ones(3))
if sys.argv[1] == "dead" and rank == 1:
    sys.exit(0)
dist.barrier()
print(f"rank {rank} is done")
dist.destroy_process_group()
"""
LINE = 7  # of the all_reduce that rank 0 makes alone


def interpreter(version: str) -> str:
    """The path of a Python of this version: pyenv's, or pythonX.Y."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions" / version / "bin" / "python"
    found = str(pyenv) if pyenv.exists() else shutil.which(f"python{'.'.join(version.split('.')[:2])}")
    if found is None:
        sys.exit(f"there is no Python {version} here")
    return found


def environment(folder: Path, python: str, torch: str, wheel: Path) -> Path:
    """The interpreter of an environment with torch and the wheel."""
    venv = folder / f"py{python}-torch{torch}"
    own = venv / "bin" / "python"
    if not own.exists():
        subprocess.run([interpreter(python), "-m", "venv", venv], check=True)
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([own, "-c", "import torch"], capture_output=True).returncode:
        numpy = "numpy<2" if torch.startswith("2.4") else "numpy"
        subprocess.run([*pip, numpy, "setuptools", "packaging", "py-spy", f"torch=={torch}"], check=True)
    subprocess.run([*pip, wheel], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
    return own


class Trial:
    """One row: a Python with torch and the wheel, and a folder for its jobs. `why`: what went wrong in the last part."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder, self.why = python, folder, ""
        (folder / "train.py").write_text(JOB)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "UNHANG", "PYENV"))}
        self.environ: Mapping[str, str] = {**kept, "OMP_NUM_THREADS": "1", "PATH": f"{python.parent}:{kept['PATH']}"}

    def unhang(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the installed command."""
        command = [self.python.parent / "unhang", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=LIMIT_S
        )

    def job(self, what: str) -> list[str]:
        """The command line of the job."""
        return [str(self.python.parent / "torchrun"), "--standalone", "--nproc-per-node", "2", "train.py", what]

    def watched(self, what: str) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
        """A job under `unhang run`, and its report."""
        folder = self.folder / what
        done = self.unhang("run", "--report-dir", str(folder), "--", *self.job(what))
        report = folder / "report.json"
        return done, json.loads(report.read_bytes()) if report.exists() else {}

    def names(self, report: Mapping[str, object], rank: int, place: str) -> bool:
        """Whether the first finding names this rank alone, and the report the place."""
        findings = report.get("findings") or [{}]
        first = findings[0]  # type: ignore[index]
        self.why = f"{report.get('outcome')}: {first.get('rule')} {first.get('culprit_ranks')}: {first.get('title')}"
        return first.get("culprit_ranks") == [rank] and place in json.dumps(report)

    def healthy(self) -> bool:
        """A job without a fault."""
        done, report = self.watched("healthy")
        self.why = f"exit code {done.returncode}, {report.get('outcome')}: {done.stderr[-500:]}"
        said = all(f"rank {rank} is done" in done.stdout for rank in (0, 1))
        return done.returncode == 0 and said and report.get("outcome") == "clean" and not report.get("findings")

    def hang(self) -> bool:
        """Rank 0 calls alone."""
        done, report = self.watched("hang")
        return self.names(report, 0, f"train.py:{LINE}") and done.returncode == 124

    def dead(self) -> bool:
        """Rank 1 is gone."""
        return self.names(self.watched("dead")[1], 1, "train.py")

    def attach(self) -> bool:
        """The hang, from outside."""
        for path in self.folder.glob("arrived-*"):
            path.unlink()
        job = subprocess.Popen(
            self.job("hang"),
            cwd=self.folder,
            env=self.environ,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + LIMIT_S
            while len(list(self.folder.glob("arrived-*"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.5)
            time.sleep(5)  # both ranks stand now
            done = self.unhang("attach", str(job.pid), "--format", "json", "--report-dir", "attached")
            report = json.loads(done.stdout or "{}")
            is_named = self.names(report, 0, f"train.py:{LINE}")
            accused = [rank for finding in report.get("findings", ()) for rank in finding["culprit_ranks"]]
            return is_named or (not accused and f"train.py:{LINE}" in json.dumps(report["findings"]))
        finally:
            job.terminate()  # torchrun ends its ranks, which have sessions of their own
            job.wait(60)

    def diagnose(self) -> bool:
        """The report of the hang once more."""
        done = self.unhang("diagnose", "hang", "--format", "json")
        return done.returncode == 1 and self.names(json.loads(done.stdout or "{}"), 0, f"train.py:{LINE}")


def tried(python: Path) -> dict[str, str]:
    """Part -> "ok", or what went wrong."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="unhang-versions-") as folder:
        trial = Trial(python, Path(folder))
        for part in PARTS:
            began = time.monotonic()
            if part == "diagnose" and not (trial.folder / "hang" / "report.json").exists():
                found[part] = "-"  # the hang was not ended, and left none
                continue
            try:
                is_good = getattr(trial, part)()
            except subprocess.TimeoutExpired:
                is_good, trial.why = False, f"it went on for {LIMIT_S:.0f} s"
            except (OSError, ValueError, KeyError) as error:
                is_good, trial.why = False, f"{type(error).__name__}: {error}"
            found[part] = "ok" if is_good else f"no: {trial.why.replace(folder, '.')[:300]}"
            print(f"  {part:9} {time.monotonic() - began:5.0f} s  {found[part]}", flush=True)
    return found


def page(rows: Mapping[str, Mapping[str, str]]) -> str:
    """The table as a page."""
    lines = [
        "# Versions",
        "",
        "For each row the wheel was installed into its own environment, and real jobs of two ranks ran on gloo.",
        "`healthy`: nothing is reported. `hang`: rank 0 alone calls all_reduce, and the hang is proven. `dead`: rank 1 has died.",
        "`attach`: the hang, from outside. `diagnose`: its report, judged again. A part is `ok` if the right rank and place are named,",
        "and nobody else; for `attach`, if both lines are shown: if two ranks differ, stacks alone do not show which one is wrong. `-`: not tested.",
        "",
        "torch 2.7 and older keep no record of gloo's calls. There `unhang run` asks each rank in which call its threads wait, and what",
        "number the group gives it. That proves a wrong call; calls from C++ (DDP's own), and groups with sends, receives or a",
        "`monitored_barrier`, stay without a record. A hang in these is suspected only, and the job goes on unless `--abort-after` is set.",
        "",
        "| Python | torch | " + " | ".join(PARTS) + " |",
        "|---|---|" + "---|" * len(PARTS),
    ]
    for row, parts in sorted(rows.items(), key=lambda item: [int(n) for n in item[0].split(":")[1].split(".")]):
        cells = ({"ok": "ok", "-": "-"}.get(parts[part], "**no**") for part in PARTS)
        lines.append(f"| {' | '.join(row.split(':'))} | {' | '.join(cells)} |")
    lines += ["", "To repeat it: `python benchmarks/versions.py --folder FOLDER`.", ""]
    return "\n".join(lines)


def main() -> None:
    """Tries the rows, prints what came out, and writes results and page."""
    options = argparse.ArgumentParser()
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--rows", default=ROWS)
    given = options.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    built = given.folder / "wheel"
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", built, ROOT],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    for row in given.rows.split(","):
        print(row, flush=True)
        own = environment(given.folder, *row.split(":"), max(built.glob("*.whl"), key=os.path.getmtime))
        known[row] = tried(own)
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
