"""What runs below pytest as a process: the launcher of `run_ranks`, which ends all ranks when one fails or the test is gone; the watcher of `--unhang`."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

_RANK = "unhang.inside.rank_of_test"
_POLL_S = 0.05
_GRACE_S = 1.0  # for the peers of a rank that failed to fail themselves, and be seen doing so
_TERM_S = 3.0


def launch(folder: Path) -> int:
    """Runs one process for each rank. 0 where all end well, else 1.

    Blocks: as long as they run, or until stdin is closed.
    """
    spec = json.loads((folder / "spec.json").read_bytes())
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(spec["ranks"])}
    ranks = []
    try:
        for rank in range(spec["ranks"]):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(spec["ranks"])}
            command = [sys.executable, "-m", _RANK, str(folder), str(rank)]
            ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **shared, **own}))
        while any(process.poll() is None for process in ranks):
            if any(process.returncode for process in ranks):
                _wait(ranks, _GRACE_S)
                break
            if select.select([0], [], [], _POLL_S)[0] and not os.read(0, 1):
                break  # whoever started us is gone
    finally:
        _end(ranks)
    return int(any(process.returncode for process in ranks))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(ranks: list[subprocess.Popen[bytes]], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        process.terminate()  # does nothing to one that has ended
    _wait(ranks, _TERM_S)
    for process in ranks:
        process.kill()
        process.wait()


def watch(run_dir: Path, pid: int, abort_after_s: float) -> None:
    """The watcher of the jobs below a process: its messages go to stdout, a line of JSON each. Blocks: until stdin is closed."""
    from unhang.watch import RunOptions, agent_process

    agent_process.watch(
        RunOptions(report_dir=run_dir, abort_after_s=abort_after_s, env=dict(os.environ)), run_dir, pid, 1, 0
    )


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    else:
        sys.exit(launch(Path(sys.argv[1])))
