"""Other ways to start ranks than torchrun: multiprocessing spawn, and plain processes of a shell script."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .faults import HERE, MARK
from .harness import HUNG_JOB_ENDED, _unhang

CULPRIT_LINES = {
    name: {n for n, text in enumerate((HERE / "programs" / name).read_text().splitlines(), 1) if text.endswith(MARK)}
    for name in ("spawned.py", "conditional_collective.py")
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _commands(tmp_path: Path) -> dict[str, tuple[list[str], str, int]]:
    spawned, plain = HERE / "programs" / "spawned.py", HERE / "programs" / "conditional_collective.py"
    return {
        "spawn": ([sys.executable, str(spawned), str(tmp_path / "store")], spawned.name, 2),
        "plain": ([str(HERE / "plainrun.sh"), sys.executable, str(_free_port()), str(plain)], plain.name, 0),
    }


@pytest.mark.torchrun
@pytest.mark.timeout(120)
@pytest.mark.parametrize("launcher", ["spawn", "plain"])
def test_a_hang_is_named_under_any_launcher(launcher: str, tmp_path: Path) -> None:
    command, program, culprit = _commands(tmp_path)[launcher]
    done = subprocess.run(
        [*_unhang(), "run", "--report-dir", str(tmp_path / "report"), "--stall-after", "5", "--", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert done.returncode == HUNG_JOB_ENDED, done.stderr
    assert report["hang"]["kind"] == "proven"
    first = report["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("code-divergence", [culprit])
    assert Path(first["location"]["file"]).name == program
    assert first["location"]["line"] in CULPRIT_LINES[program]
