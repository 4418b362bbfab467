"""Every command that a page shows runs: in a folder that has what the pages speak of, with launchers that note what they were told to start."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from glob import glob
from pathlib import Path

import pytest

from tests.floors import page_commands
from tests.floors.page_commands import Shown, shown
from tests.floors.test_site import ROOT
from tests.ranks.recordings import PLACE, unpack
from tests.slowness import slowness
from tests.unit.read.made_dumps import as_json, dump, entry
from unhang.cli.main import main
from unhang.diagnosis import judge_paths
from unhang.show import write_reports

REPORTS = (
    "broken",
    "unhang-reports/ci",
    "unhang-reports/20260101-120000",
    "unhang-reports/20260301-101500",
    "unhang-reports/20260314-101500",
)
PROGRAMS = ("train.py", "pretrain_gpt.py")
LOG = json.loads((ROOT / "tests" / "incidents" / "001.json").read_bytes())["log"]
# What a launcher is told is kept and read below; what reaches another node runs here, if it was asked for in the right form.
LAUNCHERS = {
    **dict.fromkeys(("torchrun", "accelerate", "deepspeed"), 'printf "%s\\n" "$*" >> "$LAUNCHED"/"${0##*/}"'),
    "ssh": 'case "$1" in node[01]) shift; exec sh -c "$*";; *) exit 9;; esac',
    "srun": '[ "$1 $2 $3 $4" = "--jobid 4711 --overlap -w" ] || exit 9; shift 5; exec "$@"',
    "kubectl": '[ "$1" = exec ] && [ "$3" = -- ] || exit 9; shift 3; exec "$@"',
    "browser": 'test -e "${1#file://}"',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages speak of."""
    here = tmp_path_factory.mktemp("pages")
    unpack(here / "recorded")
    hang = here / "recorded" / "conditional_collective"
    assert hang.is_dir(), sorted(path.name for path in (here / "recorded").iterdir())[:5]
    job = hang / "job.json"  # the program lies here, and not where it was recorded
    job.write_text(job.read_text().replace(str(PLACE), str(ROOT)))
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
    for name in PROGRAMS:
        (here / name).write_text("import torch.distributed as dist\n\nif __name__ == '__main__':\n    print(dist)\n")
    for name in ("launch.sh", "run.sbatch"):
        (here / name).write_text("#!/bin/sh\nexport NCCL_DEBUG=INFO\ntorchrun train.py\n")
    for name in ("tests", "examples"):
        (here / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "src" / "unhang" / "skill", here / "skill")
    (here / "bin").mkdir()
    (here / "launched").mkdir()
    for name, does in LAUNCHERS.items():
        (here / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (here / "bin" / name).chmod(0o755)
    return here


def environ(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNHANG")}
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{kept['PATH']}"
    given = {"PATH": path, "HOME": str(folder), "LAUNCHED": str(folder / "launched"), "BROWSER": "browser"}
    return {**kept, **given, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


def globbed(words: tuple[str, ...], folder: Path) -> list[str]:
    """What a shell makes of `slurm-*.out`."""
    return [name for word in words for name in (sorted(glob(word, root_dir=folder)) if "*" in word else []) or [word]]


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, this process in it: most commands need none of their own."""
    given = environ(folder)
    for name in set(os.environ) - set(given):
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return folder


def run(one: Shown, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = globbed(one.words, folder)
    is_server = words[0] == "mcp" or "--lsp" in words
    if words[0] in JOBS or is_server or "-" in words:
        done = subprocess.run(
            [sys.executable, "-m", "unhang", *words], input="" if is_server else LOG,
            capture_output=True, text=True, timeout=120 * slowness(), check=False,
        )  # fmt: skip
        code, said = done.returncode, done.stderr
    else:
        code, said = main(words), capsys.readouterr().err
    assert code in (0, 1, 3), f"{one.text}: {code}: {said[-600:]}"
    assert "Traceback" not in said, f"{one.text}: {said[-600:]}"


JOBS = ("check", "inject", "reproduce", "run", "verify")  # a minute each


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=[pytest.mark.whole] if name in JOBS else [])
        for name in sorted({one.words[0] for one in shown() if one.how in ("run", "named")})
    ],
)
@pytest.mark.timeout(400)
def test_it_runs(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = {one.words: one for one in shown() if one.how in ("run", "named") and one.words[0] == command}
    for one in ours.values():
        run(one, here, capsys)
    told = [(file.name, line) for file in (here / "launched").iterdir() for line in file.read_text().splitlines()]
    if command == "run":
        assert {name for name, _ in told} == {"torchrun", "accelerate", "deepspeed"}
    for launcher, line in told:
        launchable(launcher, shlex.split(line), here)


def launchable(launcher: str, words: list[str], folder: Path) -> None:
    """Whether the launcher itself takes these words, and the program is there.

    Raises:
        SystemExit: The launcher would refuse them.
    """
    if launcher == "torchrun":
        from torch.distributed.run import get_args_parser

        given = get_args_parser().parse_args(words)
        program = given.training_script
        assert given.module or (folder / program).exists(), words
    elif launcher == "accelerate":
        launch_command = pytest.importorskip("accelerate.commands.launch")
        given = launch_command.launch_command_parser().parse_args(words[1:])
        assert words[0] == "launch"
        assert (folder / given.training_script).exists()
    else:  # not installed here: what its own page says of it
        parser = argparse.ArgumentParser()
        parser.add_argument("--num_gpus", type=int)
        parser.add_argument("script")
        assert (folder / parser.parse_args(words).script).exists()


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_what_looks_at_a_live_job_runs_on_one(folder: Path) -> None:
    live = [one for one in shown() if one.how == "live"]
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    done = subprocess.run(
        [*apart, sys.executable, "-m", "tests.floors.live_commands", str(folder)],
        input=json.dumps([one.words for one in live]), capture_output=True, text=True, env=environ(folder), cwd=ROOT, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(zip((one.text for one in live), json.loads(done.stdout), strict=True))
    wrong = {text: result for text, result in found.items() if result[0] not in (0, 1)}
    assert wrong == {}
    assert found["unhang attach"][0] == 1  # it hangs, and is named


@pytest.mark.whole
@pytest.mark.timeout(400)
@pytest.mark.parametrize("one", [one for one in shown() if one.how in ("ranks", "demo")], ids=lambda one: one.text)
def test_what_starts_jobs_of_its_own_runs(one: Shown, folder: Path) -> None:
    path = environ(folder)["PATH"].removeprefix(f"{folder / 'bin'}:")  # the real launchers
    unhang = [sys.executable, "-m", "unhang", *one.words]
    done = subprocess.run(unhang, cwd=folder, env={**environ(folder), "PATH": path}, capture_output=True, timeout=390)
    assert done.returncode in (0, 1), done.stderr[-600:]


def test_every_command_of_the_pages_is_run_or_excused() -> None:
    count = Counter(one.how for one in shown())
    print(dict(count))
    assert count.total() > 170
    assert {one.text for one in shown() if one.how == "parsed"} == set(page_commands.PARSED)
    assert all(word.isupper() is False or "=" in word for one in shown() for word in one.words if word.endswith("..."))
    assert count["named"] < 12
