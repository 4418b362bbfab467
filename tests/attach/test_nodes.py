"""Nodes that are asked by a command of the user's: what they send becomes one case, and who does not answer is unknown."""

from __future__ import annotations

import io
import json
import shlex
import sys
import tarfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.slowness import slowness
from unhang.attach import command_for, parse_nodes
from unhang.cli.attach import command
from unhang.errors import NothingToJudge, WrongUsage

TORCH = "/x/site-packages/torch/distributed/distributed_c10d.py"
KEY = "MASTER_ADDR=node-a MASTER_PORT=29500"


def answer(path: Path, ranks: dict[int, str | None], size: int = 4, key: str = KEY) -> None:
    """What `unhang attach --bundle -` sends of a node: ranks in a call (its name), or asleep."""
    files: dict[str, object] = {
        "job.json": {
            "attached": True,
            "job_key": key,
            "started_ns": 1,
            "ended_ns": 9,
            "environment": {"MASTER_ADDR": "node-a"},
        }
    }
    for rank, op in ranks.items():
        own = f"ranks/r{rank}-{100 + rank}/"
        inner = [{"filename": TORCH, "line": 1, "name": op}] if op else []
        frames = [*inner, {"filename": "/x/train.py", "line": 20 if op else 30, "name": "main"}]
        files[own + "pyspy.json"] = [
            {"pid": 100 + rank, "os_thread_id": 100 + rank, "thread_name": "MainThread", "frames": frames}
        ]
        local = {"local_rank": rank % 2, "local_world_size": 2}
        files[own + "identity.json"] = {
            "rank": rank,
            "world_size": size,
            "pid": 100 + rank,
            "host": f"n{rank // 2}",
            **local,
        }
        files[own + "proc.json"] = {"state": "S", "cpu_share": 0.0}
        files[own + "look.json"] = {"looks": 5, "seconds": 3, "moved": False, "how": "it stands"}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(f"job-1/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def ask(folder: Path, nodes: str, *more: str, via: str = "sh -c 'cat {host}.tar.gz'"):  # type: ignore[no-untyped-def]
    options = ["--via", via, "--nodes", nodes, "--report-dir", str(folder / "report"), *more]
    return CliRunner().invoke(command, options, standalone_mode=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_nodes_become_one_verdict(here: Path) -> None:
    answer(here / "a.tar.gz", {0: "all_reduce", 1: "all_reduce"})
    answer(here / "b.tar.gz", {2: None, 3: "all_reduce"})
    done = ask(here, "a,b")
    assert done.return_value == 1, done.output
    assert done.stdout.startswith(
        "STALLED  rank 2 is in its own code at main (train.py:30) and has not reached all_reduce"
    )
    assert sorted(p.name for p in (here / "report").iterdir()) == [
        "b",
        "bundle",
        "report.html",
        "report.json",
        "report.txt",
    ]


@pytest.mark.parametrize(
    ("via", "words"),
    [
        ("sh -c 'cat a.tar.gz; test {host} = a || sleep 60'", "did not answer within"),
        ("sh -c 'test {host} = a && cat a.tar.gz || { echo Permission denied >&2; exit 255; }'", "Permission denied"),
        ("sh -c 'test {host} = a && cat a.tar.gz || echo Welcome to this machine'", "no bundle of unhang"),
    ],
)
def test_a_node_that_does_not_answer_is_unknown_and_not_dead(here: Path, via: str, words: str) -> None:
    answer(here / "a.tar.gz", {0: "all_reduce", 1: "all_reduce"})
    began = time.monotonic()
    done = ask(here, "a,b", "--node-limit", f"{2 * slowness():g}", via=via)
    assert time.monotonic() - began < 40 * slowness()
    assert done.return_value == 3, done.output
    assert done.stdout.startswith("UNKNOWN")
    assert "ranks 2, 3 were not looked at" in " ".join(done.stdout.split())
    assert f"node b: {words}" in done.stderr or words in done.stderr
    assert "of its ranks nothing is known" in " ".join(done.stdout.split())
    assert json.loads((here / "report" / "report.json").read_text())["findings"] == []


def test_nobody_answers(here: Path) -> None:
    done = ask(here, "a,b", via="false {host}")
    assert isinstance(done.exception, NothingToJudge)
    assert "no node has answered" in str(done.exception)


def test_several_jobs_must_be_told_apart(here: Path) -> None:
    answer(here / "a.tar.gz", {0: "all_reduce", 1: "all_reduce"}, 2)
    answer(here / "b.tar.gz", {0: "all_reduce", 1: None}, 2, "MASTER_ADDR=node-b MASTER_PORT=1")
    done = ask(here, "a,b")
    assert isinstance(done.exception, WrongUsage)
    assert "node-b" in str(done.exception)
    assert ask(here, "a,b", "--all").return_value == 1


def test_a_node_cannot_write_outside_of_its_folder(here: Path) -> None:
    answer(here / "a.tar.gz", {0: "all_reduce", 1: None}, 2)
    with tarfile.open(here / "b.tar.gz", "w:gz") as archive:
        for name in ("../../escaped", "/tmp/unhang-escaped", "job-1/job.json"):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"{}"))
        link = tarfile.TarInfo("job-1/ranks")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
    done = ask(here, "a,b", "--all")
    assert done.return_value in (1, 3), done.output
    assert not Path("/tmp/unhang-escaped").exists()
    assert not list(here.rglob("escaped"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([" "], "TARGET is empty"),
        (["--via", "ssh {host}"], "--via and --nodes go together"),
        (["--via", "ssh node", "--nodes", "a"], r"has no \{host\}"),
        (["--via", "ssh '{host}", "--nodes", "a"], "cannot be read"),
        (["--via", "ssh {host}", "--nodes", "-oProxyCommand=x"], "names no nodes"),
        (["--via", "ssh {host}", "--nodes", "a", "--watch"], "--watch follows one job"),
    ],
)
def test_wrong_usage_is_one_line(options: list[str], words: str) -> None:
    done = CliRunner().invoke(command, options, standalone_mode=False)
    assert isinstance(done.exception, WrongUsage)
    with pytest.raises(WrongUsage, match=words):
        raise done.exception


def test_the_command_of_a_node() -> None:
    remote = ["unhang", "attach", "--all", "--bundle", "-"]
    assert command_for("srun --jobid 7 --overlap -w {host}", "n1", remote) == [
        *shlex.split("srun --jobid 7 --overlap -w n1"),
        *remote,
    ]
    assert command_for("kubectl exec {host} --", "pod-0", remote)[:4] == ["kubectl", "exec", "pod-0", "--"]
    assert parse_nodes("a, b,,a") == ["a", "b"]


def test_what_a_real_node_sends_is_one_archive_and_nothing_else(here: Path) -> None:
    """Without a job it sends nothing, says why in one line, and ends with the code of who cannot judge."""
    done = ask(here, "a", via=f"sh -c 'exec {sys.executable} -m unhang attach $$ --all --bundle -' {{host}}")
    assert "is no rank of a job" in done.stderr
