"""Runs commands of unhang on a real job that hangs, in a PID namespace where no other job can be seen.

unshare --pid --fork --mount-proc python -m tests.floors.live_commands FOLDER < commands.json > results.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.slowness import slowness

FORKRUN = Path(__file__).parents[1] / "ranks" / "forkrun.py"
PROGRAM = """
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
Path(f"ready-{dist.get_rank()}").touch()
if dist.get_rank() == 0:
    dist.broadcast(torch.ones(2), src=0)
dist.barrier()
"""


def main() -> None:
    """Starts the job, runs each command, ends the job; prints [exit code, end of stderr] of each."""
    folder = Path(sys.argv[1])
    (folder / "hanging.py").write_text(PROGRAM)
    command = [sys.executable, str(FORKRUN), "--eager", "2", "hanging.py"]
    job = subprocess.Popen(command, cwd=folder, stdout=2, env={**os.environ, "NCCL_DEBUG": "WARN"})
    try:
        deadline = time.monotonic() + 60 * slowness()
        while not all((folder / f"ready-{rank}").exists() for rank in (0, 1)) and time.monotonic() < deadline:
            time.sleep(0.1)
        results = []
        for words in json.load(sys.stdin):
            typed = [str(job.pid) if word == "PID" else word for word in words]
            unhang = [sys.executable, "-m", "unhang", *typed]
            done = subprocess.run(
                unhang,
                cwd=folder,
                env=os.environ,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=90 * slowness(),
            )
            results.append([done.returncode, done.stderr.decode(errors="replace")[-800:], len(done.stdout)])
        json.dump(results, sys.stdout)
    finally:
        job.terminate()
        job.wait(30)


if __name__ == "__main__":
    main()
