"""Every command that a page shows runs: in a folder that has what the pages speak of, with launchers that start nothing.

Left to other tests: what starts ranks of its own or looks at live jobs (`demo`, `attach`, `check --ranks` ...), and lines with a placeholder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.floors.test_site import ROOT, WRITTEN, commands
from tests.ranks.recordings import unpack
from tests.slowness import slowness
from tests.unit.read.made_dumps import as_json, dump, entry
from unhang.diagnosis import judge_paths
from unhang.show.reports import write_reports

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", "kubectl", "ssh")
REPORTS = (
    "broken",
    "unhang-reports/ci",
    "unhang-reports/20260101-120000",
    "unhang-reports/20260301-101500",
    "unhang-reports/20260314-101500",
)
STANDS_FOR = {
    "REPORT": "broken",
    "DIR": "DUMPS",
    "PATH": "train.py",
    "RULE": "never-issued",
    "FILE": "launch.sh",
    "LOG...": "slurm-4711.out",
    "COMMAND...": "true",
}
# Of an option that begins with one of these, or a command of this name, another test tells.
ELSEWHERE = re.compile(
    r"unhang (attach|demo|mcp|bundle|completion)\b|.* --(pid|ranks|collectives|links|scale|soak|reduce|follow|all)\b|unhang reports open"
)
LOG = json.loads((ROOT / "tests" / "incidents" / "001.json").read_bytes())["log"]


def runnable() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(command, its words), each once; of those that start a job one for each set of options."""
    seen = set()
    for page in WRITTEN:
        for command in commands(page):
            plain = re.sub(r"\[[^\]]*\]?", "", command)
            words = tuple(STANDS_FOR.get(word, word) for word in shlex.split(plain, comments=True)[1:])
            if words[0] == "diagnose":
                words = tuple("slurm-4711.out" if word == "launch.sh" else word for word in words)
            own = words[: words.index("--") + 1] if "--" in words else words
            own = own[:2] if words[0] == "reproduce" else own
            if _is_whole(words) and not ELSEWHERE.match(command) and own not in seen:
                seen.add(own)
                yield command, words


def _is_whole(words: tuple[str, ...]) -> bool:
    """Whether nothing is left open in it."""
    is_open = any(re.search(r"\{|^/|^[A-Z_]{3,}\d?$|^\.\./|^\.\.\.$", word) for word in words[1:])
    lacks_job = (
        words[0] in ("run", "inject", "verify")
        and "--help" not in words
        and "--list" not in words
        and "--" not in words[:-1]
    )
    return len(words) > 1 and not is_open and not lacks_job


RUNNABLE = tuple(runnable())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages speak of."""
    here = tmp_path_factory.mktemp("pages")
    unpack(here / "recorded")
    hang = here / "recorded" / "conditional_collective"
    assert hang.is_dir(), sorted(path.name for path in (here / "recorded").iterdir())[:5]
    assert write_reports(judge_paths([hang]), hang) == []
    for name in REPORTS:
        shutil.copytree(hang, here / name)
    shutil.rmtree(here / "recorded")
    for name, ranks in (("DUMPS", (0, 1)), ("dumps", (0, 1)), ("node0", (0,)), ("node1", (1,))):
        (here / name).mkdir()
        for rank in ranks:
            (here / name / f"rank_{rank}.json").write_bytes(as_json(dump([entry(0)])))
    for name in ("slurm-4711.out", "slurm-4711.err"):
        (here / name).write_text(LOG)
    (here / "train.py").write_text("import torch.distributed as dist\n\ndist.barrier()\n")
    for name in ("launch.sh", "run.sbatch"):
        (here / name).write_text("#!/bin/sh\nexport NCCL_DEBUG=INFO\ntorchrun train.py\n")
    for name in ("tests", "examples"):
        (here / name).symlink_to(ROOT / name)
    (here / "bin").mkdir()
    for name in LAUNCHERS:
        (here / "bin" / name).write_text("#!/bin/sh\nexit 0\n")
        (here / "bin" / name).chmod(0o755)
    return here


JOBS = ("check", "inject", "reproduce", "run", "verify")  # half a minute each


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=[pytest.mark.whole] if name in JOBS else [])
        for name in sorted({words[0] for _, words in RUNNABLE})
    ],
)
@pytest.mark.timeout(300)
def test_it_runs(command: str, folder: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNHANG")}
    environ = {**kept, "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{kept['PATH']}", "HOME": str(folder)}
    for shown, words in RUNNABLE:
        if words[0] != command:
            continue
        if "-" in words:
            done = subprocess.run(
                [*warm.UNHANG, *words], cwd=folder, env=environ, input=LOG,
                capture_output=True, text=True, timeout=60 * slowness(), check=False,
            )  # fmt: skip
        else:
            done = warm.run([*warm.UNHANG, *words], folder, 60 * slowness(), environ)
        assert done.returncode in (0, 1, 3), f"{shown}: {done.returncode}: {done.stderr[-600:]}"
        assert "Traceback" not in done.stderr, f"{shown}: {done.stderr[-600:]}"


def test_most_of_what_the_pages_show_is_run() -> None:
    assert len(RUNNABLE) > 60
    assert {"run", "diagnose", "fix", "verify", "check", "env", "explain", "lint", "inject", "reports"} <= {
        w[0] for _, w in RUNNABLE
    }
