"""`unhang reproduce --as-test`: the test that it writes fails while the fault is there, and passes once it is mended."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.slowness import slowness
from unhang.cli.reproduce import command
from unhang.errors import WrongUsage
from unhang.model import Diagnosis, Outcome
from unhang.reproduce.reduce import MADE, regression_test
from unhang.rules.registry import judge
from unhang.testing import make_case

_PROGRAM = """\
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def main(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    for step in range(3):
        dist.all_reduce(torch.ones(4))
    if rank == 0:  # FAULT
        dist.barrier()
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(main, (port,), nprocs=2, start_method="fork")
"""


def hung() -> Diagnosis:
    case = make_case({0: ["barrier@main:10 !"], 1: ["all_reduce[2]@main:11 !"]}, world=2)
    return judge(case)


@pytest.mark.timeout(400)
def test_it_fails_before_and_passes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, path = tmp_path / "train.py", tmp_path / "tests" / "test_hang.py"
    program.write_text(_PROGRAM)
    path.parent.mkdir()
    path.write_text(regression_test(hung(), ("python", "train.py"), path, 60 * slowness()))
    before = run_test(path)
    assert before.returncode == 1, before.stdout
    assert "[code-divergence]" in before.stdout
    program.write_text(_PROGRAM.replace("if rank == 0:  # FAULT", "if True:"))
    after = run_test(path)
    assert after.returncode == 0, after.stdout


def run_test(path: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        words, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=180 * slowness()
    )


@pytest.mark.parametrize(
    ("found", "words", "said"),
    [
        (replace(hung(), outcome=Outcome.CLEAN, findings=()), ("python", "x"), "neither failed nor did wrong"),
        (hung(), (), "does not say how the job is started"),
        (hung(), ("torchrun", "no_such_train.py"), "no_such_train.py is not here"),
    ],
)
def test_what_cannot_become_a_test_is_said(found: Diagnosis, words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=said):
        regression_test(found, words, tmp_path / "test_hang.py", None)


def test_what_the_evidence_says_cannot_become_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = replace(hung().findings[0], title='"""\nimport os\n{x} \\')
    words = ("python", "-c", '\'"""\nimport shutil')
    text = regression_test(replace(hung(), findings=(first,)), words, tmp_path / "test_hang.py", None)
    imported = {a.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for a in node.names}
    assert imported == {"json", "signal", "subprocess", "sys"}


def test_a_test_of_somebody_else_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log, path = tmp_path / "job.log", tmp_path / "test_hang.py"
    log.write_text("[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: x\n")
    path.write_text("mine")
    with pytest.raises(WrongUsage):
        command.main([str(log), "--as-test", str(path)], standalone_mode=False)
    assert path.read_text() == "mine"
    assert MADE not in path.read_text()
